// SPDX-License-Identifier: Apache-2.0
// A communicator over NCCL.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cadenza/exec/device_communicator.hpp"
#include "exec/nccl/queue.hpp"

namespace cadenza::exec::nccl {

/// Runs collectives and messages as groups of one queue, in the order of the calls, which must be
/// the same on all ranks wherever they meet. Ignores tags: messages of a pair match in order.
class Communicator final : public DeviceCommunicator {
 public:
  /// Collective.
  Communicator(comm::Communicator& group, Purpose purpose)
      : DeviceCommunicator(group), queue_(make_queue(group, most_channels(purpose))) {}

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void reduce_scatter(comm::ConstNumbers all, comm::Numbers mine) override;
  void all_reduce(comm::Numbers data, comm::Reduction op) override;

  void post_all_reduce(comm::Numbers data, int channel) override;
  void post_reduce_scatter(comm::ConstNumbers all, std::span<const std::int64_t> counts,
                           comm::Numbers mine, int channel) override;
  void post_all_gather_v(std::span<const std::byte> mine, std::span<const std::int64_t> byte_counts,
                         std::span<std::byte> all, int channel) override;
  void post(std::span<const comm::Receive> receives, std::span<const comm::Send> sends,
            int channel) override;
  void wait(int channel) override;
  bool test(int channel) override;

 private:
  template <typename Calls>
  Ticket run(const Calls& calls) {
    queue_->start();
    calls();
    return queue_->end();
  }
  std::unique_ptr<Queue> queue_;
  std::map<int, Ticket> posted_;  ///< by channel: the last group not yet awaited
};

}  // namespace cadenza::exec::nccl
