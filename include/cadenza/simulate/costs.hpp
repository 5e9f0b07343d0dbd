// SPDX-License-Identifier: Apache-2.0
// Seconds of everything that a program does, from a machine file: core attention by tiles and
// measured tables, matrix products by shape, the rest by bytes, messages and collectives by links.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cadenza/base/collective.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/plan/plan.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::simulate {

/// The way from one rank to another.
struct Way {
  double latency_seconds = 0;
  double bytes_per_second = 0;
  bool between_nodes = false;
};

/// Of one thread at a time: the calls note what they extrapolate.
class Costs {
 public:
  /// @throws Error(usage) where cluster.machine names numbers of another dtype than run.dtype
  Costs(const config::Machine& machine, const config::Experiment& experiment,
        const program::Layout& layout);
  Costs(Costs&&) noexcept;
  Costs& operator=(Costs&&) noexcept;
  ~Costs();

  /// One call of the attention kernel: all tasks of a rank in a stage. `tasks` are of one server.
  double attend(std::span<const plan::PlacedTask* const> tasks, program::Pass pass) const;

  /// load, embed, attention_inputs, begin_attention, attention_outputs, loss, embed_gradient,
  /// gradient_norm, optimize of a rank, without its messages and collectives. 0 for all others.
  /// @param rows  tokens of this rank in the operation
  double compute(const program::Step& step, Rank rank, std::int64_t rows) const;

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

}  // namespace cadenza::simulate
