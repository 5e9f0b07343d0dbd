// SPDX-License-Identifier: Apache-2.0
// The best candidates of a search, compared over as many steps as the answer needs: a step is one
// draw of documents, and what wins in it may lose in the next.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/planner/search/room.hpp"
#include "app/planner/search/search_report.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::app {

/// Quantile 0.975 of Student's distribution (its expansion around the normal one; within 1 % from 3
/// degrees on).
double student(double degrees);

/// How much longer one takes than the other over equal steps: the ratio of their times, and its 95
/// % interval by what differs from step to step (a ratio estimate of paired samples; Cochran,
/// Sampling Techniques, 1977, section 6.4). Of fewer than 4 steps the interval is not known.
/// @param longer, shorter  seconds by step
StepRatio ratio_of(std::span<const double> longer, std::span<const double> shorter);

/// Half of the 95 % interval of the mean; 0: of fewer than 4 steps it is not known.
double half_of_mean(std::span<const double> seconds);

struct Finals {
  /// Best first, all by the mean of the steps of the first one: who was given up earlier by those
  /// that it shares with the best of its kind. Then who was no finalist, by one step. At the
  /// tolerance that a run would use. Empty where no finalist is left.
  std::vector<Judged> ranked;
  std::vector<Judged> too_large;  ///< in a step after the first
  std::optional<StepRatio> cad;   ///< the best without cad over the best with it
};

/// Simulates the best with cad and the best without (of `ranked`, which is of one step) step by
/// step, gives up who is slower for sure (or slowest, where the work of more steps would go beyond
/// kWorkToDecide), and ends when, over 32 steps or more, the ratio of the two kinds and those
/// inside them are known to 1.4 %, or after 128 steps. The place of one that does not fit in a
/// later step is taken by the next best of its kind, which makes up the steps before.
/// @param ranked  best first
/// @param leaner  not simulated: they have the plans of one that is ranked, `seconds` and `bytes`
/// are
///                reckoned from it, and they stand in for it where it does not fit
/// @param show  told what it is at
Finals compare_over_steps(const config::Experiment& given, const std::vector<Judged>& ranked,
                          const std::vector<Judged>& leaner, const data::Corpus& corpus,
                          const config::Machine& machine, const Room& room,
                          const std::function<void(const std::string&)>& show);

}  // namespace cadenza::app
