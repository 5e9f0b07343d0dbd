// SPDX-License-Identifier: Apache-2.0
// The protocol of kernels/sm90/pipeline.hpp as a model: one loader and two computing warpgroups
// that pass segments and tiles through rings of slots, in a million random interleavings. Nobody
// may wait for ever, read a slot before it is written, or write one that is still read. The
// kernels' own source runs in test_sm90.cpp, in fewer orders.
#include <Kokkos_Core.hpp>
#ifndef KOKKOS_ENABLE_CUDA

#include <gmock/gmock.h>

#include <array>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../../../kernels/sm90/pipeline.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::testing {
namespace {

namespace sm90 = kernels::sm90;

/// A coroutine that stops at every step.
class Actor {
 public:
  struct promise_type {
    Actor get_return_object() { return Actor(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
  using Handle = std::coroutine_handle<promise_type>;

  explicit Actor(Handle handle) : handle_(handle) {}
  Actor(Actor&& from) noexcept : handle_(std::exchange(from.handle_, nullptr)) {}
  Actor& operator=(Actor&&) = delete;
  ~Actor() {
    if (handle_ != nullptr) handle_.destroy();
  }
  bool done() const { return handle_.done(); }
  void step() { handle_.resume(); }

 private:
  Handle handle_;
};

constexpr int kSegments = 2;
constexpr int kStages = 2;

/// Two arrays of a tile, or a segment: what is in it, and who reads it.
struct Place {
  int content = -1;  ///< number of the tile or segment; -1: nothing yet
  int readers = 0;
  bool arriving = false;
};

/// A barrier whose phase ends with `arrivals` arrivals (for `full`: the copies' bytes are one).
struct PhaseBarrier {
  int arrivals = 1;
  int missing = 1;
  int phase = 0;
  void arrive() {
    if (--missing > 0) return;
    missing = arrivals;
    ++phase;
  }
  bool ended(int parity) const { return phase % 2 != parity; }
};

struct Protocol {
  int fault = -1;  ///< wait or arrival that is left out, by its number below; -1: none
  std::vector<int> tiles_of_segments;
  std::array<std::array<Place, 2>, kStages> tiles;
  std::array<std::array<PhaseBarrier, 2>, kStages> full;
  std::array<std::array<PhaseBarrier, 2>, kStages> empty;
  std::array<Place, kSegments> segments;
  std::array<PhaseBarrier, kSegments> segment_full;
  std::array<PhaseBarrier, kSegments> segment_empty;
  std::vector<std::pair<Place*, PhaseBarrier*>> copies;  ///< that have not arrived
  std::vector<int> contents;                             ///< of the copies
  std::string wrong;

  Protocol(std::vector<int> tiles_of, int fault_number)
      : fault(fault_number), tiles_of_segments(std::move(tiles_of)) {
    for (auto& slot : empty) {
      for (PhaseBarrier& barrier : slot) barrier.arrivals = barrier.missing = 2;
    }
    for (PhaseBarrier& barrier : segment_empty) barrier.arrivals = barrier.missing = 2;
  }

  void copy(Place& place, PhaseBarrier& barrier, int content) {
    if (place.readers > 0 || place.arriving) wrong = "a slot is written while it is read";
    place.arriving = true;
    copies.emplace_back(&place, &barrier);
    contents.push_back(content);
  }
  void arrive(std::size_t which) {
    auto [place, barrier] = copies[which];
    if (place->readers > 0) wrong = "a slot is written while it is read";
    place->content = contents[which];
    place->arriving = false;
    copies[which] = copies.back();
    copies.pop_back();
    contents[which] = contents.back();
    contents.pop_back();
    barrier->arrive();
  }
  void begin_reading(Place& place, int content) {
    if (place.content != content || place.arriving) wrong = "a slot is read before it is written";
    ++place.readers;
  }
};

template <int kSlots>
std::size_t at(const sm90::Ring<kSlots>& ring) {
  return static_cast<std::size_t>(ring.slot());
}

#define CADENZA_WAIT(number, barrier, parity) \
  while (of.fault != (number) && !(barrier).ended(parity)) co_await std::suspend_always()
#define CADENZA_STEP co_await std::suspend_always()

Actor loader(Protocol& of) {
  sm90::Ring<kSegments> segments;
  sm90::Ring<kStages> tiles;
  int tile = 0;
  for (std::size_t segment = 0; segment < of.tiles_of_segments.size(); ++segment) {
    CADENZA_WAIT(0, of.segment_empty[at(segments)], segments.parity() ^ 1);
    of.copy(of.segments[at(segments)], of.segment_full[at(segments)], static_cast<int>(segment));
    segments.advance();
    for (int i = 0; i < of.tiles_of_segments[segment]; ++i, ++tile) {
      for (std::size_t array = 0; array < 2; ++array) {
        CADENZA_WAIT(1 + static_cast<int>(array), of.empty[at(tiles)][array], tiles.parity() ^ 1);
        of.copy(of.tiles[at(tiles)][array], of.full[at(tiles)][array], tile);
        CADENZA_STEP;
      }
      tiles.advance();
    }
  }
}

/// As the forward pass: the first array of the next tile is read before the second one of this.
Actor consumer(Protocol& of) {
  sm90::Ring<kSegments> segments;
  sm90::Ring<kStages> tiles;
  int tile = 0;
  for (std::size_t segment = 0; segment < of.tiles_of_segments.size(); ++segment) {
    for (int i = 0; i < of.tiles_of_segments[segment]; ++i, ++tile) {
      const std::size_t slot = at(tiles);
      CADENZA_WAIT(3, of.full[slot][0], tiles.parity());
      if (i == 0) CADENZA_WAIT(4, of.segment_full[at(segments)], segments.parity());
      of.begin_reading(of.segments[at(segments)], static_cast<int>(segment));
      of.begin_reading(of.tiles[slot][0], tile);
      CADENZA_STEP;
      --of.segments[at(segments)].readers;
      --of.tiles[slot][0].readers;
      if (of.fault != 6) of.empty[slot][0].arrive();
      if (i == of.tiles_of_segments[segment] - 1) {
        if (of.fault != 7) of.segment_empty[at(segments)].arrive();
        segments.advance();
      }
      CADENZA_WAIT(5, of.full[slot][1], tiles.parity());
      of.begin_reading(of.tiles[slot][1], tile);
      CADENZA_STEP;
      --of.tiles[slot][1].readers;
      if (of.fault != 8) of.empty[slot][1].arrive();
      tiles.advance();
    }
  }
}
#undef CADENZA_STEP
#undef CADENZA_WAIT

/// Runs one interleaving. @return what went wrong, or nothing
std::string interleave(std::mt19937_64& random, int fault) {
  std::vector<int> tiles(1 + random() % 4);
  for (int& count : tiles) count = static_cast<int>(1 + random() % 4);
  Protocol protocol(tiles, fault);
  std::array<Actor, 3> actors{loader(protocol), consumer(protocol), consumer(protocol)};
  const std::uint64_t favoured = random() % 5;  // one actor, the copies, or nobody
  for (int steps = 0; steps < 2000; ++steps) {
    if (!protocol.wrong.empty()) return protocol.wrong;
    std::uint64_t next = random() % 4;
    if (favoured < 4 && random() % 2 == 0) next = favoured;
    if (next == 3) {
      if (!protocol.copies.empty()) protocol.arrive(random() % protocol.copies.size());
    } else if (!actors[next].done()) {
      actors[next].step();
    }
    if (actors[0].done() && actors[1].done() && actors[2].done()) return "";
  }
  return "it did not end";
}

TEST(Sm90Protocol, EndsAndReadsWhatWasWrittenInAMillionInterleavings) {
  std::mt19937_64 random(1);
  const int rounds = kSanitized ? 20'000 : 1'000'000;
  for (int round = 0; round < rounds; ++round) ASSERT_EQ(interleave(random, -1), "") << round;
}

TEST(Sm90Protocol, EveryMissingWaitAndArrivalIsFound) {
  for (int fault = 0; fault < 9; ++fault) {
    SCOPED_TRACE("fault " + std::to_string(fault));
    std::mt19937_64 random(2);
    bool found = false;
    for (int round = 0; round < 5000 && !found; ++round) {
      found = !interleave(random, fault).empty();
    }
    EXPECT_TRUE(found);
  }
}

}  // namespace
}  // namespace cadenza::testing

#endif
