// SPDX-License-Identifier: Apache-2.0
#include "variation.hpp"

#include <cmath>

#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"

namespace cadenza::simulate {
namespace {

constexpr std::uint64_t kSpeedStream = Hasher().add("cluster.speed").value();
constexpr std::uint64_t kJitterStream = Hasher().add("cluster.jitter").value();

}  // namespace

Variation::Variation(const config::Experiment& experiment, std::int64_t step)
    : seed_(experiment.seed ^ mix64(static_cast<std::uint64_t>(step))),
      jitter_(experiment.cluster.jitter) {
  const config::Cluster& cluster = experiment.cluster;
  if (!cluster.varies()) return;
  for (std::int64_t rank = 0; rank < experiment.ranks(); ++rank) {
    // A rank is as fast in every step.
    rank_.push_back(
        std::exp(cluster.speed_spread *
                 random_normal(experiment.seed, kSpeedStream, static_cast<std::uint64_t>(rank))));
  }
  for (const auto& [rank, speed] : cluster.slow_ranks) {
    rank_.at(static_cast<std::size_t>(rank)) /= speed;
  }
}

double Variation::factor(Rank rank, std::uint64_t operation) const {
  if (rank_.empty()) return 1.0;
  const double time = rank_[static_cast<std::size_t>(rank)];
  if (jitter_ == 0) return time;
  const std::uint64_t stream = kJitterStream ^ mix64(static_cast<std::uint64_t>(rank));
  return time * std::exp(jitter_ * random_normal(seed_, stream, operation));
}

}  // namespace cadenza::simulate
