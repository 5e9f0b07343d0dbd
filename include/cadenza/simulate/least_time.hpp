// SPDX-License-Identifier: Apache-2.0
// A bound on a step's time that needs neither plans nor programs: what makes a search over layouts
// short.
#pragma once

#include <vector>

#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::simulate {

/// Of one batch on one machine, for any layout of its model.
class LeastTime {
 public:
  /// @param attention  the mask and the budgets of sparse attention
  /// @param costs  of any layout: attention is timed by the head; it outlives the object
  LeastTime(const data::Batch& batch, const config::Attention& attention, const Costs& costs);

  /// Seconds that a step takes where only the work that its layout gives to the busiest rank
  /// counts: layers with the collectives of their tensor group, a pipeline's fill and drain, the
  /// attention of a context group (of cad: spread evenly) or, where it takes longer, the keys of a
  /// ring that its first rank reads, over the slowest hop, the last sum of gradients, the update.
  /// Other messages cost nothing.
  double seconds(const config::Experiment& experiment) const;

  /// By microbatch: of the attention of one head of one layer, both passes.
  std::vector<double> attention() const;

 private:
  /// Of one head of one layer over a microbatch.
  struct Attention {
    double forward = 0;
    double backward = 0;
    std::vector<std::int64_t> lengths;  ///< of its documents
  };
  double key_seconds(const config::Experiment& experiment, const Costs& costs) const;
  double attention_seconds(const config::Experiment& experiment, const Costs& costs) const;

  const config::Machine& machine_;
  std::vector<Attention> microbatches_;
  std::int64_t tokens_ = 0;
};

}  // namespace cadenza::simulate
