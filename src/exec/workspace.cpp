// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/workspace.hpp"

#include <algorithm>

#include "cadenza/exec/binding.hpp"

namespace cadenza::exec {

using plan::Tensor;

template <typename Real>
template <typename T>
T* Workspace<Real>::allocate_rows(std::vector<Array<T>>& arrays, const char* label, Tensor what) {
  const std::int64_t rows = plan::is_key_side(what) ? key_rows_ : query_rows_;
  return arrays
      .emplace_back(
          allocate<T>(ledger_, MemoryKind::attention, label, rows * row_elements(shape_, what)))
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
void Workspace<Real>::grow(std::int64_t query_rows, std::int64_t key_rows) {
  if (query_rows <= query_rows_ && key_rows <= key_rows_) return;
  query_rows_ = std::max(query_rows_, query_rows);
  key_rows_ = std::max(key_rows_, key_rows);
  release(inputs_);
  release(sums_);
  slot_.q = allocate_rows(inputs_, "workspace_q", Tensor::q);
  slot_.k = allocate_rows(inputs_, "workspace_k", Tensor::k);
  slot_.v = allocate_rows(inputs_, "workspace_v", Tensor::v);
  slot_.out = allocate_rows(sums_, "workspace_o", Tensor::o);
  slot_.lse = allocate_rows(sums_, "workspace_lse", Tensor::lse);
  slot_.dout = allocate_rows(inputs_, "workspace_dout", Tensor::dout);
  slot_.delta = allocate_rows(sums_, "workspace_delta", Tensor::delta);
  slot_.dq = allocate_rows(sums_, "workspace_dq", Tensor::dq);
  slot_.dk = allocate_rows(sums_, "workspace_dk", Tensor::dk);
  slot_.dv = allocate_rows(sums_, "workspace_dv", Tensor::dv);
}

template class Workspace<bfloat16>;
template class Workspace<float>;
template class Workspace<double>;

}  // namespace cadenza::exec
