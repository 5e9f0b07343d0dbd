// SPDX-License-Identifier: Apache-2.0
// A bound on a step's time that needs neither plans nor programs: what makes a search over layouts
// short.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::simulate {

/// Of one batch on one machine, for any layout of its model.
class LeastTime {
 public:
  /// @param experiment  in any layout: the model, and how attention is computed
  /// @throws Error(usage) as Costs
  LeastTime(const data::Batch& batch, const config::Experiment& experiment,
            const config::Machine& machine);

  /// Seconds that a step takes where only the work that its layout gives to the busiest rank
  /// counts: layers with the collectives of their tensor group, a pipeline's fill and drain, the
  /// attention of a context group (of cad: spread evenly over its pool) or, where it takes longer,
  /// the keys of a ring that its first rank reads, over the slowest hop, the last sum of gradients,
  /// the update; of parameter shards, the first gathers or, where they take longer, all
  /// collectives. Other messages cost nothing. No step takes less on a cluster none of whose ranks
  /// is faster than the machine says (see cluster.speed_spread and jitter): work that a layout cuts
  /// into pieces is taken at the best rate of all smaller sizes.
  double seconds(const config::Experiment& experiment) const;

  /// By microbatch: of the attention of one head of one layer, both passes, without launches.
  std::vector<double> attention() const;

 private:
  struct Passes {
    double forward = 0;
    double backward = 0;
  };
  struct Microbatch {
    std::vector<std::int64_t> lengths;  ///< of its documents
    std::int64_t tokens = 0;
    Passes whole;   ///< attention of one head of one layer, documents as they are
    Passes pieces;  ///< the same where documents are cut
  };
  struct Rows {
    std::int64_t least = 0;
    std::int64_t most = 0;
  };
  /// Of a rank of a data-parallel replica, the mean of its context group, in a stage.
  struct Busy {
    double rows = 0;
    double attention = 0;  ///< seconds, as the others
    double launches = 0;
    std::vector<double> keys;  ///< by kind of hop
  };
  Rows rows_of(const config::Experiment& experiment) const;
  double mean_rows(const config::Experiment& experiment) const;
  double attention_seconds(const config::Experiment& experiment) const;
  double servers_seconds(const config::Experiment& experiment) const;
  double busiest_seconds(const config::Experiment& experiment, const Costs& costs, double row,
                         double layers) const;

  config::Machine machine_;
  config::Machine best_;  ///< no size is slower than a smaller one
  std::vector<Microbatch> microbatches_;
};

}  // namespace cadenza::simulate
