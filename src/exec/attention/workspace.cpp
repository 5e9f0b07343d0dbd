// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/workspace.hpp"

#include <algorithm>
#include <utility>

#include "cadenza/exec/memory/binding.hpp"

namespace cadenza::exec {

using plan::Tensor;

template <typename Real>
template <typename T>
T* Workspace<Real>::allocate_rows(std::vector<Array<T>>& arrays, const char* label, Tensor what,
                                  std::int64_t copies) {
  const std::int64_t rows = plan::is_key_side(what) ? key_rows_ : query_rows_;
  return arrays
      .emplace_back(allocate<T>(ledger_, MemoryKind::attention, label,
                                copies * rows * head_elements(shape_, what)))
      .data();
}

template <typename Real>
template <typename T>
void Workspace<Real>::release(std::vector<Array<T>>& arrays) {
  for (const Array<T>& array : arrays) {
    ledger_.remove(MemoryKind::attention, static_cast<std::int64_t>(array.extent(0) * sizeof(T)));
  }
  arrays.clear();
}

template <typename Real>
void Workspace<Real>::grow(std::int64_t query_rows, std::int64_t key_rows, std::int64_t copies) {
  if (query_rows <= query_rows_ && key_rows <= key_rows_ && copies <= copies_) return;
  query_rows_ = std::max(query_rows_, query_rows);
  key_rows_ = std::max(key_rows_, key_rows);
  copies_ = std::max(copies_, copies);
  release(inputs_);
  release(sums_);
  first_.q = allocate_rows(inputs_, "workspace_q", Tensor::q, copies_);
  first_.k = allocate_rows(inputs_, "workspace_k", Tensor::k, copies_);
  first_.v = allocate_rows(inputs_, "workspace_v", Tensor::v, copies_);
  first_.dout = allocate_rows(inputs_, "workspace_dout", Tensor::dout, 1);
  first_.out = allocate_rows(sums_, "workspace_o", Tensor::o, 1);
  first_.lse = allocate_rows(sums_, "workspace_lse", Tensor::lse, 1);
  first_.delta = allocate_rows(sums_, "workspace_delta", Tensor::delta, 1);
  first_.dq = allocate_rows(sums_, "workspace_dq", Tensor::dq, 1);
  first_.dk = allocate_rows(sums_, "workspace_dk", Tensor::dk, 1);
  first_.dv = allocate_rows(sums_, "workspace_dv", Tensor::dv, 1);
  buffers_ = first_;
}

template <typename Real>
void Workspace<Real>::use_copy(std::int64_t copy) {
  const std::int64_t queries = query_rows_ * shape_.head_dim;
  const std::int64_t keys = key_rows_ * shape_.head_dim;
  buffers_.q = first_.q + copy * queries;
  buffers_.k = first_.k + copy * keys;
  buffers_.v = first_.v + copy * keys;
}

template class Workspace<bfloat16>;
template class Workspace<float>;
template class Workspace<double>;

MessageBuffer::MessageBuffer(MemoryLedger& ledger, std::string label)
    : ledger_(ledger), label_(std::move(label)) {}

void MessageBuffer::grow(std::int64_t bytes) {
  const auto present = static_cast<std::int64_t>(memory_.extent(0));
  if (bytes <= present) return;
  ledger_.remove(MemoryKind::communication, present);
  memory_ = {};
  memory_ = allocate<std::byte>(ledger_, MemoryKind::communication, label_, bytes);
}

}  // namespace cadenza::exec
