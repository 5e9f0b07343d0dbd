// SPDX-License-Identifier: Apache-2.0
// The machine at hand: who this rank is, how fast it multiplies.
#pragma once

#include <string>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/exec/memory.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/trace/event.hpp"

namespace cadenza::app {

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

}  // namespace cadenza::app
