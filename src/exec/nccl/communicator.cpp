// SPDX-License-Identifier: Apache-2.0
#include "exec/nccl/communicator.hpp"

#include <type_traits>

#include "cadenza/comm/parts.hpp"

namespace cadenza::exec::nccl {
namespace {

using comm::Reduction;

template <typename T>
constexpr Type kType = std::is_same_v<T, float> ? Type::float32 : Type::float64;

}  // namespace

template <typename T>
void Communicator::reduce_all(std::span<T> data, Reduction op) {
  queue_->let_kernels_wait(
      run([&] { queue_->all_reduce(std::as_writable_bytes(data), kType<T>, op); }));
}

template <typename T>
void Communicator::scatter_equal_sum(std::span<const T> all, std::span<T> mine) {
  queue_->let_kernels_wait(run(
      [&] { queue_->reduce_scatter(std::as_bytes(all), std::as_writable_bytes(mine), kType<T>); }));
}

/// NCCL's own call has equal parts; one reduction to every rank, in one group, has any.
template <typename T>
Ticket Communicator::scatter_sum(std::span<const T> all, std::span<const std::int64_t> counts,
                                 std::span<T> mine) {
  comm::check_parts("reduce_scatter", counts, {mine.size(), all.size(), rank(), size()});
  return run([&] {
    comm::for_each_part(counts, [&](int root, std::size_t first, std::size_t count) {
      if (count == 0) return;
      queue_->reduce(std::as_bytes(all.subspan(first, count)), std::as_writable_bytes(mine),
                     kType<T>, root);
    });
  });
}

Ticket Communicator::gather(std::span<const std::byte> mine,
                            std::span<const std::int64_t> byte_counts, std::span<std::byte> all) {
  comm::check_parts("all_gather", byte_counts, {mine.size(), all.size(), rank(), size()});
  return run([&] {
    comm::for_each_part(byte_counts, [&](int root, std::size_t first, std::size_t count) {
      if (count == 0) return;
      const std::span<std::byte> part = all.subspan(first, count);
      queue_->broadcast(root == rank() ? mine : part, part, root);
    });
  });
}

void Communicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  queue_->let_kernels_wait(run([&] { queue_->all_gather(mine, all); }));
}
void Communicator::reduce_scatter(std::span<const float> all, std::span<float> mine) {
  scatter_equal_sum(all, mine);
}
void Communicator::reduce_scatter(std::span<const double> all, std::span<double> mine) {
  scatter_equal_sum(all, mine);
}
void Communicator::all_reduce(std::span<float> data, Reduction op) {
  reduce_all(data, op);
}
void Communicator::all_reduce(std::span<double> data, Reduction op) {
  reduce_all(data, op);
}

void Communicator::post_all_reduce(std::span<float> data, int channel) {
  posted_[channel] =
      run([&] { queue_->all_reduce(std::as_writable_bytes(data), Type::float32, Reduction::sum); });
}
void Communicator::post_all_reduce(std::span<double> data, int channel) {
  posted_[channel] =
      run([&] { queue_->all_reduce(std::as_writable_bytes(data), Type::float64, Reduction::sum); });
}
void Communicator::post_reduce_scatter(std::span<const float> all,
                                       std::span<const std::int64_t> counts, std::span<float> mine,
                                       int channel) {
  posted_[channel] = scatter_sum(all, counts, mine);
}
void Communicator::post_reduce_scatter(std::span<const double> all,
                                       std::span<const std::int64_t> counts, std::span<double> mine,
                                       int channel) {
  posted_[channel] = scatter_sum(all, counts, mine);
}
void Communicator::post_all_gather_v(std::span<const std::byte> mine,
                                     std::span<const std::int64_t> byte_counts,
                                     std::span<std::byte> all, int channel) {
  posted_[channel] = gather(mine, byte_counts, all);
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
