// SPDX-License-Identifier: Apache-2.0
#include "measure_links.hpp"

#include "timing.hpp"

namespace cadenza::app {
namespace {

constexpr int kTag = 1;
constexpr int kChannel = 0;
constexpr std::size_t kSmall = 8;
constexpr std::size_t kLarge = std::size_t{16} << 20;

/// Ranks 0 and 1 send and receive at the same time; the others wait.
void swap(comm::Communicator& world, std::span<std::byte> out, std::span<std::byte> in) {
  if (world.rank() > 1) return;
  const int peer = 1 - world.rank();
  world.post_receive(in, peer, kTag, kChannel);
  world.post_send(out, peer, kTag, kChannel);
  world.wait(kChannel);
}

double swap_seconds(comm::Communicator& world, std::size_t bytes, int times) {
  std::vector<std::byte> out(bytes), in(bytes);
  const double seconds = measure(world, [&] {
    for (int i = 0; i < times; ++i) swap(world, out, in);
  });
  return seconds * world.size() / 2 / times;  // ranks beyond 1 took no time
}

}  // namespace

config::Link measure_link(comm::Communicator& world) {
  constexpr int kTimes = 100;
  config::Link link;
  link.latency_seconds = swap_seconds(world, kSmall, kTimes);
  link.bytes_per_second =
      static_cast<double>(kLarge) / (swap_seconds(world, kLarge, 1) - link.latency_seconds);
  return link;
}

}  // namespace cadenza::app
