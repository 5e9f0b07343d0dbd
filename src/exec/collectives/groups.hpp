// SPDX-License-Identifier: Apache-2.0
// The groups of ranks with which an executor communicates.
#pragma once

#include <memory>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/exec/device_communicator.hpp"
#include "cadenza/program/program.hpp"
#include "exec/collectives/pipeline_p2p.hpp"

namespace cadenza::exec {

/// All splits of the world, made collectively. A dedicated server uses only the pool; its other
/// groups are idle.
struct Groups {
  /// @param transport  for device memory
  Groups(comm::Communicator& world, const program::StepShape& shape, config::Transport transport);

  std::unique_ptr<comm::Communicator> pool;      ///< the ranks that this rank's plans name
  std::unique_ptr<comm::Communicator> trainers;  ///< all trainers
  std::unique_ptr<comm::Communicator> replicas;  ///< trainers with the same parameters
  std::unique_ptr<comm::Communicator> model;  ///< trainers that together hold one copy of the model
  std::unique_ptr<comm::Communicator> tensor;  ///< trainers with slices of the same layers

  /// Inputs and results of attention in the pool, by half of the microbatch.
  std::vector<std::unique_ptr<DeviceCommunicator>> inputs, results;
  std::unique_ptr<DeviceCommunicator> gradients;  ///< gradients and parameters, among replicas
  std::unique_ptr<DeviceCommunicator> slices;     ///< among the tensor group
  std::unique_ptr<PipelineEdges> streams;         ///< between neighbouring pipeline stages
};

}  // namespace cadenza::exec
