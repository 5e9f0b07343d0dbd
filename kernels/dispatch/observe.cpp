// SPDX-License-Identifier: Apache-2.0
#include "cadenza/kernels/observe.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "../cpu/observe_tile.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/kernels/simd.hpp"

namespace cadenza::kernels {
namespace {

static_assert(cpu::kObservedLanes == kObserved);

/// One lane, for doubles and for processors without the instruction sets of the tuned kernels.
template <typename Sum>
struct Plain {
  using Vector = Sum;
  static constexpr int kLanes = 1;
  static Sum zero() { return 0; }
  static Sum broadcast(Sum x) { return x; }
  static Sum load(const Sum* p) { return *p; }
  static void store(Sum* p, Sum x) { *p = x; }
  static Sum subtract(Sum a, Sum b) { return a - b; }
  static Sum fma(Sum a, Sum b, Sum c) { return a * b + c; }
};

}  // namespace

namespace cpu {

template <>
inline double exponential<Plain<double>>(double x) {
  return std::exp(x);
}
template <>
inline float exponential<Plain<float>>(float x) {
  return std::exp(x);
}

}  // namespace cpu

namespace {

template <typename Sum>
const cpu::ObserveKernels<Sum>& tile_kernels() {
  static constexpr cpu::ObserveKernels<Sum> kPlain = cpu::observe_kernels<Plain<Sum>, Sum>();
  if constexpr (std::is_same_v<Sum, float> && !kDeviceIsCuda) {
    if (const auto* tuned = cpu::observe_kernels()) return *tuned;
  }
  return kPlain;
}

/// Runs body(job) for all jobs, on all threads.
template <typename Real, typename Body>
void for_each_job(const char* name, std::span<const ObserveJob<Real>> jobs, const Body& body) {
  const Kokkos::DefaultHostExecutionSpace space;
  std::atomic<std::size_t> next = 0;
  const auto work = [&](int) {
    for (std::size_t i = next++; i < jobs.size(); i = next++) body(jobs[i]);
  };
  using Threads = Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace, Kokkos::IndexType<int>>;
  Kokkos::parallel_for(name, Threads(0, space.concurrency()), work);
  Kokkos::fence(name);
}

/// Keys at a time: they and their scores stay in the cache.
constexpr std::int64_t kTile = 64;

/// Logits of some keys of a job, raising its peak.
template <typename Real>
void score(const ObserveJob<Real>& job, int dim, Range keys, std::vector<Accumulator<Real>>& wide) {
  using Sum = Accumulator<Real>;
  const Real* from = job.keys + keys.begin * job.stride;
  Sum* scores = job.scores + keys.begin * kObserved;
  const cpu::ObserveKernels<Sum>& kernels = tile_kernels<Sum>();
  if constexpr (std::is_same_v<Real, Sum>) {
    kernels.products(job.queries, dim, from, job.stride, keys.size(), scores);
  } else {
    Sum* to = wide.data();
    for (std::int64_t n = 0; n < keys.size(); ++n) {
      to = std::transform(from + n * job.stride, from + n * job.stride + dim, to, widen<Real>);
    }
    kernels.products(job.queries, dim, wide.data(), dim, keys.size(), scores);
  }
  for (std::int64_t n = 0; n < keys.size(); ++n) {
    Sum* row = scores + n * kObserved;
    const std::int64_t position = job.first_key + (keys.begin + n) * job.step;
    const std::int64_t before = std::clamp<std::int64_t>(position - job.first_query, 0, kObserved);
    std::fill_n(row, before, -std::numeric_limits<Sum>::infinity());
    CADENZA_SIMD()
    for (int lane = 0; lane < kObserved; ++lane)
      job.peak[lane] = std::max(job.peak[lane], row[lane]);
  }
}

}  // namespace

template <typename Real>
void observe_logits(int head_dim, std::span<const ObserveJob<Real>> jobs) {
  for_each_job("observe_logits", jobs, [&](const ObserveJob<Real>& job) {
    std::vector<Accumulator<Real>> wide(static_cast<std::size_t>(kTile * head_dim));
    for (std::int64_t begin = 0; begin < job.count; begin += kTile) {
      score(job, head_dim, {begin, std::min(job.count, begin + kTile)}, wide);
    }
  });
}

template <typename Real>
void observe_sums(std::span<const ObserveJob<Real>> jobs) {
  using Sum = Accumulator<Real>;
  for_each_job("observe_sums", jobs, [](const ObserveJob<Real>& job) {
    tile_kernels<Sum>().exponentials(job.scores, job.count, job.peak, static_cast<Sum>(kSumUnit),
                                     job.sum);
  });
}

template <typename Real>
void observe_masses(std::span<const ObserveJob<Real>> jobs) {
  using Sum = Accumulator<Real>;
  for_each_job("observe_masses", jobs, [](const ObserveJob<Real>& job) {
    // Lane 0 of the first key: its diagonal, counted from the last key's.
    std::uint32_t* first = job.slashes + (job.count - 1) * job.step;
    tile_kernels<Sum>().masses(job.scores, job.count, job.step, job.factor, job.columns, first);
  });
}

#define CADENZA_INSTANTIATE(Real)                                             \
  template void observe_logits<Real>(int, std::span<const ObserveJob<Real>>); \
  template void observe_sums<Real>(std::span<const ObserveJob<Real>>);        \
  template void observe_masses<Real>(std::span<const ObserveJob<Real>>);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::kernels
