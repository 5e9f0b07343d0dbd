// SPDX-License-Identifier: Apache-2.0
// The place of every world rank: its coordinates in the grid of data x pipeline x tensor x context,
// and its attention pool, the ranks of one plan.
#pragma once

#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::program {

struct Coordinates {
  int data = 0;
  int pipeline = 0;
  int tensor = 0;
  int context = 0;
  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};

/// World ranks by coordinates. Trainers come first: the tensor coordinate changes fastest, then
/// context, data and pipeline. Dedicated attention servers follow; each group of `tensor`
/// neighbours serves together.
///
/// A pool has one tensor coordinate, so its ranks hold the same heads. It spans all pipeline stages
/// if they are in the same phase (phase_aligned); otherwise every stage has pools of its own.
class Layout {
 public:
  explicit Layout(const config::Experiment& experiment);

  int ranks() const { return trainers_ + servers_; }
  int trainers() const { return trainers_; }
  bool trains(Rank rank) const { return rank < trainers_; }
  /// Whether all trainers compute attention tasks; otherwise only dedicated servers do.
  bool trainers_serve() const { return trainers_serve_; }
  bool serves(Rank rank) const { return trainers_serve_ || !trains(rank); }
  int data() const { return data_; }
  int pipeline() const { return pipeline_; }
  int tensor() const { return tensor_; }
  int context() const { return context_; }

  Coordinates coordinates(Rank trainer) const;
  Rank rank(const Coordinates& coordinates) const;
  /// The tensor coordinate of any rank.
  int tensor_of(Rank rank) const;

  int pools() const { return tensor_ * (pooled_stages_ ? 1 : pipeline_); }
  int pool_of(Rank rank) const;
  int pool_size() const { return groups() * context_ + dedicated(); }
  /// The rank's number in its pool, which plans use as rank.
  Rank in_pool(Rank rank) const;
  Rank world_rank(int pool, Rank in_pool) const;
  /// World ranks of a pool, in its order.
  std::vector<Rank> members(int pool) const;
  /// Number of context groups in a pool: one per data rank or, where stages are pooled, per (stage,
  /// data rank), stage by stage.
  int groups() const { return data_ * (pooled_stages_ ? pipeline_ : 1); }
  /// Number of dedicated servers in a pool.
  int dedicated() const { return servers_ / tensor_; }
  bool pools_stages() const { return pooled_stages_; }

 private:
  int data_, pipeline_, tensor_, context_;
  int trainers_, servers_;
  bool trainers_serve_;
  bool pooled_stages_;
};

}  // namespace cadenza::program
