// SPDX-License-Identifier: Apache-2.0
#include "cadenza/cost/flops.hpp"

#include <algorithm>
#include <numeric>

#include "cadenza/base/task.hpp"

namespace cadenza::cost {
namespace {

using config::Model;

/// FLOPs of a product of [rows, d_model] with a matrix of `weights` columns or rows, on one of
/// `tensor` ranks.
double product(const Model& m, std::int64_t weights, std::int64_t tensor, std::int64_t rows) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(m.d_model) *
         static_cast<double>(weights) / static_cast<double>(tensor);
}

/// FLOPs of a step's forward pass, all layers.
struct Forward {
  double dense = 0;
  double attention = 0;  ///< for the pairs that the masks allow
};

/// Of core attention in one layer.
double layer_flops(const Model& m, const Mask& mask, std::span<const std::int64_t> lengths) {
  double flops = 0;
  for (const std::int64_t length : lengths) {
    const Range whole{0, length};
    mask.for_each_task({0, whole, whole, {0, m.heads}}, [&](const Task& task) {
      flops += forward_flops(task, static_cast<int>(m.head_dim()));
    });
  }
  return flops;
}

double attention_pass(const Model& m, const config::Attention& attention,
                      std::span<const std::int64_t> lengths) {
  const std::int64_t full = attention.full_layers({0, m.layers});
  double flops = static_cast<double>(m.layers - full) * layer_flops(m, attention.mask(), lengths);
  if (full > 0) flops += static_cast<double>(full) * layer_flops(m, Mask{}, lengths);
  return flops;
}

Forward forward_pass(const Model& m, const config::Attention& attention,
                     std::span<const std::int64_t> lengths) {
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const double layer = attention_inputs_flops(m, 1, tokens) + attention_outputs_flops(m, 1, tokens);
  return {static_cast<double>(m.layers) * layer + head_flops(m, 1, tokens),
          attention_pass(m, attention, lengths)};
}

}  // namespace

double attention_inputs_flops(const Model& m, std::int64_t tensor, std::int64_t rows) {
  return product(m, (m.heads + 2 * m.kv_heads) * m.head_dim(), tensor, rows);
}

double attention_outputs_flops(const Model& m, std::int64_t tensor, std::int64_t rows) {
  return product(m, m.query_width() + 3 * m.ffn, tensor, rows);
}

double head_flops(const Model& m, std::int64_t tensor, std::int64_t rows) {
  return product(m, m.vocab, tensor, rows);
}

std::int64_t layer_parameters(const Model& m) {
  const std::int64_t attention = (2 * m.heads + 2 * m.kv_heads) * m.head_dim();
  return m.d_model * (attention + 3 * m.ffn);
}

double break_even(const Model& m) {
  // A token's forward FLOPs: 2 query_width per token of its document in attention (half of the 4
  // of a full row), 2 per weight elsewhere.
  const std::int64_t kv = m.kv_heads * m.head_dim();
  const std::int64_t layer = 2 * m.query_width() + 2 * kv + 3 * m.ffn;  // weights / d_model
  const double weights =
      static_cast<double>(layer) + static_cast<double>(m.vocab) / static_cast<double>(m.layers);
  return weights * (static_cast<double>(m.d_model) / static_cast<double>(m.query_width()));
}

double break_even(const config::Experiment& experiment) {
  const std::int64_t given = experiment.batch.break_even;
  return given > 0 ? static_cast<double>(given) : break_even(experiment.model);
}

DocumentCost::DocumentCost(const config::Experiment& e)
    : break_even(cost::break_even(e)), mask(e.attention.mask()) {
  const std::int64_t layers = e.attention.full_layers({0, e.model.layers});
  if (layers > 0) full = static_cast<double>(layers) / static_cast<double>(e.model.layers);
}

double DocumentCost::pairs(std::int64_t length) const {
  const auto mine = static_cast<double>(mask.within(length).pairs({0, length}));
  if (full == 0) return mine;
  return (1 - full) * mine + full * static_cast<double>(Mask{}.pairs({0, length}));
}

