// SPDX-License-Identifier: Apache-2.0
// NCCL as the executor uses it: the library's queue in CUDA builds that found NCCL, otherwise one
// that emulates its rules over MPI and host memory, so that all code above it runs without a
// device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/exec/memory/nccl_buffers.hpp"

namespace cadenza::exec::nccl {

/// Number of a group: a queue numbers its groups from 1 in the order of their ends.
using Ticket = std::int64_t;

/// A communicator of NCCL and the stream on which its groups run one after another. The calls
/// between start() and end() are one group and complete together. NCCL has no tags: the sends of
/// one rank to another match the receives there in call order, so all ranks must run shared groups
/// in the same order. The first group of a pair, or the first collective, connects: its end() waits
/// until the other ranks arrive. This is safe if ranks end all groups, of all queues, in a common
/// order. Buffers are device memory and may be reused once kernels wait for the group
/// (let_kernels_wait). Every failure throws Error(communication).
class Queue {
 public:
  virtual ~Queue() = default;

  /// Begins a group, which runs after the kernels started before this call.
  virtual void start() = 0;
  virtual Ticket end() = 0;

  virtual void send(std::span<const std::byte> data, int to) = 0;
  virtual void receive(std::span<std::byte> data, int from) = 0;
  /// Replaces `data` by the sum or the maximum over all ranks.
  virtual void all_reduce(comm::Numbers data, comm::Reduction op) = 0;
  /// Sums `data` of all ranks into `sum` on the root.
  virtual void reduce(comm::ConstNumbers data, comm::Numbers sum, int root) = 0;
  /// Copies the root's `data` into `all` on every rank; on the root both may be the same memory.
  virtual void broadcast(std::span<const std::byte> data, std::span<std::byte> all, int root) = 0;
  /// Sums `all`, size() equal parts, over all ranks, and writes this rank's part to `mine`.
  virtual void reduce_scatter(comm::ConstNumbers all, comm::Numbers mine) = 0;
  /// Concatenates `mine` of all ranks, of equal size, into `all`.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  /// Makes kernels started from here on run after the group.
  virtual void let_kernels_wait(Ticket group) = 0;
  /// Whether such kernels would run at once.
  virtual bool is_done(Ticket group) = 0;
};

/// Makes the library's queue if the build has it, otherwise the emulation. Collective.
/// @param channels  at most; see most_channels (communicator.hpp)
std::unique_ptr<Queue> make_queue(comm::Communicator& group, int channels);

}  // namespace cadenza::exec::nccl
