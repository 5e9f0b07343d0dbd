// SPDX-License-Identifier: Apache-2.0
#include "app/runtime/machine.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <type_traits>
#include <vector>

#include "app/planner/step_report.hpp"
#include "app/runtime/failure.hpp"
#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/exec/device_communicator.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/kernels/device_identity.hpp"
#include "cadenza/kernels/matmul.hpp"
#include "cadenza/kernels/random_fill.hpp"

namespace cadenza::app {
namespace {

/// A line of text that is sent between ranks.
struct Text {
  char text[192];
};

/// A DeviceIdentity that is sent between ranks.
struct PackedDevice {
  char name[64];
  char uuid[64];
  std::int32_t multiprocessors;
  std::int32_t clock_mhz;
  std::int64_t bytes;
};

/// The part of a RankInfo that is sent between ranks: strings of fixed length.
struct PackedRank {
  char host[64];
  char device[64];
  char attention_kernel[64];
  std::int32_t numbers[10];
  double peak_flops;
  std::int64_t started_ns;
};
static_assert(std::is_trivially_copyable_v<PackedRank>);

template <std::size_t kSize>
void copy_text(const std::string& text, char (&target)[kSize]) {
  std::strncpy(target, text.c_str(), kSize - 1);
}

PackedRank pack(const trace::RankInfo& r) {
  PackedRank packed{};
  copy_text(r.host, packed.host);
  copy_text(r.device, packed.device);
  copy_text(r.attention_kernel, packed.attention_kernel);
  const std::int32_t numbers[10] = {
      r.rank,   r.world,    r.local_rank, static_cast<std::int32_t>(r.role),
      r.data,   r.pipeline, r.tensor,     r.context,
      r.server, r.threads};
  std::copy(std::begin(numbers), std::end(numbers), packed.numbers);
  packed.peak_flops = r.peak_flops;
  packed.started_ns = r.started_ns;
  return packed;
}

trace::RankInfo unpack(const PackedRank& packed) {
  const auto& n = packed.numbers;
  trace::RankInfo r;
  r.host = packed.host;
  r.device = packed.device;
  r.attention_kernel = packed.attention_kernel;
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
  r.started_ns = packed.started_ns;
  return r;
}

std::vector<kernels::DeviceIdentity> gather_devices(comm::Communicator& world) {
  const kernels::DeviceIdentity mine = kernels::device_identity();
  PackedDevice packed{};
  copy_text(mine.name, packed.name);
  copy_text(mine.uuid, packed.uuid);
  packed.multiprocessors = mine.multiprocessors;
  packed.clock_mhz = mine.clock_mhz;
  packed.bytes = mine.bytes;
  std::vector<PackedDevice> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&packed, 1)), std::as_writable_bytes(std::span(all)));
  std::vector<kernels::DeviceIdentity> devices;
  for (const PackedDevice& of : all) {
    devices.push_back({of.name, of.uuid, of.multiprocessors, of.clock_mhz, of.bytes});
  }
  return devices;
}

/// Times products and keeps the factors of the last one.
template <typename Real>
class Multiplier {
 public:
  double operator()(const PeakProduct& product) {
    if (product.rows != made_.rows || product.size != made_.size) make(product);
    const std::int64_t begin = trace::now_ns();
    kernels::matmul<Real, Real>(kernels::Transpose::no, kernels::Transpose::yes, product.rows,
                                product.size, product.size, Sum(1), a_.data(), b_.data(), Sum(0),
                                c_.data());
    fence();
    return static_cast<double>(trace::now_ns() - begin) * 1e-9;
  }

 private:
  using Sum = Accumulator<Real>;
  void make(const PeakProduct& product) {
    a_ = b_ = c_ = {};
    a_ = Array<Real>("rate_a", static_cast<std::size_t>(product.rows * product.size));
    b_ = Array<Real>("rate_b", static_cast<std::size_t>(product.size * product.size));
    c_ = Array<Real>("rate_c", a_.extent(0));
    fill_random(a_, 1);
    fill_random(b_, 2);
    fence();
    made_ = product;
  }
  PeakProduct made_;
  Array<Real> a_, b_, c_;
};

}  // namespace

