// SPDX-License-Identifier: Apache-2.0
#include "cadenza/plan/plan.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "cadenza/base/at.hpp"
#include "cadenza/base/hash.hpp"

namespace cadenza::plan {
namespace {

constexpr auto kNames =
    std::to_array<std::string_view>({"Q", "K", "V", "O", "LSE", "dO", "delta", "dQ", "dK", "dV",
                                     "observed Q", "observed K", "peak", "sum", "mass", "pattern"});

void add_range(Hasher& hasher, Range range) {
  hasher.add(static_cast<std::uint64_t>(range.begin)).add(static_cast<std::uint64_t>(range.end));
}

template <typename... Integers>
void add_integers(Hasher& hasher, Integers... values) {
  (hasher.add(static_cast<std::uint64_t>(values)), ...);
}

/// Hashes a band with its kind: 0, all keys up to a diagonal; 1, all keys; 2, from one diagonal to
/// another.
void add_band(Hasher& hasher, Band band) {
  if (band.has_low()) return add_integers(hasher, 2, band.low, band.high);
  add_integers(hasher, band.has_high() ? 0 : 1, band.has_high() ? band.high : 0);
}

void add_positions(Hasher& hasher, PositionMap map) {
  if (map == PositionMap{}) return;
  add_integers(hasher, map.first, map.step, map.cap);
}

void add_workload(Hasher& hasher, const Workload& workload) {
  const AttentionShape& shape = workload.shape;
  add_integers(hasher, workload.ranks, shape.heads, shape.kv_heads, shape.head_dim,
               shape.element_bytes, shape.accumulator_bytes, workload.context,
               workload.order.stripes, workload.order.run);
  add_integers(hasher, workload.lengths.size());
  for (std::int64_t length : workload.lengths) add_integers(hasher, length);
  add_integers(hasher, workload.homes.size());
  for (const Home& home : workload.homes) {
    add_integers(hasher, home.rank, home.document);
    add_range(hasher, home.tokens);
  }
  add_integers(hasher, workload.servers.size());
  for (Rank server : workload.servers) add_integers(hasher, server);
  for (std::int64_t capacity : workload.capacities) add_integers(hasher, capacity);
  add_integers(hasher, workload.queries.size());
  for (Range queries : workload.queries) add_range(hasher, queries);
  for (int layer : workload.layers) add_integers(hasher, layer);
  if (workload.mask != Mask{}) {
    for (std::int64_t parameter : workload.mask.parameters()) add_integers(hasher, parameter);
  }
  if (workload.sparse == SparseRule{}) return;
  const SparseRule& rule = workload.sparse;
  add_integers(hasher, rule.kind, rule.block, rule.columns, rule.slashes, rule.sinks, rule.window,
               rule.dense_below, std::bit_cast<std::uint64_t>(rule.top_p), rule.stride,
               std::bit_cast<std::uint64_t>(rule.threshold));
  for (const std::int64_t length : workload.reused) add_integers(hasher, length);
  for (const SparseDensity& density : workload.density) {
    for (std::int64_t bin = 0; bin < SparseDensity::kBins; ++bin) {
      add_integers(hasher, density.share(bin));
    }
  }
}

void add_stage(Hasher& hasher, const Stage& stage) {
  add_integers(hasher, stage.moves.size());
  for (const Move& move : stage.moves) {
    add_integers(hasher, move.from, move.to, move.what, move.document, move.bytes);
    add_range(hasher, move.tokens);
    add_range(hasher, move.heads);
  }
  add_integers(hasher, stage.tasks.size());
  for (const PlacedTask& placed : stage.tasks) {
    add_integers(hasher, placed.server, placed.task.document);
    add_band(hasher, placed.task.band);
    add_positions(hasher, placed.task.q_positions);
    add_range(hasher, placed.task.q);
    add_range(hasher, placed.task.k);
    add_range(hasher, placed.task.heads);
    hasher.add(std::bit_cast<std::uint64_t>(placed.cost));
  }
}

void add_merge(Hasher& hasher, const Merge& merge) {
  add_integers(hasher, merge.owner, merge.document);
  add_range(hasher, merge.tokens);
  add_range(hasher, merge.heads);
  add_integers(hasher, merge.contributors.size());
  for (Rank rank : merge.contributors) add_integers(hasher, rank);
}

/// Tokens of a block of sparse attention that a rank holds; 0 where the document is dense.
std::int64_t block_of(const Workload& workload, int document) {
  const SparseRule& rule = workload.sparse;
  const std::int64_t length = workload.lengths[at(document)];
  if (workload.density.empty() || rule.is_dense(length)) return 0;
  if (workload.order.natural()) return rule.block;
  // A rank with a stripe of short runs holds a part of every block.
  return std::clamp(std::max(workload.order.run, rule.block / workload.order.stripes),
                    std::int64_t{1}, rule.block);
}

}  // namespace

std::string_view name(Tensor what) {
  return kNames[at(what)];
}

bool is_key_side(Tensor what) {
  return what == Tensor::k || what == Tensor::v || what == Tensor::dk || what == Tensor::dv ||
         what == Tensor::observed_keys;
}

bool is_result(Tensor what) {
  return what == Tensor::o || what == Tensor::lse || what == Tensor::dq || what == Tensor::dk ||
         what == Tensor::dv;
}

bool is_result(Tensor what, Pass pass) {
  return is_result(what) && (pass == Pass::forward || what != Tensor::lse);
}

bool travels_in_place(const Move& move) {
  const bool read = move.what == Tensor::q || move.what == Tensor::k || move.what == Tensor::v ||
                    move.what == Tensor::dout;
  return read && move.bytes >= kInPlaceBytes;
}

std::int64_t move_bytes(const AttentionShape& shape, Tensor what, Range tokens, Range heads) {
  const bool statistic = what == Tensor::lse || what == Tensor::delta;
  const int size = statistic || is_result(what) ? shape.accumulator_bytes : shape.element_bytes;
  return tokens.size() * heads.size() * (statistic ? 1 : shape.head_dim) * size;
}

Move make_move(const AttentionShape& shape, Rank from, Rank to, Tensor what, int document,
               Range tokens, Range heads) {
  return {from, to, what, document, tokens, heads, move_bytes(shape, what, tokens, heads)};
}

void add_totals(Plan& plan) {
  plan.cost_per_rank.assign(static_cast<std::size_t>(plan.workload.ranks), 0.0);
  plan.bytes_sent_per_rank.assign(static_cast<std::size_t>(plan.workload.ranks), 0);
  for (const std::vector<Stage>* stages : {&plan.index, &plan.stages}) {
    for (const Stage& stage : *stages) {
      for (const PlacedTask& placed : stage.tasks) {
        plan.cost_per_rank[at(placed.server)] += placed.cost;
      }
      for (const Move& move : stage.moves) {
        plan.bytes_sent_per_rank[at(move.from)] += move.bytes;
      }
    }
  }
}

Weights Workload::weights_of(int document) const {
  const Mask whole = mask_of(document);
  if (density.empty()) return Weights(whole);
  const std::int64_t length = lengths[at(document)];
  if (sparse.is_dense(length)) return Weights(whole, SparseDensity::kUnit);
  return Weights(whole, &density[at(document)], length);
}

PlacedTask place_task(const Workload& workload, Rank server, const Task& task) {
  const double kept = kept_share(workload, task);
  return {server,
          task,
          forward_flops(task, workload.shape.head_dim) * kept,
          kept,
          block_of(workload, task.document),
          workload.sparse.adjoining()};
}

double kept_share(const Workload& workload, const Task& task) {
  const std::int64_t length = workload.lengths[at(task.document)];
  if (workload.density.empty() || workload.sparse.is_dense(length)) return 1;
  // With stripes a task has queries from everywhere.
  const Range rows = workload.order.natural() ? task.q : Range{0, length};
  const SparseDensity& density = workload.density[at(task.document)];
  double expected = 0;
  double all = 0;
  for (std::int64_t bin = 0; bin < SparseDensity::kBins; ++bin) {
    const Range part = intersect(rows, SparseDensity::rows(bin, length));
    if (part.empty()) continue;
    const std::int64_t pairs = workload.order.natural() ? allowed_pairs(part, task.k, task.band)
                                                        : allowed_pairs(part, rows, Band::causal());
    expected += static_cast<double>(density.share(bin)) * static_cast<double>(pairs);
    all += static_cast<double>(pairs);
  }
  return all == 0 ? 1 : expected / (all * double{SparseDensity::kUnit});
}

std::int64_t Workload::pool_capacity() const {
  std::int64_t sum = 0;
  for (const Rank server : servers) sum += capacity(server);
  return sum;
}

std::vector<double> fair_costs(const Plan& plan) {
  double total = 0;
  for (const Rank server : plan.workload.servers) {
    total += plan.cost_per_rank[at(server)];
  }
  const double pool = usual_ranks(plan.workload.pool_capacity());
  std::vector<double> costs(plan.cost_per_rank.size());
  for (std::size_t rank = 0; rank < costs.size(); ++rank) {
    costs[rank] = total * usual_ranks(plan.workload.capacity(static_cast<Rank>(rank))) / pool;
  }
  return costs;
}

double imbalance(const Plan& plan) {
  double largest = 0;  // per usual rank
  double total = 0;
  for (const Rank server : plan.workload.servers) {
    const double cost = plan.cost_per_rank[at(server)];
    largest = std::max(largest, cost / usual_ranks(plan.workload.capacity(server)));
    total += cost;
  }
  if (total <= 0) return 1.0;
  return largest * usual_ranks(plan.workload.pool_capacity()) / total;
}

int last_tasks_of_results(const Plan& plan, std::size_t stage, Pass pass) {
  std::vector<const Move*> results;
  for (const Move& move : plan.stages[stage].moves) {
    if (is_result(move.what, pass)) results.push_back(&move);
  }
  if (results.empty()) return -1;
  const auto computes = [&](const PlacedTask& placed, const Move& move) {
    const Task& task = placed.task;
    const bool keys = is_key_side(move.what);
    const Range heads = keys ? plan.workload.shape.key_heads(task.heads) : task.heads;
    return placed.server == move.from && task.document == move.document &&
           (keys ? task.k : task.q).overlaps(move.tokens) && heads.overlaps(move.heads);
  };
  for (std::size_t before = stage; before-- > 0;) {
    std::vector<std::vector<const PlacedTask*>> of_server(at(plan.workload.ranks));
    for (const PlacedTask& placed : plan.stages[before].tasks) {
      of_server[at(placed.server)].push_back(&placed);
    }
    for (const Move* move : results) {
      const auto found = [&](const PlacedTask* placed) { return computes(*placed, *move); };
      if (std::ranges::any_of(of_server[at(move->from)], found)) return static_cast<int>(before);
    }
  }
  return static_cast<int>(stage) - 1;
}

std::uint64_t hash(const Plan& plan) {
  Hasher hasher;
  add_workload(hasher, plan.workload);
  for (const Stage& round : plan.index) add_stage(hasher, round);
  add_integers(hasher, plan.keeps_inputs, plan.gathers_all + 2 * plan.paced, plan.stages.size());
  for (const Stage& stage : plan.stages) add_stage(hasher, stage);
  add_integers(hasher, plan.merges.size());
  for (const Merge& merge : plan.merges) add_merge(hasher, merge);
  for (double cost : plan.cost_per_rank) hasher.add(std::bit_cast<std::uint64_t>(cost));
  for (std::int64_t bytes : plan.bytes_sent_per_rank) add_integers(hasher, bytes);
  return hasher.value();
}

}  // namespace cadenza::plan
