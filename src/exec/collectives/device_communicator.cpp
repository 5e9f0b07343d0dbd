// SPDX-License-Identifier: Apache-2.0
// MPI between devices: directly if their memory is the host's, otherwise through host memory.
#include "cadenza/exec/device_communicator.hpp"

#include <deque>
#include <map>
#include <type_traits>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/kernels/device.hpp"
#include "exec/collectives/staging.hpp"
#include "exec/nccl/communicator.hpp"

namespace cadenza::exec {
namespace {

using comm::ConstNumbers;
using comm::Numbers;
using comm::Reduction;

/// Gives MPI the tensors' own addresses.
class DirectCommunicator final : public DeviceCommunicator {
 public:
  using DeviceCommunicator::DeviceCommunicator;

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    ready().all_gather(mine, all);
  }
  void reduce_scatter(ConstNumbers all, Numbers mine) override {
    ready().reduce_scatter(all, mine);
  }
  void all_reduce(Numbers data, Reduction op) override { ready().all_reduce(data, op); }
  void post_all_reduce(Numbers data, int channel) override {
    ready().post_all_reduce(data, channel);
  }
  void post_reduce_scatter(ConstNumbers all, std::span<const std::int64_t> counts, Numbers mine,
                           int channel) override {
    ready().post_reduce_scatter(all, counts, mine, channel);
  }
  void post_all_gather_v(std::span<const std::byte> mine, std::span<const std::int64_t> byte_counts,
                         std::span<std::byte> all, int channel) override {
    ready().post_all_gather_v(mine, byte_counts, all, channel);
  }
  void post(std::span<const comm::Receive> receives, std::span<const comm::Send> sends,
            int channel) override {
    ready().post(receives, sends, channel);
  }
  void wait(int channel) override { group().wait(channel); }
  bool test(int channel) override { return group().test(channel); }

 private:
  /// Returns the group once kernels have written the send buffers and read what receives overwrite.
  comm::Communicator& ready() {
    fence();
    return group();
  }
};

/// Gives MPI copies in host memory. Every call waits for the stream before MPI touches a block, and
/// so also for copies from that block that an earlier call left on the stream. Nothing waits for
/// copies to the device: the stream runs them before the kernels that read them.
class StagedCommunicator final : public DeviceCommunicator {
 public:
  using DeviceCommunicator::DeviceCommunicator;
  ~StagedCommunicator() override { fence(); }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    const Staging::Lease from = staging_.copy_in(mine);
    const Staging::Lease to = staging_.take(all.size());
    fence();
    group().all_gather(from.bytes(), to.bytes());
    Staging::copy_out(to, all);
  }
  void reduce_scatter(ConstNumbers all, Numbers mine) override {
    const Staging::Lease from = staging_.copy_in(all.bytes());
    const Staging::Lease to = staging_.take(mine.bytes().size());
    fence();
    group().reduce_scatter({from.bytes(), all.type()}, {to.bytes(), mine.type()});
    Staging::copy_out(to, mine.bytes());
  }
  void all_reduce(Numbers data, Reduction op) override {
    const Staging::Lease copy = staging_.copy_in(data.bytes());
    fence();
    group().all_reduce({copy.bytes(), data.type()}, op);
    Staging::copy_out(copy, data.bytes());
  }

