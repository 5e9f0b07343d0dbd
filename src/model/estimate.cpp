// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/estimate.hpp"

#include <algorithm>

#include "cadenza/base/task.hpp"

namespace cadenza::model {
namespace {
double as_double(std::int64_t value) {
  return static_cast<double>(value);
}
}  // namespace

double attention_inputs_flops(const config::Model& m, std::int64_t rows) {
  return 2.0 * as_double(rows) * as_double(m.d_model) *
         as_double((m.heads + 2 * m.kv_heads) * m.head_dim());
}

double attention_outputs_flops(const config::Model& m, std::int64_t rows) {
  return 2.0 * as_double(rows) * as_double(m.d_model) * as_double(m.d_model + 3 * m.ffn);
}

double head_flops(const config::Model& m, std::int64_t rows) {
  return 2.0 * as_double(rows) * as_double(m.d_model) * as_double(m.vocab);
}

double step_flops(const config::Model& m, std::span<const std::int64_t> lengths) {
  std::int64_t tokens = 0;
  double attention = 0;
  for (const std::int64_t length : lengths) {
    tokens += length;
    const Range whole{0, length};
    attention += forward_flops({0, whole, whole, {0, m.heads}, Rule::causal},
                               static_cast<int>(m.head_dim()));
  }
  const double dense = as_double(m.layers) * (attention_inputs_flops(m, tokens) +
                                              attention_outputs_flops(m, tokens)) +
                       head_flops(m, tokens);
  return 3.0 * dense + (1.0 + kBackwardFlopsRatio) * as_double(m.layers) * attention;
}

std::int64_t parameter_elements(const config::Model& m) {
  const std::int64_t kv_width = m.kv_heads * m.head_dim();
  const std::int64_t layer = m.d_model * (2 * m.d_model + 2 * kv_width + 3 * m.ffn) + 2 * m.d_model;
  const std::int64_t heads = m.tie_embeddings ? 1 : 2;
  return m.layers * layer + heads * m.vocab * m.d_model + m.d_model;
}

std::int64_t activation_elements(const config::Model& m, std::int64_t rows) {
  const std::int64_t kv_width = m.kv_heads * m.head_dim();
  const std::int64_t layer = 4 * m.d_model + 2 * kv_width + m.heads + 2 + 2 * m.ffn;
  const std::int64_t shared =
      6 * m.d_model + 1 + 2 * m.ffn + m.heads + 2 * kv_width;  // scratch and slot gradients
  const std::int64_t logit_rows =
      std::clamp<std::int64_t>((std::int64_t{1} << 22) / m.vocab, 1, rows);
  return rows * (m.layers * layer + shared) + logit_rows * m.vocab;
}

}  // namespace cadenza::model
