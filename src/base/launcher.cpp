// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/launcher.hpp"

#include <cstdlib>

namespace cadenza {
namespace {

/// Returns the value of the variable in which mpirun or srun gives a process its rank; null: none.
const char* launcher_variable() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  return nullptr;
}

}  // namespace

int launcher_rank() {
  const char* value = launcher_variable();
  return value != nullptr ? std::atoi(value) : 0;
}

bool has_launcher() {
  return launcher_variable() != nullptr;
}

}  // namespace cadenza