trace::RankInfo describe_rank(comm::Communicator& world, const config::Experiment& experiment) {
  const comm::HostPlace place = comm::host_place(world);
  trace::RankInfo info = rank_info(experiment, world.rank());
  info.host = place.host;
  info.local_rank = place.local_rank;
  info.threads = static_cast<std::int32_t>(Device().concurrency());
  info.device = kernels::device_identity().name;
  info.started_ns = trace::process_started_ns();
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
void warm_up(const AttentionShape& shape, AttentionKernel kernel) {
  using Sum = Accumulator<Real>;
  const auto query = static_cast<std::size_t>(shape.heads * shape.head_dim);
  const auto key = static_cast<std::size_t>(shape.kv_heads * shape.head_dim);
  const auto heads = static_cast<std::size_t>(shape.heads);
  const Array<Real> q("q", query), dout("dout", query), k("k", key), v("v", key);
  const Array<Sum> out("out", query), dq("dq", query), dk("dk", key), dv("dv", key);
  const Array<Sum> lse("lse", heads), delta("delta", heads);
  kernels::TaskList<Real> list;
  list.kernel = kernel;
  list.queries = {{{0, 1}, q.data(), out.data(), lse.data(), dout.data(), delta.data(), dq.data()}};
  list.keys = {{{0, 1}, k.data(), v.data(), dk.data(), dv.data()}};
  list.tasks = {{{0, {0, 1}, {0, 1}, {0, shape.heads}, Band::causal()}, 0, 0}};
  kernels::attention_forward(shape, {}, list);
  kernels::attention_backward(shape, {}, list);
  fence();
}

template <typename Real>
double matmul_rate(comm::Communicator& world) {
  world.barrier();
  return kDeviceIsCuda ? usual_rate(Multiplier<Real>()) : peak_rate(Multiplier<Real>());
}

template <typename Real>
std::string announce_kernels(comm::Communicator& world, const AttentionShape& shape,
                             AttentionKernel kernel) {
  Text mine{};
  AttentionKernel chosen = kernel;
  collectively(world, [&] {  // rejected here rather than in the middle of a step
    chosen = kernels::attention_kernel<Real>(shape, kernel);
    copy_text(kernels::describe_attention_kernel<Real>(shape, kernel), mine.text);
  });
  std::vector<Text> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> kernels;
  for (const Text& of_rank : all) kernels.emplace_back(of_rank.text);
  if (world.rank() == 0) spdlog::info("attention {}", describe_kernels(kernels));
  return std::string(word(chosen));
}

config::Transport announce_devices(comm::Communicator& world, const config::Run& run) {
  const std::vector<kernels::DeviceIdentity> devices = gather_devices(world);
  const std::vector<SharedDevice> shared = shared_devices(devices);
  config::Transport transport = run.transport;
  collectively(world, [&] {
    if (!shared.empty() && !run.share_device) {
      fail(ExitCode::usage, "run.share_device: found false, but {}", describe_sharing(shared));
    }
    transport = exec::choose_transport(run.transport, !shared.empty());
  });
  if (world.rank() != 0) return transport;
  const bool on_devices = !exec::host_holds_tensors();
  if (!devices.front().uuid.empty()) spdlog::info("devices   {}", describe_devices(devices));
  if (!shared.empty()) spdlog::warn("{}: they take turns", describe_sharing(shared));
  if (world.size() > 1 && (on_devices || run.transport != config::Transport::automatic)) {
    spdlog::info("transport {}", exec::describe_transport(transport));
  }
  return transport;
}

exec::MemoryLimit device_memory(comm::Communicator& world) {
  const std::vector<kernels::DeviceIdentity> devices = gather_devices(world);
  const kernels::DeviceIdentity& mine = devices[at(world.rank())];
  const auto sharing = std::ranges::count(devices, mine.uuid, &kernels::DeviceIdentity::uuid);
  return {kernels::free_device_memory() / sharing,
          fmt::format("free memory of {}{}", mine.name, sharing > 1 ? ", which ranks share" : "")};
}

std::string role_name(const config::Experiment& experiment, Rank rank) {
  if (rank >= experiment.parallel.trainers()) return "server";
  const bool serves = experiment.attention.servers == 0 || experiment.attention.mixed;
  return serves ? "trainer+server" : "trainer";
}

std::string utc_now() {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(now));
}

template void warm_up<bfloat16>(const AttentionShape&, AttentionKernel);
template void warm_up<float>(const AttentionShape&, AttentionKernel);
template void warm_up<double>(const AttentionShape&, AttentionKernel);
template double matmul_rate<bfloat16>(comm::Communicator&);
template double matmul_rate<float>(comm::Communicator&);
template double matmul_rate<double>(comm::Communicator&);
template std::string announce_kernels<bfloat16>(comm::Communicator&, const AttentionShape&,
                                                AttentionKernel);
