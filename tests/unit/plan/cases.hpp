// SPDX-License-Identifier: Apache-2.0
// Workloads to plan: fixed ones and random ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "../../../src/config/words.hpp"
#include "cadenza/base/random.hpp"
#include "cadenza/plan/placement.hpp"
#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// CAD that cuts queries alone.
inline Plan cad(const Workload& workload, std::int64_t block, double tolerance) {
  config::Attention attention;
  attention.block = block;
  attention.tolerance = tolerance;
  attention.split_keys = false;
  return cad(workload, attention);
}

}  // namespace cadenza::plan

namespace cadenza::plan::test {

/// Documents by trainer rank, each whole on its rank; `dedicated` servers after the trainers, or in
/// place.
inline Workload workload(const std::vector<std::vector<std::int64_t>>& documents, int dedicated = 0,
                         AttentionShape shape = {4, 2, 8, 4}) {
  Workload w;
  const int trainers = static_cast<int>(documents.size());
  w.ranks = trainers + dedicated;
  w.shape = shape;
  for (Rank rank = dedicated > 0 ? trainers : 0; rank < w.ranks; ++rank) w.servers.push_back(rank);
  for (int rank = 0; rank < trainers; ++rank) {
    for (std::int64_t length : documents[static_cast<std::size_t>(rank)]) {
      w.homes.push_back({rank, static_cast<int>(w.lengths.size()), {0, length}});
      w.lengths.push_back(length);
    }
  }
  return w;
}

/// Reproducible draws.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_bits(seed_, 0, next_++) %
                                           static_cast<std::uint64_t>(high - low + 1));
  }
  double uniform() { return random_uniform(seed_, 1, next_++); }
  /// One of all that there are.
  template <typename Choice>
  Choice any() {
    return Choice(between(0, std::ssize(config::kWords<Choice>) - 1));
  }
  template <typename T>
  const T& of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(
        between(0, static_cast<std::int64_t>(values.size()) - 1))];
  }

 private:
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

/// Context groups, one list of document lengths each, as an experiment has them.
inline Workload group_workload(const config::Experiment& experiment,
                               const std::vector<std::vector<std::int64_t>>& groups,
                               int dedicated = 0) {
  std::vector<data::Microbatch> microbatches(groups.size());
  std::vector<Occupant> occupants;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    for (std::int64_t length : groups[i]) {
      data::BatchDocument document;
      document.tokens = {0, length};
      microbatches[i].documents.push_back(document);
    }
    occupants.push_back(&microbatches[i]);
  }
  return make_workload(experiment, occupants, dedicated);
}

/// An experiment of one layer: heads, key-value heads, head_dim 8, float32.
inline config::Experiment experiment(config::PlacementKind placement, std::int64_t context,
                                     std::int64_t heads = 4, std::int64_t kv_heads = 2) {
  config::Experiment e;
  e.model.heads = heads;
  e.model.kv_heads = kv_heads;
  e.model.d_model = heads * 8;
  e.parallel.context = context;
  e.attention.placement = placement;
  return e;
}

/// 1 to 9 ranks, in place or dedicated, lengths around the block and far from it.
inline Workload random_workload(Draw& draw, std::int64_t block) {
  const int ranks = static_cast<int>(draw.between(1, 9));
  const int dedicated = ranks > 1 ? static_cast<int>(draw.between(0, ranks - 1)) : 0;
  std::vector<std::vector<std::int64_t>> documents(static_cast<std::size_t>(ranks - dedicated));
  for (auto& list : documents) {
    for (std::int64_t n = draw.between(0, 5); n > 0; --n) {
      const std::vector<std::int64_t> lengths = {1,         block - 1, block,
                                                 block + 1, 3 * block, draw.between(1, 40 * block)};
      list.push_back(std::max<std::int64_t>(1, draw.of(lengths)));
    }
  }
  const std::vector<AttentionShape> shapes = {
      {1, 1, 4, 4}, {8, 8, 16, 8, 8}, {8, 2, 16, 2}, {6, 3, 2, 4}};
  return workload(documents, dedicated, draw.of(shapes));
}

/// Log-normal lengths with a long tail that fill `budget` tokens on every rank.
inline std::vector<std::vector<std::int64_t>> heavy_tailed(int ranks, std::int64_t budget,
                                                           std::uint64_t seed) {
  std::vector<std::vector<std::int64_t>> documents(static_cast<std::size_t>(ranks));
  std::uint64_t next = 0;
  for (auto& list : documents) {
    for (std::int64_t left = budget; left > 0; left -= list.back()) {
      const double length = 1500.0 * std::exp(1.6 * random_normal(seed, 2, next++));
      list.push_back(std::clamp<std::int64_t>(static_cast<std::int64_t>(length), 1, left));
    }
  }
  return documents;
}

inline double total_bytes(const Plan& plan) {
  double bytes = 0;
  for (std::int64_t sent : plan.bytes_sent_per_rank) bytes += static_cast<double>(sent);
  return bytes;
}

/// Two homes per document: the first half on rank 0, the second on rank 1.
inline Workload split_document(std::int64_t length, AttentionShape shape = {4, 2, 8, 4}) {
  Workload w;
  w.ranks = 2;
  w.servers = {0, 1};
  w.shape = shape;
  w.lengths = {length};
  w.homes = {{0, 0, {0, length / 2}}, {1, 0, {length / 2, length}}};
  return w;
}

}  // namespace cadenza::plan::test
