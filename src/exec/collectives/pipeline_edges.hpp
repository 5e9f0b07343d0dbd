// SPDX-License-Identifier: Apache-2.0
// Communicators between neighbouring stages of a pipeline.
#pragma once

#include <array>
#include <memory>

#include "cadenza/exec/device_communicator.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::exec {

/// An edge leads from a stage to the next one, from the last to the first where the model is in
/// chunks. Each has a communicator of its two ranks for each pass. With NCCL, a message is under
/// way until it is received, and what comes after it on its communicator waits for that: on one for
/// a whole pipeline, a stage would be held up by a neighbour that it has nothing to ask of yet.
class PipelineEdges {
 public:
  /// Collective.
  PipelineEdges(comm::Communicator& world, const program::StepShape& shape,
                config::Transport transport);

  /// Of a send or a receive; the other rank is number 1 - rank().
  DeviceCommunicator& of(const program::Step& step) const;

 private:
  struct Edge {
    std::unique_ptr<comm::Communicator> group;
    std::unique_ptr<DeviceCommunicator> devices;
  };
  struct Neighbours {
    Edge sends, receives;
  };
  std::array<Neighbours, 2> passes_;  ///< by program::Pass
};

}  // namespace cadenza::exec
