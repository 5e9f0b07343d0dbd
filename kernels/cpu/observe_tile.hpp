// SPDX-License-Identifier: Apache-2.0
// The passes of cadenza/kernels/observe.hpp over some keys of one head: a lane is a query. Compiled
// once per instruction set.
#pragma once

#include "vector.hpp"

namespace cadenza::kernels::cpu {

inline constexpr int kObservedLanes = 64;

/// Kernels for an ObserveJob; keys are already widened.
template <typename Sum>
struct ObserveKernels {
  /// Computes scores [count, lanes] of keys [count, stride]; sums in the order of the elements.
  void (*products)(const Sum* queries, int dim, const Sum* keys, std::int64_t stride,
                   std::int64_t count, Sum* scores);
  /// Replaces scores by e^(scores - peak) and sums them in steps of 1 / unit.
  void (*exponentials)(Sum* scores, std::int64_t count, const Sum* peak, Sum unit,
                       std::int64_t* sum);
  /// Adds key n of `count` to columns[n] and to slashes[lane - n * step], in whole steps.
  void (*masses)(const Sum* scores, std::int64_t count, std::int64_t step, const Sum* factor,
                 std::uint32_t* columns, std::uint32_t* slashes);
  /// Assigns masses[row * pitch + column], a row being `side` lanes and a column `side` keys, for
  /// all rows and the columns of the keys.
  void (*blocks)(const Sum* scores, std::int64_t count, int side, const Sum* factor,
                 std::uint32_t* masses, std::int64_t pitch);
};

/// Adds elements [begin, end) of a head to scores that hold the sums of the earlier ones.
template <typename M, int kKeys, typename Sum>
[[gnu::always_inline]] inline void observe_keys(const Sum* queries, int begin, int end,
                                                const Sum* keys, std::int64_t stride, Sum* scores) {
  for (int lane = 0; lane < kObservedLanes; lane += 2 * M::kLanes) {
    typename M::Vector sums[kKeys][2];
    for (int k = 0; k < kKeys; ++k) {
      const Sum* row = scores + k * kObservedLanes + lane;
      sums[k][0] = begin == 0 ? M::zero() : M::load(row);
      sums[k][1] = begin == 0 ? M::zero() : M::load(row + M::kLanes);
    }
    for (int d = begin; d < end; ++d) {
      const Sum* row = queries + static_cast<std::int64_t>(d) * kObservedLanes + lane;
      const auto low = M::load(row);
      const auto high = M::load(row + M::kLanes);
      for (int k = 0; k < kKeys; ++k) {
        const auto key = M::broadcast(keys[k * stride + d]);
        sums[k][0] = M::fma(low, key, sums[k][0]);
        sums[k][1] = M::fma(high, key, sums[k][1]);
      }
    }
    for (int k = 0; k < kKeys; ++k) {
      M::store(scores + k * kObservedLanes + lane, sums[k][0]);
      M::store(scores + k * kObservedLanes + lane + M::kLanes, sums[k][1]);
    }
  }
}

/// Computes scores of a long head in parts, so that the queries stay in the first-level cache.
template <typename M, typename Sum>
void observe_products(const Sum* queries, int dim, const Sum* keys, std::int64_t stride,
                      std::int64_t count, Sum* scores) {
  constexpr int kKeys = 4;
  constexpr int kElements = 64;
  for (int begin = 0; begin < dim; begin += kElements) {
    const int end = begin + kElements < dim ? begin + kElements : dim;
    std::int64_t n = 0;
    for (; n + kKeys <= count; n += kKeys) {
      observe_keys<M, kKeys>(queries, begin, end, keys + n * stride, stride,
                             scores + n * kObservedLanes);
    }
    for (; n < count; ++n) {
      observe_keys<M, 1>(queries, begin, end, keys + n * stride, stride,
                         scores + n * kObservedLanes);
    }
  }
}

template <typename M, typename Sum>
void observe_exponentials(Sum* scores, std::int64_t count, const Sum* peak, Sum unit,
                          std::int64_t* sum) {
  for (std::int64_t n = 0; n < count; ++n) {
    Sum* row = scores + n * kObservedLanes;
    for (int lane = 0; lane < kObservedLanes; lane += M::kLanes) {
      M::store(row + lane, exponential<M>(M::subtract(M::load(row + lane), M::load(peak + lane))));
    }
    for (int lane = 0; lane < kObservedLanes; ++lane) {
      sum[lane] += static_cast<std::int32_t>(row[lane] * unit + Sum(0.5));
    }
  }
}

template <typename M, typename Sum>
void observe_shares(const Sum* scores, std::int64_t count, std::int64_t step, const Sum* factor,
                    std::uint32_t* columns, std::uint32_t* slashes) {
  for (std::int64_t n = 0; n < count; ++n) {
    const Sum* row = scores + n * kObservedLanes;
    std::uint32_t* diagonal = slashes - n * step;
    std::uint32_t column = 0;
    for (int lane = 0; lane < kObservedLanes; ++lane) {
      const auto mass = static_cast<std::uint32_t>(
          static_cast<std::int32_t>(row[lane] * factor[lane] + Sum(0.5)));
      column += mass;
      diagonal[lane] += mass;
    }
    columns[n] = column;
  }
}

template <typename M, typename Sum>
void observe_blocks(const Sum* scores, std::int64_t count, int side, const Sum* factor,
                    std::uint32_t* masses, std::int64_t pitch) {
  for (std::int64_t begin = 0; begin < count; begin += side) {
    const std::int64_t end = begin + side < count ? begin + side : count;
    std::uint32_t lanes[kObservedLanes] = {};
    for (std::int64_t n = begin; n < end; ++n) {
      const Sum* row = scores + n * kObservedLanes;
      for (int lane = 0; lane < kObservedLanes; ++lane) {
        lanes[lane] += static_cast<std::uint32_t>(
            static_cast<std::int32_t>(row[lane] * factor[lane] + Sum(0.5)));
      }
    }
    for (int row = 0; row < kObservedLanes / side; ++row) {
      std::uint32_t sum = 0;
      for (int lane = row * side; lane < (row + 1) * side; ++lane) sum += lanes[lane];
      masses[row * pitch + begin / side] = sum;
    }
  }
}

/// Null if the build or the processor lacks the instruction set.
const ObserveKernels<float>* observe_kernels();

template <typename M, typename Sum>
constexpr ObserveKernels<Sum> observe_kernels() {
  return {observe_products<M, Sum>, observe_exponentials<M, Sum>, observe_shares<M, Sum>,
          observe_blocks<M, Sum>};
}

}  // namespace cadenza::kernels::cpu
