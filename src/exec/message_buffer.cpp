// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/message_buffer.hpp"

#include <utility>

namespace cadenza::exec {

MessageBuffer::MessageBuffer(MemoryLedger& ledger, std::string label)
    : ledger_(ledger), label_(std::move(label)) {}

void MessageBuffer::grow(std::int64_t bytes) {
  const auto present = static_cast<std::int64_t>(memory_.extent(0));
  if (bytes <= present) return;
  ledger_.remove(MemoryKind::communication, present);
  memory_ = {};
  memory_ = allocate<std::byte>(ledger_, MemoryKind::communication, label_, bytes);
}

void MessageBuffer::post(DeviceCommunicator& over, std::span<const Transfer> receives,
                         std::span<const Transfer> sends, int channel) {
  receives_.clear();
  for (const Transfer& each : receives) receives_.push_back({bytes_of(each), each.peer, each.tag});
  sends_.clear();
  for (const Transfer& each : sends) sends_.push_back({bytes_of(each), each.peer, each.tag});
  over.post(receives_, sends_, channel);
}

std::span<std::byte> MessageBuffer::bytes_of(const Transfer& transfer) const {
  return {memory_.data() + transfer.offset, static_cast<std::size_t>(transfer.bytes)};
}

}  // namespace cadenza::exec
