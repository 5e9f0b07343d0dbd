// SPDX-License-Identifier: Apache-2.0
// Where every world rank stands: its coordinates in the grid of data x pipeline x tensor x context,
// and its attention pool, the ranks that one plan speaks of.
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

/// Trainers come first: the tensor coordinate changes fastest, then context, data and pipeline.
/// Dedicated attention servers follow, `tensor` neighbours at a time serving together.
///
/// A pool has one tensor coordinate: its ranks hold the same heads. It spans all pipeline stages
/// where they are in the same phase (phase_aligned), otherwise every stage has pools of its own.
class Layout {
 public:
  explicit Layout(const config::Experiment& experiment);

  int ranks() const { return trainers_ + servers_; }
  int trainers() const { return trainers_; }
  bool trains(Rank rank) const { return rank < trainers_; }
  /// Whether the trainers compute attention tasks: all do, or dedicated servers alone.
  bool trainers_serve() const { return trainers_serve_; }
  bool serves(Rank rank) const { return trainers_serve_ || !trains(rank); }
  int data() const { return data_; }
  int pipeline() const { return pipeline_; }
  int tensor() const { return tensor_; }
  int context() const { return context_; }

  /// Of a trainer.
  Coordinates coordinates(Rank trainer) const;
  Rank rank(const Coordinates& coordinates) const;
  /// The tensor coordinate of any rank.
  int tensor_of(Rank rank) const;

  int pools() const { return tensor_ * (pooled_stages_ ? 1 : pipeline_); }
  int pool_of(Rank rank) const;
  int pool_size() const { return groups() * context_ + dedicated(); }
  /// The rank's number in its pool: what plans call a rank.
  Rank in_pool(Rank rank) const;
  Rank world_rank(int pool, Rank in_pool) const;
  /// World ranks of a pool, in its order.
  std::vector<Rank> members(int pool) const;
  /// Context groups in a pool: (stage, data rank) pairs, stage by stage, or data ranks.
  int groups() const { return data_ * (pooled_stages_ ? pipeline_ : 1); }
  /// Dedicated servers in a pool.
  int dedicated() const { return servers_ / tensor_; }
  bool pools_stages() const { return pooled_stages_; }

 private:
  int data_, pipeline_, tensor_, context_;
  int trainers_, servers_;
  bool trainers_serve_;
  bool pooled_stages_;
};

}  // namespace cadenza::program
