// SPDX-License-Identifier: Apache-2.0
// Records simulated steps as trace events: the operations, names and order that a run of the
// experiment records on every rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/simulate/simulator.hpp"
#include "cadenza/trace/events/event.hpp"

namespace cadenza::simulate {

/// Rounds seconds to nanoseconds.
std::int64_t nanoseconds(double seconds);

/// Returns the names that Event::name_id indexes.
const std::vector<std::string>& event_names();

/// Returns the event of the rank `offset` further in the tensor group, which does the same at the
/// same time.
trace::Event twin_of(trace::Event event, Rank offset);

/// Events and totals of a rank in a step.
struct RankRecord {
  std::vector<trace::Event> events;
  double flops = 0;
  std::int64_t bytes_received = 0;
};

/// Records one step at a time.
class Recording {
 public:
  /// @param ranks   of the run; ranks that are not simulated have empty records
  /// @param halves  of a microbatch: 2 in ping-pong
  /// @param events  whether to keep events, or only count them
  Recording(int ranks, int halves, bool events)
      : halves_(halves), events_(events), ranks_(static_cast<std::size_t>(ranks)) {}

  /// Discards the previous step. @param begin_ns  begin of the step in the run's time
  void begin_step(std::int64_t step, std::int64_t begin_ns);

  void add(const Span& span);

  /// Adds a rank's operations around its program: all ranks agree on the plan, trainers zero their
  /// gradients (which costs nothing here), and all agree on the loss when the last rank has ended.
  /// Call it once the step is over.
  /// @param times         of the rank
  /// @param opens         when the last rank begins the step, seconds
  /// @param step_seconds  end of the step
  void surround(Rank rank, bool trains, const RankTimes& times, double opens, double step_seconds);

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
