// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/kernels/bfloat16.hpp"

namespace cadenza::app {

/// The text of an experiment, a machine or a sweep.
/// @param valid  what the path should name: "an experiment's YAML file"
/// @throws Error(usage)
std::string read_yaml(const std::string& path, const std::string& valid);

/// A line for every key that the experiment ignores, from the process that users hear.
void tell_unused(const config::UnusedKeys& unused);

/// Reads and checks the experiment in this process.
config::Experiment load_experiment(const std::string& path,
                                   const std::vector<std::string>& overrides);

/// With the budgets of heads that attention.sparse.budgets names. @throws Error(usage)
config::Experiment with_budgets(config::Experiment experiment);

/// Rank 0 reads the file, all ranks parse the same text and check that they are as many as it asks
/// for. From then on waits obey its run.timeout.
config::Experiment load_experiment(comm::Communicator& world, const std::string& path,
                                   const std::vector<std::string>& overrides,
                                   config::HeadsOf heads = config::HeadsOf::model);

// run.dtype as a type, and whether a host has it.

/// Calls body(Real{}) with the type that the run computes in.
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

/// Planning asks for no more than the experiment says; computing needs the host's consent.
/// @param has_bfloat16  kernels::supports_bfloat16() of this rank
/// @param host          its name, for the message
/// @throws Error(usage)
void require_dtype(config::Dtype dtype, bool has_bfloat16, const std::string& host);

}  // namespace cadenza::app
