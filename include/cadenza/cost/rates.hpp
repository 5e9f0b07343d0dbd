// SPDX-License-Identifier: Apache-2.0
// What a machine takes for work and for bytes: attention tasks by tiles and measured tables, matrix
// products by shape, copies by bytes, messages and collectives by links. The one basis of
// everything that is called "predicted". It knows no operation of a program and no placed task.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/collective.hpp"
#include "cadenza/base/pass.hpp"
#include "cadenza/base/task.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/cost/product_time.hpp"

namespace cadenza::cost {

/// The way from one rank to another.
struct Way {
  double latency_seconds = 0;
  double bytes_per_second = 0;
  bool between_nodes = false;
};

/// What makes the index of sparse attention, in whatever order.
struct IndexWork {
  double flops = 0;   ///< of the products that are logits
  double scores = 0;  ///< logits that passes in memory go through, once for every pass
  double masses = 0;  ///< numbers that patterns are chosen from
};

/// Of one thread at a time: the calls note what they extrapolate.
class Rates {
 public:
  /// @param cluster  nodes, bandwidth and slow links; what else it says of ranks is not looked at
  Rates(const config::Machine& machine, const config::Cluster& cluster, std::int64_t head_dim);
  Rates(Rates&&) noexcept;
  Rates& operator=(Rates&&) noexcept;
  ~Rates();

  /// A call of the attention kernel takes launch_seconds and, for each of its tasks, task_seconds.
  double launch_seconds() const;
  double task_seconds(const Task& task, Pass pass) const;

  /// Seconds of a pair of sparse attention, of one head: kernels cut its tasks into blocks of their
  /// own, whatever the shapes of the tasks.
  /// @param block  tokens of a side of a block
  double sparse_pair(std::int64_t block, Pass pass) const;
  double index_seconds(const IndexWork& work) const;

  double product_seconds(const Product& product) const;

  /// Rows into a message, and a message into rows.
  /// @param slices  of rows that hold more heads than the message
  double pack(std::int64_t bytes, bool slices = false) const;
  double unpack(std::int64_t bytes, bool slices = false) const;

  Way way(Rank from, Rank to) const;
  int node_of(Rank rank) const;
  /// The network adapter of a rank: a number that ranks of a node may share.
  int adapter_of(Rank rank) const;

  /// Of a ring; a sum of few bytes goes up and down a tree.
  /// Ranks of a node use its adapters together: a group has as large a part of them as it has of
  /// the node's ranks.
  /// @param bytes  of the whole result (all_gather), the whole input (reduce_scatter, all_reduce)
  double collective(Collective what, double bytes, std::span<const Rank> group) const;

  /// Shapes outside the machine's tables, one line each: "attention forward: 131072 queries x
  /// 131072 keys, measured up to 65536 x 65536". Filled by the calls above.
  std::vector<std::string> extrapolations() const;

  const config::Machine& machine() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// What planners know of the ranks of a pool.
struct Pool {
  Rates rates;
  std::vector<Rank> ranks;  ///< by rank of the pool: its number in the world; empty: the same
  /// Of one more rank of the world that does the same at the same time: what shares its adapter.
  int tensor = 1;
  /// Seconds of the rest of a layer, for a token of a trainer, by pass.
  double forward_seconds = 0;
  double backward_seconds = 0;

  Rank world_rank(Rank rank) const { return ranks.empty() ? rank : ranks[at(rank)]; }
};

/// Where no machine is named: its rates compare plans, and say nothing of any machine.
Pool nominal_pool(std::int64_t head_dim);
/// What reports say of them: "assumed 50 GFLOP/s, 5 GB/s: set cluster.machine".
std::string nominal_rates();

}  // namespace cadenza::cost
