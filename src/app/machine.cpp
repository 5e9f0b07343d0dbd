// SPDX-License-Identifier: Apache-2.0
#include "cadenza/app/machine.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <type_traits>

#include "cadenza/app/agree.hpp"
#include "cadenza/app/step_report.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/kernels/matmul.hpp"

namespace cadenza::app {
namespace {

constexpr int kRateRepetitions = 3;

/// What of a RankInfo travels between ranks: strings of fixed length.
struct PackedRank {
  char host[64];
  char device[64];
  std::int32_t numbers[10];
  double peak_flops;
};
static_assert(std::is_trivially_copyable_v<PackedRank>);

void copy_text(const std::string& text, char (&target)[64]) {
  std::strncpy(target, text.c_str(), sizeof(target) - 1);
}

PackedRank pack(const trace::RankInfo& r) {
  PackedRank packed{};
  copy_text(r.host, packed.host);
  copy_text(r.device, packed.device);
  const std::int32_t numbers[10] = {
      r.rank,   r.world,    r.local_rank, static_cast<std::int32_t>(r.role),
      r.data,   r.pipeline, r.tensor,     r.context,
      r.server, r.threads};
  std::copy(std::begin(numbers), std::end(numbers), packed.numbers);
  packed.peak_flops = r.peak_flops;
  return packed;
}

trace::RankInfo unpack(const PackedRank& packed) {
  const auto& n = packed.numbers;
  trace::RankInfo r;
  r.host = packed.host;
  r.device = packed.device;
  r.rank = n[0];
  r.world = n[1];
  r.local_rank = n[2];
  r.role = static_cast<trace::Role>(n[3]);
  r.data = n[4];
  r.pipeline = n[5];
  r.tensor = n[6];
  r.context = n[7];
  r.server = n[8];
  r.threads = n[9];
  r.peak_flops = packed.peak_flops;
  return r;
}

template <typename Real>
double seconds_to_multiply(std::int64_t size, const Array<Real>& a, const Array<Real>& b,
                           const Array<Real>& c) {
  using Clock = std::chrono::steady_clock;
  using Sum = Accumulator<Real>;
  const Clock::time_point begin = Clock::now();
  kernels::matmul<Real, Real>(kernels::Transpose::no, kernels::Transpose::yes, size, size, size,
                              Sum(1), a.data(), b.data(), Sum(0), c.data());
  Kokkos::fence();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

trace::RankInfo describe_rank(comm::Communicator& world, const config::Experiment& experiment) {
  const comm::HostPlace place = comm::host_place(world);
  trace::RankInfo info = rank_info(experiment, world.rank());
  info.host = place.host;
  info.local_rank = place.local_rank;
  info.threads = static_cast<std::int32_t>(Device().concurrency());
  info.device = Device::name();
  return info;
}

std::vector<trace::RankInfo> gather_ranks(comm::Communicator& world, const trace::RankInfo& mine) {
  const PackedRank packed = pack(mine);
  std::vector<PackedRank> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&packed, 1)), std::as_writable_bytes(std::span(all)));
  std::vector<trace::RankInfo> ranks;
  for (const PackedRank& rank : all) ranks.push_back(unpack(rank));
  return ranks;
}

template <typename Real>
double matmul_rate(comm::Communicator& world) {
  // Double precision is a reference mode with a slow product: a smaller size tells enough.
  const std::int64_t size = std::is_same_v<Real, double> ? 256 : 1024;
  const auto count = static_cast<std::size_t>(size * size);
  const Array<Real> a("rate_a", count), b("rate_b", count), c("rate_c", count);
  Kokkos::deep_copy(a, Real(1));
  Kokkos::deep_copy(b, Real(1));
  seconds_to_multiply(size, a, b, c);
  world.barrier();
  double best = seconds_to_multiply(size, a, b, c);
  for (int repetition = 1; repetition < kRateRepetitions; ++repetition) {
    best = std::min(best, seconds_to_multiply(size, a, b, c));
  }
  const auto n = static_cast<double>(size);
  return 2.0 * n * n * n / best;
}

template <typename Real>
void announce_kernels(comm::Communicator& world, const kernels::AttentionShape& shape) {
  // A call without tasks is refused where any other would be, in the middle of a step.
  together(world, [&] { kernels::attention_forward<Real>(shape, {}, {}); });
  if (world.rank() == 0) spdlog::info("attention {}", kernels::attention_kernels<Real>(shape));
}

std::string role_name(const config::Experiment& experiment, Rank rank) {
  if (rank >= experiment.parallel.trainers()) return "attention server";
  const bool serves = experiment.attention.servers == 0 || experiment.attention.mixed;
  return serves ? "trainer, server" : "trainer";
}

std::string utc_now() {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(now));
}

template double matmul_rate<bfloat16>(comm::Communicator&);
template double matmul_rate<float>(comm::Communicator&);
template double matmul_rate<double>(comm::Communicator&);
template void announce_kernels<bfloat16>(comm::Communicator&, const kernels::AttentionShape&);
template void announce_kernels<float>(comm::Communicator&, const kernels::AttentionShape&);
template void announce_kernels<double>(comm::Communicator&, const kernels::AttentionShape&);

}  // namespace cadenza::app
