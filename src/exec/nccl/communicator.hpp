// SPDX-License-Identifier: Apache-2.0
// A communicator over NCCL, and the number of channels that NCCL may use for it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cadenza/exec/device_communicator.hpp"
#include "exec/nccl/queue.hpp"

namespace cadenza::exec::nccl {

/// Returns the largest number of channels by purpose. Chosen, not measured: all communicators of a
/// rank together (two of attention for each half, four edges of a pipeline, gradients, slices) have
/// 64, so that on the smallest device, with 108 multiprocessors, all can run at the same time, in
/// whatever order the device starts them. NCCL_MAX_CTAS replaces these numbers.
constexpr int most_channels(Purpose purpose) {
  switch (purpose) {
    case Purpose::attention:
    case Purpose::gradients:
    case Purpose::slices:
      return 8;
    case Purpose::streams:
      return 4;
  }
  return 1;
}

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

// Upper bounds on what NCCL allocates on a device: NCCL has no call that tells.

/// Returns the bytes of one communicator's buffers, at most.
/// @param ends  ends of connections: ranks to which this rank sends plus ranks from which it
/// receives
std::int64_t buffer_bytes(Purpose purpose, std::int64_t ends);

/// Returns the number of connection ends of a rank for the collectives of `ranks`.
std::int64_t ends_of_collectives(std::int64_t ranks);

}  // namespace cadenza::exec::nccl
