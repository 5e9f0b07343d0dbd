// SPDX-License-Identifier: Apache-2.0
#include "exec/collectives/pipeline_edges.hpp"

namespace cadenza::exec {

PipelineEdges::PipelineEdges(comm::Communicator& world, const program::StepShape& shape,
                             config::Transport transport) {
  using program::Pass;
  const program::Layout& layout = shape.layout;
  const Rank rank = world.rank();
  const bool trains = layout.trains(rank);
  program::Coordinates at = trains ? layout.coordinates(rank) : program::Coordinates{};
  const int stages = layout.pipeline();
  const int stage = trains ? at.pipeline : -1;
  at.pipeline = 0;
  const Rank pipeline = layout.rank(at);  // names it
  const int edges = shape.pipeline.chunks > 1 ? stages : stages - 1;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (int edge = 0; edge < edges; ++edge) {
      const bool begins = stage == edge;
      const bool ends = stage == (edge + 1) % stages;
      auto group = world.split(begins || ends ? pipeline : layout.trainers() + rank);
      if (!begins && !ends) continue;
      Neighbours& of_pass = passes_[static_cast<std::size_t>(pass)];
      const bool sends = begins == (pass == Pass::forward);
      auto devices = make_device_communicator(*group, transport, Purpose::streams);
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
