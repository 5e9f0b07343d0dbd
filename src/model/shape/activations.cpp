// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/shape/activations.hpp"

#include "model/shape/activation_builder.hpp"

namespace cadenza::model {
namespace {

/// An array of which only the elements' type matters.
template <typename T>
struct Counted {};

template <typename Real, typename Sum>
std::int64_t count_bytes(const config::Model& model, const ModelPart& part,
                         const Capacity& capacity, config::Recompute recompute) {
  std::int64_t bytes = 0;
  const auto make = [&]<typename T>(const Counted<T>&, const char*, std::int64_t count) {
    bytes += count * static_cast<std::int64_t>(sizeof(T));
  };
  ActivationBuilder<Real, Sum, Counted, decltype(make)>(model, part, capacity, recompute, make)
      .build();
  return bytes;
}

}  // namespace

Keeps::Keeps(config::Recompute recompute)
    : attention(recompute != config::Recompute::attention && recompute != config::Recompute::layer),
      middle(recompute != config::Recompute::layer),
      gate_up(recompute != config::Recompute::mlp && recompute != config::Recompute::layer) {}

std::int64_t kept_bytes(const config::Model& model, const ModelPart& part, const Capacity& capacity,
                        config::Recompute recompute, config::Dtype dtype) {
  Capacity one = capacity;
  one.slots = one.layers_at_once = 1;
  Capacity two = one;
  two.slots = 2;
  ModelPart chunk = part;
  chunk.chunks = {{0, 2}};
  return activation_bytes(model, chunk, two, recompute, dtype) -
         activation_bytes(model, chunk, one, recompute, dtype);
}

std::int64_t norm_partials(std::int64_t rows, std::int64_t width) {
  return (rows + kNormBlockRows - 1) / kNormBlockRows * width;
}

std::int64_t activation_bytes(const config::Model& m, const ModelPart& part,
                              const Capacity& capacity, config::Recompute recompute,
                              config::Dtype dtype) {
  switch (dtype) {
    case config::Dtype::bfloat16:  // as wide as the type that the host may not have
      return count_bytes<std::uint16_t, float>(m, part, capacity, recompute);
    case config::Dtype::float32:
      return count_bytes<float, float>(m, part, capacity, recompute);
    case config::Dtype::float64:
      break;
  }
  return count_bytes<double, double>(m, part, capacity, recompute);
}

}  // namespace cadenza::model
