// SPDX-License-Identifier: Apache-2.0
// Collectives built from a communicator's primitives: strings and clocks.
#include <limits>
#include <vector>

#include "cadenza/comm/communicator.hpp"

namespace cadenza::comm {
namespace {

template <typename T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

constexpr int kClockTag = 1000;

/// Answers `pings` times with rank 0's clock.
void serve_clock(Communicator& comm, int peer, int pings, std::int64_t (*now_ns)()) {
  for (int ping = 0; ping < pings; ++ping) {
    std::int64_t message = 0;
    comm.post_receive(bytes_of(message), peer, kClockTag, 0);
    comm.wait(0);
    message = now_ns();
    comm.post_send(bytes_of(message), peer, kClockTag, 0);
    comm.wait(0);
  }
}

ClockOffset ask_clock(Communicator& comm, int pings, std::int64_t (*now_ns)()) {
  ClockOffset best;
  best.rtt_min_ns = std::numeric_limits<std::int64_t>::max();
  for (int ping = 0; ping < pings; ++ping) {
    std::int64_t message = 0;
    const std::int64_t sent = now_ns();
    comm.post_send(bytes_of(message), 0, kClockTag, 0);
    comm.wait(0);
    comm.post_receive(bytes_of(message), 0, kClockTag, 0);
    comm.wait(0);
    const std::int64_t received = now_ns();
    if (received - sent < best.rtt_min_ns) {
      const std::int64_t middle = sent + (received - sent) / 2;
      best = {middle, message - middle, received - sent};
    }
  }
  return best;
}

}  // namespace

std::string broadcast(Communicator& comm, const std::string& text, int root) {
  std::int64_t size = static_cast<std::int64_t>(text.size());
  comm.broadcast(bytes_of(size), root);
  std::string result = comm.rank() == root ? text : std::string();
  result.resize(static_cast<std::size_t>(size));
  comm.broadcast(std::as_writable_bytes(std::span(result)), root);
  return result;
}

ClockOffset measure_clock(Communicator& comm, int pings, std::int64_t (*now_ns)()) {
  ClockOffset mine{now_ns(), 0, 0};
  for (int peer = 1; peer < comm.size(); ++peer) {
    if (comm.rank() == 0) serve_clock(comm, peer, pings, now_ns);
    if (comm.rank() == peer) mine = ask_clock(comm, pings, now_ns);
    comm.barrier();  // one pair at a time, so that others do not disturb its round trips
  }
  return mine;
}

}  // namespace cadenza::comm
