// SPDX-License-Identifier: Apache-2.0
#include "pipeline_edges.hpp"

namespace cadenza::exec {
namespace {

using program::Pass;

/// Edges that are made by one split: no two of them meet in a stage. Edge s leads from stage s.
int colour(int edge, int stages) {
  const bool odd_one = edge == stages - 1 && stages % 2 == 1;
  return odd_one ? 2 : edge % 2;
}

}  // namespace

PipelineEdges::PipelineEdges(comm::Communicator& world, const program::Layout& layout,
                             config::Transport transport) {
  const int stages = layout.pipeline();
  if (stages == 1) return;
  const Rank rank = world.rank();
  program::Coordinates at = layout.trains(rank) ? layout.coordinates(rank) : program::Coordinates{};
  const int stage = layout.trains(rank) ? at.pipeline : -1;
  at.pipeline = 0;
  const Rank pipeline = layout.rank(at);  // names it
  const int alone = stages * layout.trainers() + rank;
  const int before = (stage + stages - 1) % stages;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (int c = 0; c < 2 + stages % 2; ++c) {
      int edge = -1;
      if (stage >= 0 && colour(stage, stages) == c) edge = stage;
      if (stage >= 0 && colour(before, stages) == c) edge = before;
      auto group = world.split(edge < 0 ? alone : edge * layout.trainers() + pipeline);
      if (edge < 0) continue;
      Neighbours& of_pass = passes_[static_cast<std::size_t>(pass)];
      const bool sends = (edge == stage) == (pass == Pass::forward);
      auto devices = make_device_communicator(*group, transport);
      (sends ? of_pass.sends : of_pass.receives) = {std::move(group), std::move(devices)};
    }
  }
}

DeviceCommunicator& PipelineEdges::of(const program::Step& step) const {
  const Neighbours& of_pass = passes_[static_cast<std::size_t>(step.pass)];
  const bool sends = step.operation == program::Operation::send;
  return *(sends ? of_pass.sends : of_pass.receives).devices;
}

}  // namespace cadenza::exec
