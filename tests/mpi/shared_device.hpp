// SPDX-License-Identifier: Apache-2.0
// What NCCL refuses: two ranks of one device ("Duplicate GPU detected").
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/kernels/device_identity.hpp"

namespace cadenza::exec::testing {

/// Whether two ranks compute on one device. Collective.
inline bool ranks_share_a_device(comm::Communicator& world) {
  std::array<char, 64> mine{};
  kernels::device_identity().uuid.copy(mine.data(), mine.size() - 1);
  std::vector<std::array<char, 64>> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  std::ranges::sort(all);
  return kDeviceIsCuda && std::ranges::adjacent_find(all) != all.end();
}

/// The experiment with a transport that works here. Collective.
inline config::Experiment on_these_devices(config::Experiment e, comm::Communicator& world) {
  const bool shared = ranks_share_a_device(world);
  if (shared && e.run.transport == config::Transport::nccl) {
    e.run.transport = config::Transport::staged;
  }
  return e;
}

}  // namespace cadenza::exec::testing
