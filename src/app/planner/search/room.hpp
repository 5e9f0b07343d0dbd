// SPDX-License-Identifier: Apache-2.0
// What candidates of a search need of a rank's memory, against what there is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "app/planner/search/search_report.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/exec/memory/estimate.hpp"

namespace cadenza::app {

/// Bytes that a candidate may need in a run of 600 steps. What plans take (workspaces, messages,
/// rows beyond the usual) grows with the steps, as ranks keep the largest buffers that they ever
/// needed: by 13 % when they double (13B on 32 H100: 2.2 times from 1 step to 600, 1.45 times from
/// 56).
inline std::int64_t need_of_run(const Judged& judged) {
  constexpr double kGrowth = 0.13, kSteps = 600;
  const double doublings = std::max(0.0, std::log2(kSteps / judged.steps));
  const std::int64_t of_plans = std::max<std::int64_t>(0, judged.bytes - judged.fixed);
  return judged.bytes +
         static_cast<std::int64_t>(kGrowth * doublings * static_cast<double>(of_plans));
}

/// Steps from which on finals decide: those with a long document are few and say most. Of less,
/// intervals and memory promise too much.
inline constexpr int kEnoughSteps = 32;

/// Whether so many steps of it can be simulated that they say what it needs. Where simulating is
/// much work, few have to say it.
inline bool will_be_seen(const Judged& judged) {
  return judged.steps < kEnoughSteps && judged.work > 0 &&
         kEnoughSteps * judged.work <= kWorkToDecide / 4;
}

/// Several threads may ask.
class Room {
 public:
  /// @param given  of all candidates; has to outlive this
  /// @param bytes  of a rank; 0: no limit
  Room(const config::Experiment& given, std::int64_t bytes) : given_(given), bytes_(bytes) {}

  /// Sets the bytes of a candidate, and what fills them most.
  /// @param more  than the least: of its plans
  void measure(Judged& judged, const exec::MemoryEstimate& more = {}) {
    exec::MemoryEstimate memory = exec::least_memory(judged.candidate.of(given_), stages_);
    judged.fixed = memory.total();
    memory += more;
    judged.bytes = memory.total();
    judged.fullest = memory.largest();
  }

  /// Whether the rows that a rank may hold beyond its share (batch.longest) may not fit.
  bool is_tight(Judged judged) {
    exec::MemoryEstimate more;
    more.activations = static_cast<std::int64_t>(
        (judged.candidate.longest - 1) *
        static_cast<double>(exec::least_memory(judged.candidate.of(given_), stages_).activations));
    measure(judged, more);
    return !has(judged);
  }

  bool has(const Judged& judged) const {
    return bytes_ == 0 || (will_be_seen(judged) ? judged.bytes : need_of_run(judged)) <= bytes_;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  const config::Experiment& given_;
  std::int64_t bytes_;
  exec::StageHoldings stages_;
};

}  // namespace cadenza::app
