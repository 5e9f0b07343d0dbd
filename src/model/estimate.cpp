// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/estimate.hpp"

#include "cadenza/base/task.hpp"
#include "cadenza/model/parameters.hpp"

namespace cadenza::model {
namespace {
double as_double(std::int64_t value) {
  return static_cast<double>(value);
}
}  // namespace

double attention_inputs_flops(const config::Model& m, const ModelPart& part, std::int64_t rows) {
  return 2.0 * as_double(rows) * as_double(m.d_model) * as_double(PartShape(m, part).joined());
}

double attention_outputs_flops(const config::Model& m, const ModelPart& part, std::int64_t rows) {
  const PartShape shape(m, part);
  return 2.0 * as_double(rows) * as_double(m.d_model) * as_double(shape.queries + 3 * shape.ffn);
}

double head_flops(const config::Model& m, const ModelPart& part, std::int64_t rows) {
  return 2.0 * as_double(rows) * as_double(m.d_model) * as_double(PartShape(m, part).vocab.size());
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
  const ModelPart part = whole_model(m);
  const double dense = as_double(m.layers) * (attention_inputs_flops(m, part, tokens) +
                                              attention_outputs_flops(m, part, tokens)) +
                       head_flops(m, part, tokens);
  return 3.0 * dense + (1.0 + kBackwardFlopsRatio) * as_double(m.layers) * attention;
}

std::int64_t parameter_elements(const config::Model& m) {
  return make_parameter_table(m, whole_model(m)).elements;
}

std::int64_t parameter_bytes(const config::Model& m, const ModelPart& part, config::Dtype dtype,
                             std::int64_t owned) {
  const auto [real, sum] = config::element_bytes(dtype);
  // The working copy is the values where the types are the same.
  const std::int64_t working = real == sum ? 0 : real;
  return make_parameter_table(m, part).elements * (2 * sum + working) + owned * 2 * sum;
}

std::int64_t activation_bytes(const config::Model& m, const ModelPart& part,
                              const Capacity& capacity, config::Recompute recompute,
                              config::Dtype dtype) {
  switch (dtype) {
    case config::Dtype::bfloat16:
      return count_activation_bytes<bfloat16>(m, part, capacity, recompute);
    case config::Dtype::float32:
      return count_activation_bytes<float>(m, part, capacity, recompute);
    default:
      return count_activation_bytes<double>(m, part, capacity, recompute);
  }
}

}  // namespace cadenza::model
