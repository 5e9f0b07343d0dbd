// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/kernels/bfloat16.hpp"

namespace cadenza::app {

/// Returns the text of an experiment, machine or sweep file.
/// @param valid  describes a valid path: "an experiment's YAML file"
/// @throws Error(usage)
std::string read_yaml(const std::string& path, const std::string& valid);

/// Prints a line for every key that the experiment ignores, from the process that users hear.
void tell_unused(const config::UnusedKeys& unused);

/// Reads and checks the experiment in this process.
config::Experiment load_experiment(const std::string& path,
                                   const std::vector<std::string>& overrides);

/// Adds the budgets of heads from the file of attention.sparse.budgets. @throws Error(usage)
config::Experiment with_budgets(config::Experiment experiment);

/// Loads an experiment on all ranks: rank 0 reads the file, all parse the same text and check that
/// the number of ranks matches. From then on, waits obey its run.timeout.
config::Experiment load_experiment(comm::Communicator& world, const std::string& path,
                                   const std::vector<std::string>& overrides,
                                   config::HeadsOf heads = config::HeadsOf::model);

// --- run.dtype as a type, and whether a host supports it ---

/// Calls body(Real{}) with the type in which the run computes.
template <typename Body>
void with_real(config::Dtype dtype, Body body) {
  switch (dtype) {
    case config::Dtype::bfloat16:
      return body(bfloat16{});
    case config::Dtype::float32:
      return body(float{});
    case config::Dtype::float64:
      return body(double{});
  }
}

/// Requires that the host supports run.dtype. Only computing needs this, not planning.
/// @param has_bfloat16  kernels::supports_bfloat16() of this rank
/// @param host          its name, for the message
/// @throws Error(usage)
void require_dtype(config::Dtype dtype, bool has_bfloat16, const std::string& host);

}  // namespace cadenza::app
