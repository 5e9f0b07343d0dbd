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

}  // namespace cadenza::exec::nccl
