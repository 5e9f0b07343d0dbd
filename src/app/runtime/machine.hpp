// SPDX-License-Identifier: Apache-2.0
// The machine at hand: who this rank is, which devices and kernels it has, and the rate of matrix
// products that utilization is a share of.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/exec/memory.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/kernels/device_identity.hpp"
#include "cadenza/trace/event.hpp"

namespace cadenza::app {

/// "NVIDIA H100 80GB HBM3 (132 multiprocessors, 79.6 GiB)"; where ranks differ, each with its
/// ranks.
/// @param devices  of every rank, in rank order
std::string describe_devices(std::span<const kernels::DeviceIdentity> devices);

/// Ranks of one device, of which there are several.
struct SharedDevice {
  std::string uuid;
  std::vector<int> ranks;
};

/// In the order of their first ranks. None on hosts.
std::vector<SharedDevice> shared_devices(std::span<const kernels::DeviceIdentity> devices);

/// "ranks 0-1 share device GPU-...; ranks 2-3 share device GPU-..."
std::string describe_sharing(std::span<const SharedDevice> shared);

// The peak of matrix products: what utilization is a share of.

/// [rows, size] x [size, size].
struct PeakProduct {
  std::int64_t rows = 0;
  std::int64_t size = 0;
  constexpr double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(size) * static_cast<double>(size);
  }
};

/// The highest rate, in FLOP/s, of products of growing size, each made several times. Where other
/// programs want the processor too, a long product is interrupted and looks slow, and a short one
/// is not; on a device a short one is mostly its start. Whichever is fastest counts. Takes about a
/// tenth of a second, or as long as three of the smallest products.
/// @param seconds  makes a product and times it
double peak_rate(const std::function<double(const PeakProduct&)>& seconds);

// The machine at hand: who this rank is, how fast it multiplies.

/// Collective over `world`.
trace::RankInfo describe_rank(comm::Communicator& world, const config::Experiment& experiment);

/// All ranks' descriptions, in rank order, on every rank.
std::vector<trace::RankInfo> gather_ranks(comm::Communicator& world, const trace::RankInfo& mine);

/// Peak of this rank's matrix products in FLOP/s while all ranks multiply (peak_rate.hpp), the
/// denominator of utilization. Collective over `world`.
template <typename Real>
double matmul_rate(comm::Communicator& world);

/// Says on rank 0 what computes attention of this shape, rank by rank where they differ. Collective
/// over `world`. @return this rank's, as attention.kernel names it
/// @throws CollectiveError(usage) where nothing does
template <typename Real>
std::string announce_kernels(comm::Communicator& world, const kernels::AttentionShape& shape);

/// Says on rank 0 which devices compute, which ranks share one, and what carries messages between
/// them; nothing where tensors are in host memory and nobody asked. Collective.
/// @return what `auto` stands for (exec::choose_transport)
/// @throws CollectiveError(usage) where one cannot do what is asked, or shares a device that must
///         not be shared
config::Transport announce_devices(comm::Communicator& world, const config::Run& run);

/// The memory of this rank's device, in equal parts where ranks share it; 0 bytes where tensors are
/// in host memory. Collective.
exec::MemoryLimit device_memory(comm::Communicator& world);

std::string role_name(const config::Experiment& experiment, Rank rank);
std::string utc_now();  ///< "20261121T140501Z"

// What a run says of its attention kernels.

/// "AVX-512"; where ranks differ "AVX-512 on ranks 0-2,5; AVX2 on ranks 3-4".
/// @param kernels  of every rank, in rank order
std::string describe_kernels(std::span<const std::string> kernels);

// run.dtype as a type, and whether a host has it.

/// Calls body(Real{}) with the type that the run computes in.
template <typename Body>
void with_real(config::Dtype dtype, Body body) {
  switch (dtype) {
    case config::Dtype::bfloat16:
      return body(bfloat16{});
    case config::Dtype::float32:
      return body(float{});
    case config::Dtype::float64:
      return body(double{});
  }
}

/// Planning asks for no more than the experiment says; computing needs the host's consent.
/// @param has_bfloat16  kernels::supports_bfloat16() of this rank
/// @param host          its name, for the message
/// @throws Error(usage)
void require_dtype(config::Dtype dtype, bool has_bfloat16, const std::string& host);

}  // namespace cadenza::app
