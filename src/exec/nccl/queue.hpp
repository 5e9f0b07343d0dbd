// SPDX-License-Identifier: Apache-2.0
// NCCL as the executor uses it: the library's queue, of CUDA builds that found it, and one that
// keeps its rules over MPI and host memory, so that everything above runs without a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cadenza/comm/communicator.hpp"

namespace cadenza::exec::nccl {

/// Number of a group: groups of a queue are numbered from 1 in the order of their ends.
using Ticket = std::int64_t;

/// A communicator of NCCL, and the stream that its groups run on, one after another. What lies
/// between start() and end() is one group: its calls are complete together. NCCL has no tags: the
/// sends of a rank to another and the receives there match in the order in which they are called,
/// so all ranks must run the groups that they share in the same order. The first group of a pair,
/// or of a collective, connects: its end() waits until the others are there. That is safe where
/// ranks end all their groups, whatever the queue, in an order that they have in common. Buffers
/// are device memory, and may be used again once kernels wait for the group (let_kernels_wait).
/// Every failure is Error(communication).
class Queue {
 public:
  virtual ~Queue() = default;

  /// The group runs after the kernels that were started before this call.
  virtual void start() = 0;
  virtual Ticket end() = 0;

  virtual void send(std::span<const std::byte> data, int to) = 0;
  virtual void receive(std::span<std::byte> data, int from) = 0;
  /// The sum or the maximum of everybody's `data`, in its place.
  virtual void all_reduce(comm::Numbers data, comm::Reduction op) = 0;
  /// The sum of everybody's `data`; `sum` is of the root.
  virtual void reduce(comm::ConstNumbers data, comm::Numbers sum, int root) = 0;
  /// The root's `data`, which may be `all` itself, into everybody's `all`.
  virtual void broadcast(std::span<const std::byte> data, std::span<std::byte> all, int root) = 0;
  /// Of everybody's `all`, in size() equal parts, the sum of this rank's part.
  virtual void reduce_scatter(comm::ConstNumbers all, comm::Numbers mine) = 0;
  /// Everybody's `mine`, of equal size, one after another.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;

  /// Kernels that are started from here on run after the group.
  virtual void let_kernels_wait(Ticket group) = 0;
  /// Whether they would run at once.
  virtual bool is_done(Ticket group) = 0;
};

#ifdef CADENZA_NCCL
inline constexpr bool kHasLibrary = true;
#else
inline constexpr bool kHasLibrary = false;
#endif

/// The library's where the build has it, else its emulation. Collective.
/// @param channels  at most, see channels.hpp
std::unique_ptr<Queue> make_queue(comm::Communicator& group, int channels);

}  // namespace cadenza::exec::nccl
