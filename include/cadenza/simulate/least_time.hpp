// SPDX-License-Identifier: Apache-2.0
// A bound on a step's time that needs neither plans nor programs: what makes a search over layouts
// short.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::simulate {

class Dense;

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
  double seconds(const config::Experiment& experiment);

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
    // Attention of one head of one layer: of attention.kind, and of one that is full instead
    // (attention.layers).
    std::array<Passes, 2> whole;   ///< documents as they are
    std::array<Passes, 2> pieces;  ///< where documents are cut
  };
  /// Layers of a stage.
  struct Layers {
    double all = 0;
    double full = 0;  ///< with full attention instead of attention.kind's
  };
  struct Rows {
    std::int64_t least = 0;
    std::int64_t most = 0;
  };
  /// Hops of one kind that end at the first position of a ring.
  struct Hops {
    std::int64_t positions = 1;
    std::int64_t sources = 0;  ///< positions whose keys come this way
    std::int64_t slices = 1;   ///< ranks of a position: each gets the keys of its heads
    std::int64_t span = 1;     ///< ranks from one end to the other
  };
  static std::vector<Hops> key_hops(const config::Experiment& experiment);
  static double hop_seconds(const config::Experiment& experiment, const Costs& costs,
                            const Hops& hops);
  /// Positions and sources of hops, whether shares are striped.
  using HopKey = std::tuple<std::int64_t, std::int64_t, bool>;
  const std::vector<double>& keys_over(const Hops& hops, const config::Attention& attention);

  /// Of a rank of a data-parallel replica, the mean of its context group, in a stage.
  struct Busy {
    double rows = 0;
    double attention = 0;  ///< seconds, as the others
    double launches = 0;
    std::vector<double> keys;  ///< by kind of hop
  };
  /// Seconds of a row outside attention, with the collectives of its tensor group.
  struct RowTime {
    double layer = 0;
    double loss = 0;
  };
  /// Degree of tensor parallelism, trainers, rows, recomputation, whether at the machine's rates.
  using RowKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, config::Recompute, bool>;
  RowTime row_seconds(const config::Experiment& experiment, Dense& dense, const Costs& costs,
                      std::int64_t rows, bool exact);
  Rows rows_of(const config::Experiment& experiment) const;
  double mean_rows(const config::Experiment& experiment) const;
  double attention_seconds(const config::Experiment& experiment, const Layers& layers) const;
  double servers_seconds(const config::Experiment& experiment) const;
  double busiest_seconds(const config::Experiment& experiment, const Costs& costs, double row,
                         const Layers& stage);
  static Passes sum_of(const std::array<Passes, 2>& head, const Layers& layers);

  config::Machine machine_;
  config::Machine best_;  ///< no size is slower than a smaller one
  std::vector<Microbatch> microbatches_;
  Layers model_;  ///< of the model
  // Of many layouts the same:
  std::map<RowKey, RowTime> row_times_;
  std::map<HopKey, std::vector<double>> hop_keys_;  ///< by microbatch
};

}  // namespace cadenza::simulate
