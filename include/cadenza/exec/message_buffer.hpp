// SPDX-License-Identifier: Apache-2.0
// Memory of messages, and the messages of a stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/exec/device_communicator.hpp"
#include "cadenza/kernels/device.hpp"

namespace cadenza::exec {

/// A message and its place in the buffer.
struct Transfer {
  Rank peer = 0;
  int tag = 0;
  std::int64_t offset = 0;  ///< bytes
  std::int64_t bytes = 0;
};

/// Device memory that kernels pack messages into and unpack them from, and the messages themselves.
class MessageBuffer {
 public:
  /// @param label  of its memory, which is entered in the ledger as communication
  MessageBuffer(MemoryLedger& ledger, std::string label);

  /// Makes room for so many bytes. No message may be under way; what the memory holds is lost.
  void grow(std::int64_t bytes);
  std::byte* memory() const { return memory_.data(); }  ///< of the device

  /// Posts all as one group (DeviceCommunicator::post).
  void post(DeviceCommunicator& over, std::span<const Transfer> receives,
            std::span<const Transfer> sends, int channel);

 private:
  std::span<std::byte> bytes_of(const Transfer& transfer) const;

  MemoryLedger& ledger_;
  std::string label_;
  Array<std::byte> memory_;
  std::vector<comm::Receive> receives_;  ///< of a call; kept for their memory
  std::vector<comm::Send> sends_;
};

}  // namespace cadenza::exec
