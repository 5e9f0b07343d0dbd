// SPDX-License-Identifier: Apache-2.0
#include "cost/attention_time.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cadenza/cost/flops.hpp"

namespace cadenza::cost {
namespace {

/// Number of the task's keys that its last query sees.
std::int64_t keys_seen(const Task& task) {
  return visible_keys(task.q.end - 1, task.k, task.band);
}

}  // namespace

AttentionTime::AttentionTime(const config::AttentionTimes& times, std::int64_t head_dim)
    : times_(times), head_dim_(head_dim) {
  tables_[0] = make_table(times.forward);
  tables_[1] = make_table(times.backward);
  for (const auto& [queries, keys, seconds] : times.forward) {
    measured_[0] = {std::max(measured_[0].queries, queries), std::max(measured_[0].keys, keys)};
  }
  for (const auto& [queries, keys, seconds] : times.backward) {
    measured_[1] = {std::max(measured_[1].queries, queries), std::max(measured_[1].keys, keys)};
  }
  for (const auto& [block, forward, backward] : times.sparse.table) {
    sparse_pairs_[0].add(block, forward);
    sparse_pairs_[1].add(block, backward);
  }
  for (const auto& [block, forward, backward] : times.sparse.adjoining) {
    adjoining_pairs_[0].add(block, forward);
    adjoining_pairs_[1].add(block, backward);
  }
}

AttentionTime::Table AttentionTime::make_table(const std::vector<config::Row<3>>& rows) const {
  Table table;
  for (const auto& [queries, keys, seconds] : rows) {
    const auto end = static_cast<std::int64_t>(keys);
    const Task task{0, {end - static_cast<std::int64_t>(queries), end}, {0, end}, {0, 1}};
    const double tiles =
        tile_weight(task, times_.tile, times_.tile_overhead) * static_cast<double>(times_.heads);
    table[queries].add(keys, std::max(0.0, seconds - times_.launch_seconds) / tiles);
  }
  return table;
}

double AttentionTime::seconds(const Task& task, Pass pass) {
  const double tiles = tile_weight(task, times_.tile, times_.tile_overhead);
  if (tiles == 0) return 0;
  const Shape shape{static_cast<double>(task.q.size()), static_cast<double>(keys_seen(task))};
  return tiles * static_cast<double>(task.heads.size()) * tile_seconds(shape, pass);
}

double AttentionTime::sparse_pair(std::int64_t block, double adjoining, Pass pass) const {
  const auto side = static_cast<double>(block);
  double pair =
      times_.sparse.table.empty() ? times_.sparse.pair : sparse_pairs_[index(pass)].at(side);
  if (!times_.sparse.adjoining.empty()) {
    pair += adjoining * (adjoining_pairs_[index(pass)].at(side) - pair);
  }
  return pair * largest_tile_seconds(pass) / static_cast<double>(times_.tile * times_.tile);
}

double AttentionTime::tile_seconds(Shape shape, Pass pass) {
  const Table& table = tables_[index(pass)];
  if (table.empty()) return largest_tile_seconds(pass);
  // A partial tile costs as much as a full one.
  const auto tile = static_cast<double>(times_.tile);
  shape = {std::max(shape.queries, tile), std::max(shape.keys, tile)};
  note(shape, pass);
  const auto after = table.upper_bound(shape.queries);
  const auto& low = after == table.begin() ? *after : *std::prev(after);
  const auto& high = after == table.end() ? low : *after;
  Curve between;
  between.add(low.first, low.second.at(shape.keys));
  if (high.first > low.first) between.add(high.first, high.second.at(shape.keys));
  return between.at(shape.queries) * static_cast<double>(head_dim_) /
         static_cast<double>(times_.head_dim);
}

/// Seconds of a tile in the table's longest tasks; of any tile where the table is empty.
double AttentionTime::largest_tile_seconds(Pass pass) const {
  const Table& table = tables_[index(pass)];
  if (table.empty()) {
    const double flops = 4.0 * static_cast<double>(times_.tile * times_.tile * head_dim_);
    return flops * (pass == Pass::forward ? 1.0 : kBackwardFlopsRatio) / times_.flops_per_second;
  }
  const Curve& longest = table.rbegin()->second;
  return longest.at(longest.largest()) * static_cast<double>(head_dim_) /
         static_cast<double>(times_.head_dim);
}

void AttentionTime::note(Shape shape, Pass pass) {
  const Shape& measured = measured_[index(pass)];
  Shape& beyond = beyond_[index(pass)];
  if (shape.queries <= measured.queries && shape.keys <= measured.keys) return;
  beyond = {std::max(beyond.queries, shape.queries), std::max(beyond.keys, shape.keys)};
}

std::vector<std::string> AttentionTime::extrapolations() const {
  std::vector<std::string> lines;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const Shape& beyond = beyond_[index(pass)];
    const Shape& measured = measured_[index(pass)];
    if (beyond.keys == 0) continue;
    lines.push_back(fmt::format("attention {}: {} queries x {} keys, measured up to {} x {}",
                                pass == Pass::forward ? "forward" : "backward", beyond.queries,
                                beyond.keys, measured.queries, measured.keys));
  }
  if (measured_[0].keys > 0 && head_dim_ != times_.head_dim) {
    lines.push_back(
        fmt::format("attention: head_dim {}, measured with {}", head_dim_, times_.head_dim));
  }
  return lines;
}

}  // namespace cadenza::cost
