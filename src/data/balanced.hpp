// SPDX-License-Identifier: Apache-2.0
// Packing by cost: microbatches of different lengths whose attention and linear layers together
// take equally long (WLB-LLM, arXiv 2503.17924; its form without queues: DistCA, arXiv 2510.18121).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cadenza/base/mask.hpp"
#include "cadenza/data/batch.hpp"
#include "data/stream.hpp"

namespace cadenza::data {

/// A document that is in no microbatch yet.
struct Waiting {
  BatchDocument document;
  std::int64_t read = 0;     ///< the step whose tokens it belongs to
  std::int64_t carried = 0;  ///< steps in which no microbatch had room for it
};

/// Before a step of tiny documents fills the memory. @throws Error(usage) above
/// config::kMostStepDocuments
void check_step(std::size_t documents);

struct Bins {
  std::int64_t count = 1;    ///< microbatches
  std::int64_t longest = 0;  ///< tokens a microbatch may hold
  double break_even = 1;     ///< tokens; a causal document of d costs d * d / break_even + d
  Mask mask = {};            ///< others cost as many pairs as it allows
  bool force = false;        ///< what fits nowhere goes to the cheapest microbatch all the same
  /// Of each data-parallel replica, the costs that it bears in equal time; empty: all alike.
  /// Microbatch i is computed by replica i mod their number.
  std::vector<std::int64_t> capacities = {};
};

/// Deals documents to microbatches: those carried longest first, then the costliest first, each
/// into the cheapest microbatch if it has room, else into the shortest if that has. With
/// `capacities` the cheapest is the one that takes least time with the document.
/// @param pool  the documents; keeps those that fit nowhere (none with `force`)
/// @throws Error(usage) where every document is compared with too many microbatches
std::vector<Microbatch> deal(std::vector<Waiting>& pool, const Bins& bins, std::int64_t step);

/// Packing `balanced`. What is left over or waits in a queue comes in a later step, so a step
/// depends on all before it: it is found by replaying them, from the nearest one that is
/// remembered.
class BalancedSteps {
 public:
  /// @param tokens  that a step reads, less what was carried to it
  /// @param outliers  ascending lengths
  BalancedSteps(std::shared_ptr<const Stream> stream, std::int64_t tokens, const Bins& bins,
                std::vector<std::int64_t> outliers);

  /// Thread-safe; calls with ascending steps cost one step each.
  Batch batch(std::int64_t step);

 private:
  /// Before a step.
  struct State {
    std::int64_t position = 0;                 // in the stream
    std::vector<Waiting> carried;              // had no room
    std::vector<std::vector<Waiting>> queues;  // of outliers, in the order they were read
  };
  Batch advance(State& state, std::int64_t step) const;
  void read_window(State& state, std::int64_t step) const;
  void release_outliers(State& state) const;

  std::shared_ptr<const Stream> stream_;
  std::int64_t tokens_;
  Bins bins_;
  std::vector<std::int64_t> outliers_;
  std::mutex mutex_;
  std::map<std::int64_t, State> remembered_;  // by step: every kRemembered-th that was passed
  std::int64_t next_ = 0;                     // the step after the last one that was asked for
  State last_;                                // before next_
};

}  // namespace cadenza::data
