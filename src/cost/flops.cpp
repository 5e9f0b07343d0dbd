// SPDX-License-Identifier: Apache-2.0
#include "cadenza/cost/flops.hpp"

#include <algorithm>

#include "cadenza/base/task.hpp"

namespace cadenza::cost {
namespace {

using config::Model;

/// A product of [rows, d_model] with `weights` columns or rows in all, on one of `tensor` ranks.
double product(const Model& m, std::int64_t weights, std::int64_t tensor, std::int64_t rows) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(m.d_model) *
         static_cast<double>(weights) / static_cast<double>(tensor);
}

/// Both parts of a step's forward pass, all layers.
struct Forward {
  double dense = 0;
  double attention = 0;  ///< of the pairs that the mask allows
};

Forward forward_pass(const Model& m, const Mask& mask, std::span<const std::int64_t> lengths) {
  std::int64_t tokens = 0;
  double attention = 0;
  for (const std::int64_t length : lengths) {
    tokens += length;
    const Range whole{0, length};
    mask.for_each_task({0, whole, whole, {0, m.heads}}, [&](const Task& task) {
      attention += forward_flops(task, static_cast<int>(m.head_dim()));
    });
  }
  const auto layers = static_cast<double>(m.layers);
  return {layers * (attention_inputs_flops(m, 1, tokens) + attention_outputs_flops(m, 1, tokens)) +
              head_flops(m, 1, tokens),
          layers * attention};
}

}  // namespace

double attention_inputs_flops(const Model& m, std::int64_t tensor, std::int64_t rows) {
  return product(m, (m.heads + 2 * m.kv_heads) * m.head_dim(), tensor, rows);
}

double attention_outputs_flops(const Model& m, std::int64_t tensor, std::int64_t rows) {
  return product(m, m.d_model + 3 * m.ffn, tensor, rows);
}

double head_flops(const Model& m, std::int64_t tensor, std::int64_t rows) {
  return product(m, m.vocab, tensor, rows);
}

std::int64_t layer_parameters(const Model& m) {
  const std::int64_t attention = (2 * m.heads + 2 * m.kv_heads) * m.head_dim();
  return m.d_model * (attention + 3 * m.ffn);
}

double break_even(const Model& m) {
  // FLOPs of a token in the forward pass: 2 d_model per earlier token in attention (half of the
  // 4 d_model of a full row), 2 per weight elsewhere.
  const std::int64_t kv = m.kv_heads * m.head_dim();
  const std::int64_t layer = 2 * m.d_model + 2 * kv + 3 * m.ffn;  // weights / d_model
  return static_cast<double>(layer) + static_cast<double>(m.vocab) / static_cast<double>(m.layers);
}

std::int64_t logit_rows(std::int64_t vocab, std::int64_t rows, config::DeviceKind device) {
  const bool on_host = device == config::DeviceKind::host;
  const std::int64_t elements = std::int64_t{1} << (on_host ? 22 : 28);
  const std::int64_t multiple = on_host ? 1 : 128;  // of rows: a tile of a device's products
  const std::int64_t fit = std::max<std::int64_t>(1, elements / vocab / multiple) * multiple;
  return std::min(fit, rows);
}

double model_flops(const Model& m, const Mask& mask, std::span<const std::int64_t> lengths) {
  const Forward forward = forward_pass(m, mask, lengths);
  return 3.0 * (forward.dense + forward.attention);
}

double step_flops(const Model& m, const Mask& mask, std::span<const std::int64_t> lengths) {
  const Forward forward = forward_pass(m, mask, lengths);
  return 3.0 * forward.dense + (1.0 + kBackwardFlopsRatio) * forward.attention;
}

double attention_flops(const Model& m, const Mask& mask, std::span<const std::int64_t> lengths,
                       config::Recompute recompute) {
  const bool again =
      recompute == config::Recompute::attention || recompute == config::Recompute::layer;
  return (1.0 + kBackwardFlopsRatio + (again ? 1.0 : 0.0)) *
         forward_pass(m, mask, lengths).attention;
}

}  // namespace cadenza::cost
