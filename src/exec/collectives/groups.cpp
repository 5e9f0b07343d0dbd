// SPDX-License-Identifier: Apache-2.0
#include "exec/collectives/groups.hpp"

namespace cadenza::exec {

Groups::Groups(comm::Communicator& world, const program::StepShape& shape,
               config::Transport transport) {
  const program::Layout& layout = shape.layout;
  const Rank rank = world.rank();
  const bool trains = layout.trains(rank);
  const program::Coordinates at = trains ? layout.coordinates(rank) : program::Coordinates{};
  const auto split = [&](int color) { return world.split(trains ? color : layout.trainers()); };
  pool = world.split(layout.pool_of(rank));
  trainers = split(0);
  replicas = split(at.pipeline * layout.tensor() + at.tensor);
  model = split(at.data * layout.context() + at.context);
  tensor = split(rank / layout.tensor());
  const auto over = [&](comm::Communicator& group, Purpose purpose) {
    return make_device_communicator(group, transport, purpose);
  };
  for (int half = 0; half < shape.halves; ++half) {
    inputs.push_back(over(*pool, Purpose::attention));
    results.push_back(over(*pool, Purpose::attention));
  }
  gradients = over(*replicas, Purpose::gradients);
  slices = over(*tensor, Purpose::slices);
  streams = std::make_unique<PipelineEdges>(world, shape, transport);
}

}  // namespace cadenza::exec