  void post_all_reduce(Numbers data, int channel) override {
    auto& arrivals = pending_[channel].arrivals;
    const Staging::Lease& copy =
        arrivals.emplace_back(Arrival{staging_.copy_in(data.bytes()), data.bytes()}).from;
    fence();
    group().post_all_reduce({copy.bytes(), data.type()}, channel);
  }
  void post_reduce_scatter(ConstNumbers all, std::span<const std::int64_t> counts, Numbers mine,
                           int channel) override {
    const Staging::Lease& from = keep(staging_.copy_in(all.bytes()), channel);
    const Staging::Lease& to = receive_into(mine.bytes(), channel);
    fence();
    group().post_reduce_scatter({from.bytes(), all.type()}, counts, {to.bytes(), mine.type()},
                                channel);
  }
  void post_all_gather_v(std::span<const std::byte> mine, std::span<const std::int64_t> byte_counts,
                         std::span<std::byte> all, int channel) override {
    const Staging::Lease& from = keep(staging_.copy_in(mine), channel);
    const Staging::Lease& to = receive_into(all, channel);
    fence();
    group().post_all_gather_v(from.bytes(), byte_counts, to.bytes(), channel);
  }
  void post(std::span<const comm::Receive> receives, std::span<const comm::Send> sends,
            int channel) override {
    receives_.clear();
    for (const comm::Receive& each : receives) {
      receives_.push_back({receive_into(each.data, channel).bytes(), each.from, each.tag});
    }
    sends_.clear();
    for (const comm::Send& each : sends) {
      const Staging::Lease& copy = keep(staging_.copy_in(each.data), channel);
      sends_.push_back({copy.bytes(), each.to, each.tag});
    }
    fence();
    group().post(receives_, sends_, channel);
  }
  void wait(int channel) override {
    group().wait(channel);
    const auto pending = pending_.find(channel);
    if (pending == pending_.end()) return;
    for (const Arrival& each : pending->second.arrivals) Staging::copy_out(each.from, each.to);
    pending_.erase(pending);
  }
  bool test(int channel) override { return group().test(channel); }

 private:
  struct Arrival {
    Staging::Lease from;
    std::span<std::byte> to;
  };
  /// Messages posted on a channel and not yet awaited.
  struct Pending {
    std::deque<Staging::Lease> sent;  // deques keep references valid
    std::deque<Arrival> arrivals;
  };

  const Staging::Lease& keep(Staging::Lease lease, int channel) {
    return pending_[channel].sent.emplace_back(std::move(lease));
  }
  const Staging::Lease& receive_into(std::span<std::byte> to, int channel) {
    return pending_[channel].arrivals.emplace_back(Arrival{staging_.take(to.size()), to}).from;
  }
  Staging staging_;
  std::map<int, Pending> pending_;
  std::vector<comm::Receive> receives_;  ///< of one call; kept to reuse memory
  std::vector<comm::Send> sends_;
};

}  // namespace

bool host_holds_tensors() {
  return std::is_same_v<DeviceMemory, Kokkos::HostSpace>;
}

config::Transport choose_transport(config::Transport asked, bool shared) {
  using config::Transport;
  if (asked == Transport::automatic) {
    if (host_holds_tensors()) return Transport::mpi;
    return nccl::kHasLibrary && !shared ? Transport::nccl : Transport::staged;
  }
  if (asked == Transport::mpi && !host_holds_tensors()) {
    fail(ExitCode::usage,
         "run.transport: found mpi, but tensors are on a device, whose memory MPI is not given; "
         "valid: auto, nccl, staged");
  }
  if (asked == Transport::nccl && nccl::kHasLibrary && shared) {
    fail(ExitCode::usage,
         "run.transport: found nccl, which takes one rank a device, but ranks share one; valid: "
         "auto, staged");
  }
  return asked;
}

std::string describe_transport(config::Transport transport) {
  if (transport == config::Transport::staged) return "staged: MPI sends copies in host memory";
  if (transport == config::Transport::mpi) return "mpi: MPI reads and writes the tensors' memory";
  if (nccl::kHasLibrary) return "nccl: between devices";
  return "nccl: emulated over MPI, in NCCL's order (for tests)";
}

std::unique_ptr<DeviceCommunicator> make_device_communicator(comm::Communicator& group,
                                                             config::Transport transport,
                                                             Purpose purpose) {
  const bool may_share = transport == config::Transport::automatic;  // given by tests only
  switch (choose_transport(transport, may_share)) {
    case config::Transport::nccl:
      if (group.size() > 1) return std::make_unique<nccl::Communicator>(group, purpose);
      [[fallthrough]];  // a single rank sends nothing that is worth a communicator
    case config::Transport::staged:
      return std::make_unique<StagedCommunicator>(group);
    case config::Transport::automatic:
    case config::Transport::mpi:
      break;
  }
  return std::make_unique<DirectCommunicator>(group);
}

}  // namespace cadenza::exec
