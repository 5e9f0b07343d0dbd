// SPDX-License-Identifier: Apache-2.0
// The current machine: identity of this rank, its devices and kernels, and the rate of matrix
// products on which utilization is based.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/kernels/device_identity.hpp"
#include "cadenza/trace/events/event.hpp"

namespace cadenza::app {

/// Describes the devices: "NVIDIA H100 80GB HBM3 (132 multiprocessors, 79.6 GiB)"; if ranks differ,
/// each device with its ranks.
/// @param devices  of all ranks, in rank order
std::string describe_devices(std::span<const kernels::DeviceIdentity> devices);

/// A device that several ranks share, and these ranks.
struct SharedDevice {
  std::string uuid;
  std::vector<int> ranks;
};

/// Returns the shared devices in the order of their first ranks; none on hosts.
std::vector<SharedDevice> shared_devices(std::span<const kernels::DeviceIdentity> devices);

/// Describes: "ranks 0-1 share device GPU-...; ranks 2-3 share device GPU-..."
std::string describe_sharing(std::span<const SharedDevice> shared);

// --- The peak rate of matrix products: the denominator of utilization ---

/// A product [rows, size] x [size, size].
struct PeakProduct {
  std::int64_t rows = 0;
  std::int64_t size = 0;
  constexpr double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(size) * static_cast<double>(size);
  }
};

/// Returns the highest rate, in FLOP/s, over products of growing size, each repeated. If other
/// programs use the processor, long products are interrupted and look slow but short ones do not;
/// on a device a short product is mostly launch time. So the fastest of all counts. Takes about a
/// tenth of a second, or as long as three of the smallest products.
/// @param seconds  runs a product and returns its time
double peak_rate(const std::function<double(const PeakProduct&)>& seconds);

/// Returns the rate, in FLOP/s, of the median of products of 8192 x 8192: that of a device, whose
/// clock a few products raise for a moment. Takes about a tenth of a second.
double usual_rate(const std::function<double(const PeakProduct&)>& seconds);

// --- This rank's machine ---

/// Computes attention of one token in both directions: what its kernels allocate, pin and load once
/// is there before messages are under way, for which a device could wait, and before free memory is
/// asked for.
template <typename Real>
void warm_up(const AttentionShape& shape, AttentionKernel kernel);

/// Describes this rank. Collective over `world`.
trace::RankInfo describe_rank(comm::Communicator& world, const config::Experiment& experiment);

/// Returns all ranks' descriptions, in rank order, on every rank.
std::vector<trace::RankInfo> gather_ranks(comm::Communicator& world, const trace::RankInfo& mine);

/// Returns the rate of this rank's matrix products in FLOP/s while all ranks multiply: peak_rate()
/// of a host, usual_rate() of a device. Collective over `world`.
template <typename Real>
double matmul_rate(comm::Communicator& world);

/// Reports on rank 0 the kernel that computes attention of this shape, by rank if they differ.
/// Collective over `world`. @return this rank's kernel, as attention.kernel names it
/// @throws CollectiveError(usage) if no kernel supports the shape
template <typename Real>
std::string announce_kernels(comm::Communicator& world, const AttentionShape& shape,
                             AttentionKernel kernel);

/// Reports on rank 0 the devices, which ranks share one, and the transport between them; nothing if
/// tensors are in host memory and the experiment names no transport. Collective.
/// @return the transport that `auto` stands for (exec::choose_transport)
/// @throws CollectiveError(usage) if a rank cannot do what is asked, or shares a device that must
/// not be shared
config::Transport announce_devices(comm::Communicator& world, const config::Run& run);

/// Returns the memory of this rank's device that is free, divided evenly among the ranks that share
/// it; 0 bytes if tensors are in host memory. Collective. Call it once contexts, kernels and
/// libraries have what they take (warm_up, matmul_rate); NCCL's buffers are in estimates.
exec::MemoryLimit device_memory(comm::Communicator& world);

std::string role_name(const config::Experiment& experiment, Rank rank);
std::string utc_now();  ///< "20261121T140501Z"

// --- A run's report of its attention kernels ---

/// Describes kernels: "AVX-512"; if ranks differ "AVX-512 on ranks 0-2,5; AVX2 on ranks 3-4".
/// @param kernels  of all ranks, in rank order
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
