// SPDX-License-Identifier: Apache-2.0
// How rows travel between the ranks of a tensor group, shard by shard, beside the products that
// need them or make them.
#pragma once

#include <span>

#include "cadenza/model/layers.hpp"
#include "cadenza/model/llama.hpp"

namespace cadenza::model {

/// For rows that are needed, or written, all at once.
inline constexpr auto kNothing = [](std::int64_t, std::int64_t, const auto*) {};

template <typename Real>
template <typename T>
void Llama<Real>::post_gather(const T* held, T* all, const Span& rows) {
  if (group_ == nullptr) return;
  const auto shard = static_cast<std::size_t>(rows.held * shape_.width);
  for (int step = 1; step < group_->size(); ++step) {
    T* to = all + at(group_->sender(step)) * shard;
    group_->post(Collective::all_gather, step, std::as_bytes(std::span(held, shard)),
                 std::as_writable_bytes(std::span(to, shard)));
  }
  copy(held, rows.held * shape_.width, all + at(group_->rank()) * shard);
}

template <typename Real>
template <typename T, typename Use>
const T* Llama<Real>::take_gathered(const T* held, T* all, const Span& rows, const Use& use) {
  if (group_ == nullptr) {
    use(std::int64_t{0}, rows.count, held);
    return held;
  }
  use(group_->rank() * rows.held, rows.held, held);
  for (int step = 1; step < group_->size(); ++step) {
    group_->wait(Collective::all_gather, step);
    const std::int64_t first = group_->sender(step) * rows.held;
    use(first, rows.held, static_cast<const T*>(all) + first * shape_.width);
  }
  return all;
}

template <typename Real>
template <typename What>
void Llama<Real>::with_parts(Residual<Real> held, const What& what) {
  if (group_ == nullptr) return held.visit(what);
  std::byte* parts = work_.parts.data();
  if (capacity_.tensor_sums == config::Precision::sums) return what(reinterpret_cast<Sum*>(parts));
  what(reinterpret_cast<Real*>(parts));
}

template <typename Real>
template <typename Part>
void Llama<Real>::post_parts(Residual<Real> held, const Span& rows, const Part& part) {
  with_parts(held, [&]<typename T>(T* parts) {
    if (group_ == nullptr) return part(std::int64_t{0}, rows.count, parts);
    const std::int64_t elements = rows.held * shape_.width;
    const auto shard = static_cast<std::size_t>(elements);
    for (int step = 1; step < group_->size(); ++step) {
      const int receiver = group_->receiver(step);
      T* mine = parts + receiver * elements;
      part(receiver * rows.held, rows.held, mine);
      T* theirs = arrived<T>() + (step - 1) * elements;
      group_->post(Collective::reduce_scatter, step, std::as_bytes(std::span<const T>(mine, shard)),
                   std::as_writable_bytes(std::span(theirs, shard)));
    }
    part(group_->rank() * rows.held, rows.held, parts + group_->rank() * elements);
  });
}

}  // namespace cadenza::model
