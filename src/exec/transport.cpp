// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/transport.hpp"

#include <algorithm>
#include <utility>

namespace cadenza::exec {
namespace {

/// The bytes of an array from the first to the last transfer.
template <typename View>
auto bytes_of(const View& view, std::span<const Transfer> transfers) {
  std::int64_t begin = transfers.front().offset;
  std::int64_t end = begin;
  for (const Transfer& transfer : transfers) {
    begin = std::min(begin, transfer.offset);
    end = std::max(end, transfer.offset + transfer.bytes);
  }
  return Kokkos::subview(view,
                         std::pair(static_cast<std::size_t>(begin), static_cast<std::size_t>(end)));
}

}  // namespace

Transport::Transport(comm::Communicator& group, MemoryLedger& ledger, std::string label)
    : group_(group), ledger_(ledger), label_(std::move(label)) {}

void Transport::grow(std::int64_t bytes) {
  const auto present = static_cast<std::int64_t>(device_.extent(0));
  if (bytes <= present) return;
  ledger_.remove(MemoryKind::communication, present);
  host_ = {};
  device_ = {};
  device_ = allocate<std::byte>(ledger_, MemoryKind::communication, label_, bytes);
  host_ = Kokkos::create_mirror_view(device_);
}

void Transport::before_send(std::span<const Transfer> sends) {
  if (!sends.empty()) Kokkos::deep_copy(bytes_of(host_, sends), bytes_of(device_, sends));
}

void Transport::after_receive(std::span<const Transfer> receives) {
  if (!receives.empty()) Kokkos::deep_copy(bytes_of(device_, receives), bytes_of(host_, receives));
}

void Transport::post(std::span<const Transfer> receives, std::span<const Transfer> sends,
                     int channel) {
  receives_.clear();
  for (const Transfer& each : receives) {
    receives_.push_back({host_bytes(each), each.peer, each.tag});
  }
  sends_.clear();
  for (const Transfer& each : sends) sends_.push_back({host_bytes(each), each.peer, each.tag});
  group_.post(receives_, sends_, channel);
}

std::span<std::byte> Transport::host_bytes(const Transfer& transfer) const {
  return {host_.data() + transfer.offset, static_cast<std::size_t>(transfer.bytes)};
}

}  // namespace cadenza::exec