template std::string announce_kernels<float>(comm::Communicator&, const AttentionShape&,
                                             AttentionKernel);
template std::string announce_kernels<double>(comm::Communicator&, const AttentionShape&,
                                              AttentionKernel);

std::string describe_devices(std::span<const kernels::DeviceIdentity> devices) {
  std::vector<std::string> lines;
  for (const kernels::DeviceIdentity& device : devices) {
    lines.push_back(fmt::format("{} ({} multiprocessors, {:.1f} GiB)", device.name,
                                device.multiprocessors,
                                static_cast<double>(device.bytes) / (1 << 30)));
  }
  return describe_kernels(lines);
}

std::vector<SharedDevice> shared_devices(std::span<const kernels::DeviceIdentity> devices) {
  std::vector<SharedDevice> found;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const std::string& uuid = devices[rank].uuid;
    if (uuid.empty()) continue;
    auto same = std::ranges::find(found, uuid, &SharedDevice::uuid);
    if (same == found.end()) same = found.insert(found.end(), {uuid, {}});
    same->ranks.push_back(static_cast<int>(rank));
  }
  std::erase_if(found, [](const SharedDevice& device) { return device.ranks.size() == 1; });
  return found;
}

std::string describe_sharing(std::span<const SharedDevice> shared) {
  std::vector<std::string> parts;
  for (const SharedDevice& device : shared) {
    parts.push_back(
        fmt::format("ranks {} share device {}", number_list(device.ranks), device.uuid));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string describe_kernels(std::span<const std::string> kernels) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < kernels.size(); ++rank) {
    ranks_of[kernels[rank]].push_back(static_cast<int>(rank));
  }
  if (ranks_of.size() == 1) return kernels.front();
  std::vector<std::string> parts;
  for (const auto& [kernel, ranks] : ranks_of) {
    const char* plural = ranks.size() == 1 ? "" : "s";
    parts.push_back(fmt::format("{} on rank{} {}", kernel, plural, number_list(ranks)));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

namespace {

/// Square and tall products: libraries multiply them in different ways.
constexpr std::array<PeakProduct, 9> kProducts = {{{256, 256},
                                                   {1024, 256},
                                                   {512, 512},
                                                   {2048, 512},
                                                   {1024, 1024},
                                                   {4096, 1024},
                                                   {2048, 2048},
                                                   {8192, 2048},
                                                   {4096, 4096}}};
constexpr double kLongestProduct = 0.015;  // seconds of one product
constexpr double kEnough = 0.02;           // seconds of all repetitions of one
constexpr int kLeast = 3;                  // the first may prepare what later ones use

}  // namespace

double peak_rate(const std::function<double(const PeakProduct&)>& seconds) {
  double peak = 0;
  for (const PeakProduct& product : kProducts) {
    if (product.flops() > peak * kLongestProduct && peak > 0) break;
    double spent = 0;
    for (int repetition = 0; repetition < kLeast || spent < kEnough; ++repetition) {
      const double once = seconds(product);
      spent += once;
      peak = std::max(peak, product.flops() / once);
    }
  }
  return peak;
}

double usual_rate(const std::function<double(const PeakProduct&)>& seconds) {
  constexpr PeakProduct kProduct{8192, 8192};
  constexpr int kPreparations = 2;
  constexpr int kFewest = 3;
  constexpr int kMost = 15;
  std::vector<double> times;
  double spent = 0;
  for (int i = 0; i < kPreparations; ++i) seconds(kProduct);
  while (std::ssize(times) < kFewest || (spent < 5 * kEnough && std::ssize(times) < kMost)) {
    times.push_back(seconds(kProduct));
    spent += times.back();
  }
  const auto middle = times.begin() + std::ssize(times) / 2;
  std::ranges::nth_element(times, middle);
  return kProduct.flops() / *middle;
}

void require_dtype(config::Dtype dtype, bool has_bfloat16, const std::string& host) {
  if (dtype != config::Dtype::bfloat16 || has_bfloat16) return;
  fail(ExitCode::usage,
       "run.dtype: bfloat16 needs a {}; host {} has none; valid here: float32, float64",
       kDeviceIsCuda ? "device of compute capability 8.0 or newer" : "processor with AVX2", host);
}

}  // namespace cadenza::app
