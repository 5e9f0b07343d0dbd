// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/estimate.hpp"

#include <algorithm>

#include "cadenza/base/task.hpp"
#include "cadenza/model/layers.hpp"
#include "cadenza/model/llama.hpp"

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

std::int64_t parameter_bytes(const config::Model& m, config::Dtype dtype) {
  const auto [real, sum] = config::element_bytes(dtype);
  // values, gradients and two moments; the working copy is the values where the types are the same
  const std::int64_t working = real == sum ? 0 : real;
  return parameter_elements(m) * (4 * sum + working);
}

std::int64_t activation_bytes(const config::Model& m, std::int64_t rows, config::Dtype dtype) {
  const auto [real, sum] = config::element_bytes(dtype);
  const bool rounds = real != sum;
  const std::int64_t width = m.d_model;
  const std::int64_t kv_width = m.kv_heads * m.head_dim();
  const std::int64_t layer = sum * (3 * width + m.heads + 2)  // streams, out, lse, rstd
                             + real * (width + 2 * kv_width + 2 * m.ffn);
  const std::int64_t shared_sums = 4 * width + 2 * kv_width + m.heads + 1;
  const std::int64_t shared_reals =
      (rounds ? 3 : 2) * width + std::max(m.ffn, width + 2 * kv_width);
  const std::int64_t ids = 3 * std::int64_t{sizeof(std::int32_t)};
  const std::int64_t logits = logit_rows(m.vocab, rows) * m.vocab;
  return rows * (m.layers * layer + sum * shared_sums + real * shared_reals + ids) +
         sum * (norm_partials(rows, width) + logits) + (rounds ? real * logits : 0);
}

}  // namespace cadenza::model
