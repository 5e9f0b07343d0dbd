// SPDX-License-Identifier: Apache-2.0
#include "exec/attention/index_estimator.hpp"

#include <algorithm>

#include "cadenza/attention/core_attention.hpp"

namespace cadenza::exec {

std::int64_t IndexDocument::row_of(std::int64_t token) const {
  const auto found = std::ranges::find_if(runs, [&](const KeyRun& run) {
    return run.text.tokens.contains({token, token + 1});
  });
  if (found == runs.end()) {
    fail(ExitCode::internal, "token {} of document {} is not at home here", token, parts.document);
  }
  return found->row + token - found->text.tokens.begin;
}

template <typename Real>
std::unique_ptr<IndexEstimator<Real>> make_estimator(
    SparseKind kind, const AttentionShape& shape,
    const kernels::RotaryTable<Accumulator<Real>>& rotary) {
  switch (kind) {
    case SparseKind::vertical_slash:
      return make_vertical_slash<Real>(shape, rotary);
    case SparseKind::xattention:
      break;
  }
  return make_xattention<Real>(shape, rotary);
}

template <typename Real>
void rotate_queries(const plan::Workload& workload, std::int64_t length, Range tokens,
                    const Real* q, const AttentionShape& shape,
                    const kernels::RotaryTable<Accumulator<Real>>& rotary, std::vector<Real>& to) {
  const std::int64_t count = tokens.size();
  const std::int64_t elements = count * shape.heads * shape.head_dim;
  Array<Real> rows(Kokkos::view_alloc(Kokkos::WithoutInitializing, "observed"), at(elements));
  Array<std::int32_t> positions("positions", at(count));
  auto host = Kokkos::create_mirror_view(positions);
  for (std::int64_t i = 0; i < count; ++i) {
    host(at(i)) =
        static_cast<std::int32_t>(plan::position_of(workload.order, length, tokens.begin + i));
  }
  copy_and_wait(positions, host);
  using Home = Kokkos::View<const Real*, typename Array<Real>::memory_space,
                            Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  copy_and_wait(rows, Home(q, rows.extent(0)));
  attention::rotate_keys<Real>(rotary, rows.data(), positions, count, shape.heads, shape.head_dim);
  const auto turned = on_host<Real>(rows.data(), elements);
  to.assign(turned.data(), turned.data() + elements);
}

#define CADENZA_INSTANTIATE(Real)                                                         \
  template std::unique_ptr<IndexEstimator<Real>> make_estimator<Real>(                    \
      SparseKind, const AttentionShape&, const kernels::RotaryTable<Accumulator<Real>>&); \
  template void rotate_queries(                                                           \
      const plan::Workload&, std::int64_t, Range, const Real*, const AttentionShape&,     \
      const kernels::RotaryTable<Accumulator<Real>>&, std::vector<Real>&);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::exec
