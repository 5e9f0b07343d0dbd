// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/layout.hpp"

namespace cadenza::program {

Layout::Layout(const config::Experiment& e)
    : data_(static_cast<int>(e.parallel.data)),
      pipeline_(static_cast<int>(e.parallel.pipeline)),
      tensor_(static_cast<int>(e.parallel.tensor)),
      context_(static_cast<int>(e.parallel.context)),
      trainers_(static_cast<int>(e.parallel.trainers())),
      servers_(static_cast<int>(e.attention.servers)),
      trainers_serve_(e.attention.servers == 0 || e.attention.mixed),
      pooled_stages_(e.pipeline_schedule() == config::PipelineSchedule::phase_aligned ||
                     e.parallel.pipeline == 1) {}

Coordinates Layout::coordinates(Rank trainer) const {
  Coordinates at;
  at.tensor = trainer % tensor_;
  trainer /= tensor_;
  at.context = trainer % context_;
  trainer /= context_;
  at.data = trainer % data_;
  at.pipeline = trainer / data_;
  return at;
}

Rank Layout::rank(const Coordinates& at) const {
  return ((at.pipeline * data_ + at.data) * context_ + at.context) * tensor_ + at.tensor;
}

int Layout::tensor_of(Rank rank) const {
  return trains(rank) ? rank % tensor_ : (rank - trainers_) % tensor_;
}

int Layout::pool_of(Rank rank) const {
  if (pooled_stages_ || !trains(rank)) return tensor_of(rank);
  return coordinates(rank).pipeline * tensor_ + tensor_of(rank);
}

Rank Layout::in_pool(Rank rank) const {
  if (!trains(rank)) return groups() * context_ + (rank - trainers_) / tensor_;
  return rank / tensor_ % (groups() * context_);
}

Rank Layout::world_rank(int pool, Rank in_pool) const {
  const int members = groups() * context_;
  const int tensor = pool % tensor_;
  if (in_pool >= members) return trainers_ + (in_pool - members) * tensor_ + tensor;
  return (pool / tensor_ * members + in_pool) * tensor_ + tensor;
}

std::vector<Rank> Layout::members(int pool) const {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < pool_size(); ++rank) ranks.push_back(world_rank(pool, rank));
  return ranks;
}

}  // namespace cadenza::program
