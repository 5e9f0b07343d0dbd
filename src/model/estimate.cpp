// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/estimate.hpp"

#include "cadenza/model/parameters.hpp"

namespace cadenza::model {
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
    case config::Dtype::float64:
      break;
  }
  return count_activation_bytes<double>(m, part, capacity, recompute);
}

}  // namespace cadenza::model
