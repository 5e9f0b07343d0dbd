// SPDX-License-Identifier: Apache-2.0
#include "exec/nccl/communicator.hpp"

#include <algorithm>
#include <cstdlib>

#include "cadenza/comm/parts.hpp"

namespace cadenza::exec::nccl {

using comm::ConstNumbers;
using comm::Numbers;
using comm::Reduction;

void Communicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  queue_->let_kernels_wait(run([&] { queue_->all_gather(mine, all); }));
}

void Communicator::reduce_scatter(ConstNumbers all, Numbers mine) {
  queue_->let_kernels_wait(run([&] { queue_->reduce_scatter(all, mine); }));
}

void Communicator::all_reduce(Numbers data, Reduction op) {
  queue_->let_kernels_wait(run([&] { queue_->all_reduce(data, op); }));
}

void Communicator::post_all_reduce(Numbers data, int channel) {
  posted_[channel] = run([&] { queue_->all_reduce(data, Reduction::sum); });
}

/// NCCL's own reduce-scatter needs equal parts; one reduction to each rank, in one group, does not.
void Communicator::post_reduce_scatter(ConstNumbers all, std::span<const std::int64_t> counts,
                                       Numbers mine, int channel) {
  comm::check_parts("reduce_scatter", counts, {mine.size(), all.size(), rank(), size()});
  posted_[channel] = run([&] {
    comm::for_each_part(counts, [&](int root, std::size_t first, std::size_t count) {
      if (count > 0) queue_->reduce(all.subspan(first, count), mine, root);
    });
  });
}

void Communicator::post_all_gather_v(std::span<const std::byte> mine,
                                     std::span<const std::int64_t> byte_counts,
                                     std::span<std::byte> all, int channel) {
  comm::check_parts("all_gather", byte_counts, {mine.size(), all.size(), rank(), size()});
  posted_[channel] = run([&] {
    comm::for_each_part(byte_counts, [&](int root, std::size_t first, std::size_t count) {
      if (count == 0) return;
      const std::span<std::byte> part = all.subspan(first, count);
      queue_->broadcast(root == rank() ? mine : part, part, root);
    });
  });
}

void Communicator::post(std::span<const comm::Receive> receives, std::span<const comm::Send> sends,
                        int channel) {
  if (receives.empty() && sends.empty()) return;
  posted_[channel] = run([&] {
    for (const comm::Receive& want : receives) queue_->receive(want.data, want.from);
    for (const comm::Send& message : sends) queue_->send(message.data, message.to);
  });
}

void Communicator::wait(int channel) {
  const auto posted = posted_.find(channel);
  if (posted == posted_.end()) return;
  queue_->let_kernels_wait(posted->second);
  posted_.erase(posted);
}

bool Communicator::test(int channel) {
  const auto posted = posted_.find(channel);
  return posted == posted_.end() || queue_->is_done(posted->second);
}

namespace {

/// Returns the value of an NCCL environment variable, which replaces NCCL's own choice.
std::int64_t setting(const char* name, std::int64_t otherwise) {
  const char* value = std::getenv(name);
  const std::int64_t number = value != nullptr ? std::atoll(value) : 0;
  return number > 0 ? number : otherwise;
}

}  // namespace

/// An end has a buffer for each of three protocols (NCCL 2.28: src/init.cc has their sizes,
/// src/transport/p2p.cc and net.cc allocate them, in pieces of 2 MiB). A peer in the same node
/// needs less: there the two ends of a connection share the buffers.
std::int64_t buffer_bytes(Purpose purpose, std::int64_t ends) {
  constexpr std::int64_t kPiece = std::int64_t{2} << 20;
  const std::int64_t end = setting("NCCL_LL_BUFFSIZE", 8 * 512 * 8 * 16) +
                           setting("NCCL_LL128_BUFFSIZE", 120 * 640 * 8 * 8) +
                           setting("NCCL_BUFFSIZE", std::int64_t{4} << 20);
  const std::int64_t pieces = (end + kPiece - 1) / kPiece;
  return ends * setting("NCCL_MAX_CTAS", most_channels(purpose)) * pieces * kPiece;
}

/// Both neighbours in a ring (one of them only to send to), and to and from a parent and two
/// children.
std::int64_t ends_of_collectives(std::int64_t ranks) {
  return std::min<std::int64_t>(2 * (ranks - 1), 8);
}

}  // namespace cadenza::exec::nccl
