// SPDX-License-Identifier: Apache-2.0
// Simulated steps as trace events: the same operations, named alike and in the same order, as a run
// of the experiment records on every rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/simulate/simulator.hpp"
#include "cadenza/trace/event.hpp"

namespace cadenza::simulate {

/// Whole nanoseconds of a time in seconds.
std::int64_t nanoseconds(double seconds);

/// What Event::name_id stands for: an index.
const std::vector<std::string>& event_names();

/// The event of a rank that does what another does, `offset` ranks further in its tensor group.
trace::Event twin_of(trace::Event event, Rank offset);

/// What a rank did in a step.
struct RankRecord {
  std::vector<trace::Event> events;
  double flops = 0;
  std::int64_t bytes_received = 0;
};

/// One step at a time.
class Recording {
 public:
  /// @param ranks   of the run; those that are not simulated have empty records
  /// @param halves   of a microbatch: 2 in ping-pong
  /// @param events  whether they are kept, or counted alone
  Recording(int ranks, int halves, bool events)
      : halves_(halves), events_(events), ranks_(static_cast<std::size_t>(ranks)) {}

  /// Forgets the step before. @param begin_ns  of the step in the run's time
  void begin_step(std::int64_t step, std::int64_t begin_ns);

  void add(const Span& span);

  /// Adds what a rank does around its program: all agree on the plan, trainers clear their
  /// gradients (which costs nothing here), and all agree on the loss when the last of them has
  /// ended. Call it once the step is over.
  /// @param end           of the rank's program, seconds
  /// @param step_seconds  end of the step
  void surround(Rank rank, bool trains, double end, double step_seconds);

  const RankRecord& of(Rank rank) const { return ranks_[at(rank)]; }

 private:
  trace::Event event(double begin, double end) const;
  trace::Event event_of(const Span& span) const;
  std::uint32_t in_step(std::uint32_t flow) const;

  int halves_;
  bool events_;
  std::vector<RankRecord> ranks_;
  std::uint32_t step_ = 0;
  std::int64_t begin_ns_ = 0;
};

}  // namespace cadenza::simulate
