// SPDX-License-Identifier: Apache-2.0
// The groups of ranks that an executor talks to.
#pragma once

#include <memory>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/exec/device_communicator.hpp"
#include "cadenza/program/program.hpp"
#include "exec/collectives/pipeline_p2p.hpp"

namespace cadenza::exec {

/// All splits of one world; made by all ranks together. Dedicated servers have groups of their own
/// that nobody uses, but for the pool.
struct Groups {
  /// @param transport  of what is in device memory
  Groups(comm::Communicator& world, const program::StepShape& shape, config::Transport transport);

  std::unique_ptr<comm::Communicator> pool;      ///< the ranks that this rank's plans speak of
  std::unique_ptr<comm::Communicator> trainers;  ///< all of them
  std::unique_ptr<comm::Communicator> replicas;  ///< trainers with the same parameters
  std::unique_ptr<comm::Communicator> model;     ///< trainers that hold one model together
  std::unique_ptr<comm::Communicator> tensor;    ///< trainers with slices of the same layers

  /// Of the pool, by half of the microbatch: inputs and results of attention.
  std::vector<std::unique_ptr<DeviceCommunicator>> inputs, results;
  std::unique_ptr<DeviceCommunicator> gradients;  ///< of the replicas: gradients, parameters
  std::unique_ptr<DeviceCommunicator> slices;     ///< of the tensor group
  std::unique_ptr<PipelineEdges> streams;         ///< between neighbouring pipeline stages
};

}  // namespace cadenza::exec
