// SPDX-License-Identifier: Apache-2.0
// Times of work and bytes on a machine: attention tasks by tiles and measured tables, matrix
// products by shape, copies by bytes, messages and collectives by links. Everything that is called
// "predicted" uses these rates, which know no operation of a program and no placed task.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/event_context.hpp"
#include "cadenza/base/task.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/cost/product_time.hpp"

namespace cadenza::cost {

/// The connection from one rank to another.
struct Way {
  double latency_seconds = 0;
  double bytes_per_second = 0;
  bool between_nodes = false;
};

/// What a message holds, which decides how fast it is copied.
enum class Copied : std::uint8_t {
  rows,     ///< rows of an attention message, wherever they lie in a rank's memory
  slices,   ///< some of the heads of rows
  streams,  ///< the residual stream of a microbatch, one piece of memory
};

/// Work of making the index of sparse attention.
struct IndexWork {
  double flops = 0;   ///< FLOPs of the products that give logits
  double scores = 0;  ///< logits visited in memory, summed over passes
  double masses = 0;  ///< masses visited when patterns are chosen
};

/// The rates of a machine. Not thread-safe: calls record what they extrapolate.
class Rates {
 public:
  /// @param cluster  gives nodes, bandwidth, slow links and adapters, and the stack; its other
  /// differences are ignored
  Rates(const config::Machine& machine, const config::Cluster& cluster, std::int64_t head_dim);
  Rates(Rates&&) noexcept;
  Rates& operator=(Rates&&) noexcept;
  ~Rates();

  /// Seconds of a call of the attention kernel: launch_seconds, plus task_seconds for each task.
  double launch_seconds() const;
  double task_seconds(const Task& task, Pass pass) const;

  /// Seconds of a pair of sparse attention, of one head. They do not depend on the task's shape, as
  /// kernels cut tasks into blocks of their own.
  /// @param block  side of a block, tokens
  /// @param adjoining  share of the active blocks that adjoin others of their row
  double sparse_pair(std::int64_t block, double adjoining, Pass pass) const;
  double index_seconds(const IndexWork& work) const;

  double product_seconds(const Product& product) const;

  /// Seconds of copying `bytes` into a message, and from a message to their place.
  double pack(std::int64_t bytes, Copied what = Copied::rows) const;
  double unpack(std::int64_t bytes, Copied what = Copied::rows) const;

  /// Seconds of a copy between a rank's memory and its host's.
  double host_copy(std::int64_t bytes) const;

  Way way(Rank from, Rank to) const;
  int node_of(Rank rank) const;
  /// Number of a rank's network adapter, which ranks of a node may share.
  int adapter_of(Rank rank) const;

  /// Seconds of a collective on a ring; an all_reduce of few bytes uses a tree. The ranks of a
  /// group share a node's adapters in proportion to their part of the node's ranks.
  /// @param bytes  of the whole result (all_gather), the whole input (reduce_scatter, all_reduce)
  double collective(Collective what, double bytes, std::span<const Rank> group) const;
  /// Seconds of the same (no all_reduce) by messages of every rank to every other, one after
  /// another: between nodes, each rank has its part of the adapters alone.
  double exchange(Collective what, double bytes, std::span<const Rank> group) const;

  /// Shapes of earlier calls that lie outside the machine's tables, one line each: "attention
  /// forward: 131072 queries x 131072 keys, measured up to 65536 x 65536".
  std::vector<std::string> extrapolations() const;

  const config::Machine& machine() const;
  const config::Software& software() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// The ranks of a pool as planners know them.
struct Pool {
  Rates rates;
  std::vector<Rank> ranks;  ///< by rank of the pool: its world rank; empty: the same
  /// Size of a tensor group: so many neighbours send the same at the same time and may share an
  /// adapter.
  int tensor = 1;
  /// Seconds per token of a trainer in a layer outside core attention, by pass.
  double forward_seconds = 0;
  double backward_seconds = 0;
  /// Of a step, one after another on each context group: groups that exchange nothing meet after
  /// the last.
  int microbatches = 1;

  Rank world_rank(Rank rank) const { return ranks.empty() ? rank : ranks[at(rank)]; }
};

/// The pool at nominal rates, for experiments without a machine: they only serve to compare plans.
Pool nominal_pool(std::int64_t head_dim);
/// Nominal rates in words for reports: "assumed 50 GFLOP/s, 5 GB/s: set cluster.machine".
std::string nominal_rates();

}  // namespace cadenza::cost