double DocumentCost::operator()(std::int64_t length) const {
  const auto tokens = static_cast<double>(length);
  return (2 * pairs(length) - tokens) / break_even + tokens;
}

std::int64_t logit_rows(std::int64_t vocab, std::int64_t rows, config::DeviceKind device) {
  const bool on_host = device == config::DeviceKind::host;
  const std::int64_t elements = std::int64_t{1} << (on_host ? 22 : 28);
  const std::int64_t multiple = on_host ? 1 : 128;  // rows: a tile of a device's products
  const std::int64_t fit = std::max<std::int64_t>(1, elements / vocab / multiple) * multiple;
  return std::min(fit, rows);
}

double model_flops(const Model& m, const config::Attention& attention,
                   std::span<const std::int64_t> lengths, bool evaluates) {
  const Forward forward = forward_pass(m, attention, lengths);
  return (evaluates ? 1.0 : 3.0) * (forward.dense + forward.attention);
}

double step_flops(const Model& m, const config::Attention& attention,
                  std::span<const std::int64_t> lengths) {
  const Forward forward = forward_pass(m, attention, lengths);
  return 3.0 * forward.dense + (1.0 + kBackwardFlopsRatio) * forward.attention;
}

double attention_flops(const Model& m, const config::Attention& attention,
                       std::span<const std::int64_t> lengths, config::Recompute recompute,
                       bool evaluates) {
  const double forward = attention_pass(m, attention, lengths);
  if (evaluates) return forward;
  const bool again =
      recompute == config::Recompute::attention || recompute == config::Recompute::layer;
  return (1.0 + kBackwardFlopsRatio + (again ? 1.0 : 0.0)) * forward;
}

namespace {

/// a / b, rounded up; a may be negative.
std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return a >= 0 ? (a + b - 1) / b : -(-a / b);
}
/// a / b, rounded down; a may be negative.
std::int64_t divide_down(std::int64_t a, std::int64_t b) {
  return -divide_up(-a, b);
}

/// The sequence first, first + 1, ... of `count` numbers, each clamped to [0, most].
struct Steps {
  Steps(std::int64_t first, std::int64_t count, std::int64_t most)
      : below(std::clamp<std::int64_t>(1 - first, 0, count)),
        above(count - std::clamp<std::int64_t>(most - first, below, count)) {
    const std::int64_t rising = count - below - above;
    sum = rising * (first + below) + rising * (rising - 1) / 2 + above * most;
  }
  std::int64_t below = 0;  ///< how many are 0
  std::int64_t above = 0;  ///< how many are `most`
  std::int64_t sum = 0;
};

}  // namespace

Tiles count_tiles(const Task& task, std::int64_t tile) {
  // Queries after those that see the last key see no key.
  const Range q{task.q.begin, std::min(task.q.end, task.k.end - task.band.low)};
  if (q.empty() || task.k.empty()) return {};
  // Full tile i of queries sees the tiles of keys from the i-th number of `begins` to that of
  // `ends`. The last tile, which may be partial, is counted separately.
  const std::int64_t full = divide_up(q.size(), tile) - 1;
  const std::int64_t most = divide_up(task.k.size(), tile);
  const std::int64_t start = q.begin - task.k.begin;
  const Steps ends(1 + divide_up(start + task.band.high, tile), full, most);
  const Steps begins(divide_down(start + task.band.low, tile), full, most);
  const Range last = seen_keys({q.begin + full * tile, q.end}, task.k, task.band);
  Tiles tiles;
  tiles.keys = ends.sum - begins.sum;
  tiles.queries = full - ends.below - begins.above;
  if (!last.empty()) {
    tiles.keys += divide_up(last.end - task.k.begin, tile) - (last.begin - task.k.begin) / tile;
    ++tiles.queries;
  }
  return tiles;
}

double tile_weight(const Task& task, std::int64_t tile, double overhead) {
  const Tiles tiles = count_tiles(task, tile);
  return static_cast<double>(tiles.keys) + overhead * static_cast<double>(tiles.queries);
}

}  // namespace cadenza::cost
