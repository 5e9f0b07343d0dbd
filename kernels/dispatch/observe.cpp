// SPDX-License-Identifier: Apache-2.0
#include "cadenza/kernels/observe.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
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

/// Runs body(job, thread) for all jobs, on all threads.
template <typename Job, typename Body>
void for_each_job(const char* name, std::span<const Job> jobs, const Body& body) {
  const Kokkos::DefaultHostExecutionSpace space;
  std::atomic<std::size_t> next = 0;
  const auto work = [&](int thread) {
    for (std::size_t i = next++; i < jobs.size(); i = next++) body(jobs[i], thread);
  };
  using Threads = Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace, Kokkos::IndexType<int>>;
  Kokkos::parallel_for(name, Threads(0, space.concurrency()), work);
  Kokkos::fence(name);
}

constexpr std::int64_t kTile = kScoredKeys;

/// Computes scores of some keys of a job and raises its peak.
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
      job.peak[lane] = larger_logit(job.peak[lane], row[lane]);
  }
}

template <typename Real>
void score_all(const ObserveJob<Real>& job, int dim, std::vector<Accumulator<Real>>& wide) {
  if constexpr (!std::is_same_v<Real, Accumulator<Real>>) {
    wide.resize(static_cast<std::size_t>(kTile * dim));
  }
  for (std::int64_t begin = 0; begin < job.count; begin += kTile) {
    score(job, dim, {begin, std::min(job.count, begin + kTile)}, wide);
  }
}

/// Scratch of a thread that observes blocks.
template <typename Real>
struct BlockScratch {
  std::vector<Accumulator<Real>> queries;  ///< [stride * head_dim, kObserved]
  std::vector<Accumulator<Real>> scores;   ///< [groups of keys, kObserved]
  std::vector<Accumulator<Real>> wide;
};

/// Gathers queries: a lane is a group, its tokens from the last to the first, one after another.
template <typename Real>
void gather_queries(const BlockJob<Real>& job, int head_dim, std::int64_t stride,
                    std::vector<Accumulator<Real>>& queries) {
  using Sum = Accumulator<Real>;
  queries.assign(static_cast<std::size_t>(stride * head_dim * kObserved), 0);
  const Sum scale = Sum(1) / (std::sqrt(static_cast<Sum>(head_dim)) * static_cast<Sum>(stride));
  for (std::int64_t token = 0; token < job.count; ++token) {
    const Real* from = job.queries + token * job.query_stride;
    const std::int64_t place = stride - 1 - token % stride;
    Sum* to = queries.data() + place * head_dim * kObserved + token / stride;
    for (int d = 0; d < head_dim; ++d) to[d * kObserved] = widen(from[d]) * scale;
  }
}

/// Observes some rows of blocks. @returns false if a largest logit is not finite
template <typename Real>
bool observe_rows(const BlockJob<Real>& whole, int head_dim, std::int64_t block,
                  std::int64_t stride, BlockScratch<Real>& scratch) {
  using Sum = Accumulator<Real>;
  gather_queries(whole, head_dim, stride, scratch.queries);
  const std::int64_t side = block / stride;
  const std::int64_t groups = (whole.count + stride - 1) / stride;
  std::array<Sum, kObserved> peak, factor{};
  peak.fill(-std::numeric_limits<Sum>::infinity());
  std::array<std::int64_t, kObserved> sum{};
  ObserveJob<Real> job;
  job.queries = scratch.queries.data();
  job.first_query = whole.first_row * side;
  job.keys = whole.keys;
  job.stride = stride * head_dim;
  job.count = job.first_query + groups;
  scratch.scores.resize(static_cast<std::size_t>(job.count * kObserved));
  job.scores = scratch.scores.data();
  job.peak = peak.data();
  score_all(job, static_cast<int>(job.stride), scratch.wide);
  const auto is_finite = [](Sum logit) { return std::isfinite(logit); };
  if (!std::all_of(peak.begin(), peak.begin() + groups, is_finite)) return false;
  tile_kernels<Sum>().exponentials(job.scores, job.count, job.peak, static_cast<Sum>(kSumUnit),
                                   sum.data());
  for (std::size_t lane = 0; lane < static_cast<std::size_t>(groups); ++lane) {
    factor[lane] = static_cast<Sum>(kMassUnit * kSumUnit / static_cast<double>(sum[lane]));
  }
  const std::int64_t rows = (whole.count + block - 1) / block;
  const std::int64_t columns = whole.first_row + rows;
  std::vector<std::uint32_t> masses(static_cast<std::size_t>(kObserved / side * columns), 0);
  tile_kernels<Sum>().blocks(job.scores, job.count, static_cast<int>(side), factor.data(),
                             masses.data(), columns);
  std::copy_n(masses.begin(), rows * columns, whole.masses);
  return true;
}

}  // namespace

template <typename Real>
void observe_logits(int head_dim, std::span<const ObserveJob<Real>> jobs) {
  for_each_job("observe_logits", jobs, [&](const ObserveJob<Real>& job, int) {
    std::vector<Accumulator<Real>> wide;
    score_all(job, head_dim, wide);
  });
}

template <typename Real>
void observe_sums(std::span<const ObserveJob<Real>> jobs) {
  using Sum = Accumulator<Real>;
  for_each_job("observe_sums", jobs, [](const ObserveJob<Real>& job, int) {
    tile_kernels<Sum>().exponentials(job.scores, job.count, job.peak, static_cast<Sum>(kSumUnit),
                                     job.sum);
  });
}

template <typename Real>
void observe_masses(std::span<const ObserveJob<Real>> jobs) {
  using Sum = Accumulator<Real>;
  for_each_job("observe_masses", jobs, [](const ObserveJob<Real>& job, int) {
    // The diagonal of lane 0 and the first key, counted from that of the last key.
    std::uint32_t* first = job.slashes + (job.count - 1) * job.step;
    tile_kernels<Sum>().masses(job.scores, job.count, job.step, job.factor, job.columns, first);
  });
}

template <typename Real>
bool observe_blocks(int head_dim, std::int64_t block, std::int64_t stride,
                    std::span<const BlockJob<Real>> jobs) {
  std::atomic<bool> finite = true;
  // Each thread keeps its scratch from job to job.
  const Kokkos::DefaultHostExecutionSpace space;
  std::vector<BlockScratch<Real>> scratch(static_cast<std::size_t>(space.concurrency()));
  for_each_job("observe_blocks", jobs, [&](const BlockJob<Real>& job, int thread) {
    const auto place = static_cast<std::size_t>(thread);
    if (!observe_rows(job, head_dim, block, stride, scratch[place])) finite = false;
  });
  return finite;
}

#define CADENZA_INSTANTIATE(Real)                                             \
  template void observe_logits<Real>(int, std::span<const ObserveJob<Real>>); \
  template void observe_sums<Real>(std::span<const ObserveJob<Real>>);        \
  template void observe_masses<Real>(std::span<const ObserveJob<Real>>);      \
  template bool observe_blocks<Real>(int, std::int64_t, std::int64_t,         \
                                     std::span<const BlockJob<Real>>);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::kernels
