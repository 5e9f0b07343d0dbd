// SPDX-License-Identifier: Apache-2.0
#include "app/calibrate/measure_links.hpp"

#include "app/calibrate/timing.hpp"

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

/// Bytes per second that each rank sends in a ring over all of them.
/// @param collective  runs on (one rank's part, all parts)
template <typename Collective>
double ring_rate(comm::Communicator& world, double latency, const Collective& collective) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<float> part(kLarge / sizeof(float) / ranks), all(part.size() * ranks);
  const double seconds = measure(world, [&] { collective(part, all); });
  const auto hops = static_cast<double>(ranks - 1);
  return hops * static_cast<double>(part.size() * sizeof(float)) / (seconds - hops * latency);
}

}  // namespace

config::Link measure_link(comm::Communicator& world) {
  constexpr int kTimes = 100;
  config::Link link;
  link.latency_seconds = swap_seconds(world, kSmall, kTimes);
  link.bytes_per_second =
      static_cast<double>(kLarge) / (swap_seconds(world, kLarge, 1) - link.latency_seconds);
  link.gather_bytes_per_second =
      ring_rate(world, link.latency_seconds, [&](std::span<float> part, std::span<float> all) {
        world.all_gather(std::as_bytes(part), std::as_writable_bytes(all));
      });
  link.reduce_bytes_per_second = ring_rate(
      world, link.latency_seconds,
      [&](std::span<float> part, std::span<float> all) { world.reduce_scatter(all, part); });
  return link;
}

}  // namespace cadenza::app
