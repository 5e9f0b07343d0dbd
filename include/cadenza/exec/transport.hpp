// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks, out of and into device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/kernels/device.hpp"

namespace cadenza::exec {

/// A message and its place in the transport's memory.
struct Transfer {
  Rank peer = 0;
  int tag = 0;
  std::int64_t offset = 0;  ///< bytes
  std::int64_t bytes = 0;
};

/// Device memory that kernels pack messages into and unpack them from, and the messages themselves.
/// This transport sends host memory: it copies from and to the device where that is other memory. A
/// transport that sends device memory (NCCL, MPI with CUDA) would have the same functions, with
/// nothing to do before a send and after a receive.
///
/// The transfers of one call lie side by side in the memory.
class Transport {
 public:
  /// @param label  of its memory, which is entered in the ledger as communication
  Transport(comm::Communicator& group, MemoryLedger& ledger, std::string label);

  /// Makes room for so many bytes. No message may be under way; what the memory holds is lost.
  void grow(std::int64_t bytes);
  std::byte* memory() const { return device_.data(); }  ///< of the device

  /// Kernels that are on the stream have written what these send.
  void before_send(std::span<const Transfer> sends);
  /// Posts all as one group (Communicator::post). Their memory belongs to the transport until
  /// wait(channel).
  void post(std::span<const Transfer> receives, std::span<const Transfer> sends, int channel);
  void wait(int channel) { group_.wait(channel); }
  bool test(int channel) { return group_.test(channel); }
  /// After wait(): kernels that are started from here on may read what these received.
  void after_receive(std::span<const Transfer> receives);

 private:
  std::span<std::byte> host_bytes(const Transfer& transfer) const;

  comm::Communicator& group_;
  MemoryLedger& ledger_;
  std::string label_;
  Array<std::byte> device_;
  HostArray<std::byte> host_;
  std::vector<comm::Receive> receives_;  ///< of a call; kept for their memory
  std::vector<comm::Send> sends_;
};

}  // namespace cadenza::exec
