// SPDX-License-Identifier: Apache-2.0
// The ring of pinned memory on a stream that runs as late as it may: nothing is overwritten before
// it was copied, and no more than one half is waited for.
#include "../../../kernels/device/copy_ring.hpp"

#include <gmock/gmock.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <vector>

namespace cadenza::kernels::device {
namespace {

/// Runs copies only where the host waits for them.
struct LateStream {
  struct State {
    std::deque<std::function<void()>> work;
    std::size_t ran = 0;
    std::size_t marks[2] = {};  ///< how much had been put on the stream
    int waits = 0;
    bool waiting = true;  ///< false: the planted fault
  };
  State* state;

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    state->work.push_back([=] { std::memcpy(to, from, bytes); });
  }
  void mark(bool half) const { state->marks[half] = state->ran + state->work.size(); }
  void wait(bool half) const {
    if (!state->waiting) return;
    ++state->waits;
    while (state->ran < state->marks[half]) run_next();
  }
  void run_next() const {
    state->work.front()();
    state->work.pop_front();
    ++state->ran;
  }
};

/// Copies arrays of random sizes through a ring of 128 bytes. @return those that did not arrive
int lost(LateStream::State& state, int arrays) {
  std::vector<std::byte> memory(128);
  CopyRing<LateStream> ring(memory, LateStream{&state});
  std::mt19937 random(7);
  std::vector<std::vector<std::byte>> sent, received;
  for (int i = 0; i < arrays; ++i) {
    std::vector<std::byte> from(random() % 200);
    for (std::byte& each : from) each = static_cast<std::byte>(random());
    sent.push_back(from);
    received.emplace_back(from.size());
    ring.copy(received.back().data(), from);
    std::ranges::fill(from, std::byte{0});  // the caller's memory is free again
  }
  while (!state.work.empty()) LateStream{&state}.run_next();
  int count = 0;
  for (std::size_t i = 0; i < sent.size(); ++i) count += sent[i] != received[i];
  return count;
}

TEST(CopyRing, DeliversWhatItWasGivenHoweverLateTheStreamRuns) {
  LateStream::State state;
  EXPECT_EQ(lost(state, 500), 0);
  EXPECT_GT(state.waits, 100);
}

TEST(CopyRing, WithoutWaitingLosesArrays) {
  LateStream::State state;
  state.waiting = false;
  EXPECT_GT(lost(state, 500), 100);
}

TEST(CopyRing, DoesNotWaitForWhatHasRoom) {
  LateStream::State state;
  std::vector<std::byte> memory(128);
  CopyRing<LateStream> ring(memory, LateStream{&state});
  std::vector<std::byte> to(128);
  ring.copy(to.data(), std::vector<std::byte>(128));  // both halves, neither used before
  EXPECT_EQ(state.waits, 1);                          // for nothing: the second has no mark
  EXPECT_EQ(state.ran, 0u);
}

}  // namespace
}  // namespace cadenza::kernels::device
