// SPDX-License-Identifier: Apache-2.0
// The search of placement: auto, and the decisions of attention.overlap: auto and
// attention.tolerance: auto, with their reasons.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "app/planner/search/candidates.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::app {

/// Ping-pong is taken where it is predicted to save at least this part of a step: rates say nothing
/// of what more and smaller kernels and messages cost.
inline constexpr double kLeastGain = 0.02;

struct Decisions {
  config::Overlap overlap = config::Overlap::none;  ///< never auto
  /// A line for each key that is auto: "overlap: ping_pong (auto: ...)".
  std::vector<std::string> lines;
};

/// Of an experiment with a layout and a placement; only cad has something to decide, with the
/// others an overlap that is auto is none. The overlap is decided once for a run, by the
/// predicted time of its first step; a tolerance is decided for each tick when it is planned, and
/// the line says what it is in the first tick. A function of its arguments alone, and of no step
/// but the first one: all ranks, and a run that is continued, come to the same.
Decisions decide(const config::Experiment& experiment, const data::Packer& packer,
                 const config::Machine& machine);

// `attention.placement: auto`: a search over layouts, placements and ways to save memory.

/// A step in parts that add up to it, in seconds, means over the ranks.
struct StepParts {
  double attention = 0;
  double imbalance = 0;  ///< attention of the busiest rank beyond the mean
  double dense = 0;      ///< all other computation
  double exposed = 0;    ///< the rest: messages, collectives, pipeline bubbles

  friend StepParts operator+(const StepParts& a, const StepParts& b) {
    return {a.attention + b.attention, a.imbalance + b.imbalance, a.dense + b.dense,
            a.exposed + b.exposed};
  }
  friend StepParts operator*(double times, const StepParts& parts) {
    return {times * parts.attention, times * parts.imbalance, times * parts.dense,
            times * parts.exposed};
  }
};

/// How much longer one candidate takes than another, over so many equal steps; 95 % interval.
struct StepRatio {
  double value = 1;
  double low = 0;
  double high = std::numeric_limits<double>::infinity();  ///< infinite: it is not known
  int steps = 1;
};

/// A candidate and what became of it.
struct Considered {
  Candidate candidate;
  std::string status;  ///< simulated, estimated, excluded, not tried
  std::string why;     ///< it is not simulated in full, or slower than the best
  double seconds = 0;  ///< of a step, simulated (mean) or estimated; 0: neither
  double half = 0;     ///< of its 95 % interval; 0: it is not known
  int steps = 0;       ///< that were simulated
  double bound_seconds = 0;
  std::int64_t bytes = 0;  ///< of the fullest rank, simulated or estimated; 0: neither
  // Where it was simulated:
  StepParts parts;
  double attention_imbalance = 1;
  double utilization = 0;    ///< model FLOPs over those of the machine's peak; 0: not known
  double work = 0;           ///< that simulating a step takes, as kMostWork counts it
  bool out_of_time = false;  ///< it might be the best, but no time was left to simulate it
};

struct Choice {
  config::Experiment experiment;  ///< with a layout, a placement, a microbatch and an overlap
  std::string explanation;        ///< a ranked table of what was simulated and why the first one
                                  ///< won; empty where the experiment names its placement
  std::vector<std::string> decisions;  ///< what else was auto, with reasons (decisions.hpp)
  int simulated = 0;                   ///< whole steps that the search ran a clock for
  std::vector<Considered> considered;
  std::optional<StepRatio> cad;  ///< the best without cad over the best with it, where known
};

/// With placement auto: of all candidates (candidates.hpp) that fit into run.memory or, where that
/// is 0, into the machine's, the one with the least simulated time. Bounds (simulate::LeastTime)
/// and estimates on a part of a typical step (sample.hpp) say of which that step is simulated
/// whole: all that may be faster than the best, until kMostWork is done; the best of these are
/// compared over more steps (finals.hpp). Otherwise the experiment's own, with its overlap decided.
/// A function of its arguments alone: all ranks, on any host, choose the same.
/// @param progress  on stderr
/// @throws Error(usage) where none fits, naming the one that needs least
Choice search_layout(const config::Experiment& experiment, const data::Corpus& corpus,
                     const config::Machine& machine, bool progress = false);

/// Work for a search: entries of plans and operations of clocks, so that it ends at the same place
/// on every host; about 35 s of a core.
inline constexpr double kMostWork = 13e7;
/// And for the best with cad, or without, where none was worth it.
inline constexpr double kWorkToCompare = 2e7;
/// And for more steps than one.
inline constexpr double kWorkToDecide = 9e7;
inline constexpr int kMostByMemory = 64;

}  // namespace cadenza::app
