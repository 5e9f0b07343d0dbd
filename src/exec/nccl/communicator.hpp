// SPDX-License-Identifier: Apache-2.0
// NCCL between devices.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "cadenza/exec/device_communicator.hpp"
#include "exec/nccl/channels.hpp"
#include "exec/nccl/queue.hpp"

namespace cadenza::exec::nccl {

/// Collectives and messages as groups of one queue, in the order of the calls, which must be the
/// same on all ranks wherever they meet. Tags are not used: a pair's messages match in order.
class Communicator final : public DeviceCommunicator {
 public:
  /// Collective.
  Communicator(comm::Communicator& group, Purpose purpose)
      : DeviceCommunicator(group), queue_(make_queue(group, most_channels(purpose))) {}

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void reduce_scatter(std::span<const float> all, std::span<float> mine) override;
  void reduce_scatter(std::span<const double> all, std::span<double> mine) override;
  void all_reduce(std::span<float> data, comm::Reduction op) override;
  void all_reduce(std::span<double> data, comm::Reduction op) override;

  void post_all_reduce(std::span<float> data, int channel) override;
  void post_all_reduce(std::span<double> data, int channel) override;
  void post_reduce_scatter(std::span<const float> all, std::span<const std::int64_t> counts,
                           std::span<float> mine, int channel) override;
  void post_reduce_scatter(std::span<const double> all, std::span<const std::int64_t> counts,
                           std::span<double> mine, int channel) override;
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
  template <typename T>
  void reduce_all(std::span<T> data, comm::Reduction op);
  template <typename T>
  Ticket scatter_sum(std::span<const T> all, std::span<const std::int64_t> counts,
                     std::span<T> mine);
  Ticket gather(std::span<const std::byte> mine, std::span<const std::int64_t> byte_counts,
                std::span<std::byte> all);
  template <typename T>
  void scatter_equal_sum(std::span<const T> all, std::span<T> mine);

  std::unique_ptr<Queue> queue_;
  std::map<int, Ticket> posted_;  ///< by channel, the last group that is not waited for
};

}  // namespace cadenza::exec::nccl
