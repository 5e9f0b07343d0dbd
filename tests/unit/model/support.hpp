// SPDX-License-Identifier: Apache-2.0
// What the tests of the model share: random numbers, small models, derivatives, device rows.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/model/llama.hpp"
#include "cadenza/model/parameters.hpp"
#include "unit/kernels/device_data.hpp"

namespace cadenza::model::test {

using Vector = std::vector<double>;

/// Largest relative error of one rounding to Real: half a unit of 8 bits in bfloat16.
template <typename Real>
inline constexpr double kRounding = std::numeric_limits<Real>::epsilon() / 2;
template <>
inline constexpr double kRounding<bfloat16> = 0x1p-8;

/// Normal numbers that float holds exactly, so that float and double start from the same ones.
inline Vector normal(std::int64_t count, std::mt19937_64& random, double deviation = 1) {
  std::normal_distribution<float> value(0, static_cast<float>(deviation));
  Vector numbers(static_cast<std::size_t>(count));
  for (double& number : numbers) number = value(random);
  return numbers;
}

/// The Euclidean norm.
inline double norm_of(const Vector& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

/// Of what operations on rows are tested with.
struct Shape {
  std::int64_t rows, width;
  std::size_t elements() const { return static_cast<std::size_t>(rows * width); }
};
inline const std::vector<Shape> kShapes = {{1, 1},  {1, 7},  {5, 1},   {3, 17},
                                           {4, 16}, {7, 33}, {131, 5}, {9, 1100}};

inline constexpr std::array kRecompute = {config::Recompute::none, config::Recompute::mlp,
                                          config::Recompute::attention, config::Recompute::layer};

inline std::vector<std::int32_t> ids(std::int64_t count, std::int64_t low, std::int64_t high,
                                     std::mt19937_64& random) {
  std::uniform_int_distribution<std::int32_t> value(static_cast<std::int32_t>(low),
                                                    static_cast<std::int32_t>(high));
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
  for (std::int32_t& number : numbers) number = value(random);
  return numbers;
}

/// What f() returns when one thread runs its kernels: Kokkos' OpenMP does not start threads inside
/// of a parallel region. (A device has no threads to choose.)
template <typename F>
auto on_one_thread(const F& f) {
  decltype(f()) result{};
#pragma omp parallel num_threads(1)
  result = f();
  return result;
}

/// Those of all values that are in `owned`, one range after another.
template <typename Sum>
std::vector<Sum> owned_of(const std::vector<Sum>& values, const std::vector<Range>& owned) {
  std::vector<Sum> mine;
  for (const Range& range : owned) {
    mine.insert(mine.end(), values.begin() + range.begin, values.begin() + range.end);
  }
  return mine;
}

/// The weights before rounding: all of a rank that owns all.
template <typename Real>
Array<Accumulator<Real>> masters(const Parameters<Real>& parameters) {
  if constexpr (std::is_same_v<Real, Accumulator<Real>>) {
    return parameters.weights;
  } else {
    return parameters.masters;
  }
}

template <typename Real>
Array<Real> upload_as(const Vector& values) {
  std::vector<Real> converted;
  for (const double value : values) {
    converted.push_back(static_cast<Real>(static_cast<Accumulator<Real>>(value)));
  }
  return testing::upload(converted);
}

template <typename Real>
Vector download_double(const Array<Real>& values) {
  Vector converted;
  for (const Real& value : testing::download(values)) {
    converted.push_back(static_cast<Accumulator<Real>>(value));
  }
  return converted;
}

template <typename T>
using Rows = Kokkos::View<T*, DeviceMemory, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// Host copy of `count` elements at a device pointer.
template <typename Real>
Vector read_rows(const Real* at, std::int64_t count) {
  Array<Real> values("rows", static_cast<std::size_t>(count));
  Kokkos::deep_copy(values, Rows<const Real>(at, static_cast<std::size_t>(count)));
  return download_double(values);
}

template <typename Real>
void write_rows(const Vector& values, Real* at) {
  Kokkos::deep_copy(Rows<Real>(at, values.size()), upload_as<Real>(values));
}

/// The numbers that Real holds nearest to these.
template <typename Real>
Vector rounded_to(const Vector& values) {
  return download_double(upload_as<Real>(values));
}

/// Derivative of f towards `x` by central differences of fourth order: the error of truncation is
/// step^4 f''''' / 30, that of rounding |f| 1e-16 / step.
inline double derivative(const std::function<double()>& f, double& x, double step = 1e-3) {
  const double at = x;
  const auto value = [&](double shift) {
    x = at + shift;
    return f();
  };
  const double near = value(step) - value(-step);
  const double far = value(2 * step) - value(-2 * step);
  x = at;
  return (8 * near - far) / (12 * step);
}

/// Two layers, four query heads in two groups; odd widths elsewhere. Tied, also with what small
/// Qwens have: heads of six, more than the width has, biases and norms of heads.
inline config::Model small_model(bool tied) {
  config::Model model;
  model.layers = 2;
  model.d_model = 16;
  model.heads = 4;
  model.kv_heads = 2;
  model.ffn = 11;
  model.vocab = 13;
  model.rope.theta = 10;
  model.tie_embeddings = tied;
  if (tied) {
    model.own_head_dim = 6;
    model.qkv_bias = model.qk_norm = true;
  }
  return model;
}

/// All of a model's parameters on one rank, with their moments.
template <typename Real>
Parameters<Real> whole_parameters(const config::Model& model, std::uint64_t seed,
                                  MemoryLedger& ledger) {
  const ModelPart part = whole_model(model);
  return make_parameters<Real>(model, part, seed, ledger,
                               all_elements(make_parameter_table(model, part)));
}

inline ParameterTable whole_table(const config::Model& model) {
  return make_parameter_table(model, whole_model(model));
}

/// Packed documents of these lengths with random tokens; each token's target is the next one of its
/// document.
inline TokenBatch packed(const std::vector<std::int64_t>& lengths, std::int64_t vocab,
                         std::mt19937_64& random) {
  TokenBatch batch;
  for (const std::int64_t length : lengths) {
    const std::vector<std::int32_t> tokens = ids(length, 0, vocab - 1, random);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      batch.tokens.push_back(tokens[i]);
      batch.positions.push_back(static_cast<std::int32_t>(i));
      batch.targets.push_back(i + 1 < tokens.size() ? tokens[i + 1] : -1);
    }
  }
  return batch;
}

}  // namespace cadenza::model::test
