// SPDX-License-Identifier: Apache-2.0
// Dynamic sparse attention of every kernel against attention by definition over the same pairs,
// with the causal tasks cut anywhere.
#include <gtest/gtest.h>

#include "cadenza/base/error.hpp"
#include "unit/kernels/huge_logits.hpp"
#include "unit/kernels/sparse_case.hpp"

namespace cadenza::testing {
namespace {

#ifndef KOKKOS_ENABLE_CUDA
template <typename Real>
Kernels<Real> sparse_tuned(const TileKernels& table, int threads = kernels::cpu::kAllThreads) {
  Kernels<Real> by;
  by.forward = [&table, threads](const auto&... inputs) {
    enqueue(kernels::cpu::sparse_forward<Real>, table, inputs..., threads);
  };
  by.backward = [&table, threads](const auto&... inputs) {
    enqueue(kernels::cpu::sparse_backward<Real>, table, inputs..., threads);
  };
  return by;
}

TEST(SparseAttention, EqualsDefinitionInEveryTable) {
  std::mt19937_64 random(11);
  for (const std::int64_t block : {5, 16, 64, 128, 200}) {
    SCOPED_TRACE("block " + std::to_string(block));
    Case of = make_case({{4, 2, 32}, 10000, {1, 300, 77, 129}, true, 0, 0}, random);
    round_to_bfloat16(of);
    const SparseIndex index = random_index(of, block, false, random);
    const std::vector<DocumentResult> expected = reference(by_pairs(of, index));
    for_each_table([&](const TileKernels& table, auto real, const Bounds& bounds) {
      using Real = decltype(real);
      expect_definition<Real>(of, index, expected, sparse_tuned<Real>(table), bounds);
    });
  }
}

/// Also where a unit could have as many tiles as threads leave it, and columns as long a range.
TEST(SparseAttention, SameBitsWithAnyNumberOfThreads) {
  if (Kokkos::DefaultHostExecutionSpace().concurrency() < 2) {
    GTEST_SKIP() << "one thread only: set OMP_NUM_THREADS";
  }
  std::mt19937_64 random(13);
  const Case of = rounded_case({{2, 1, 32}, 10000, {1100, 300}, false, 0, 0}, random);
  for (const std::int64_t block : {16, 64}) {
    const SparseIndex index = random_index(of, block, false, random);
    for_each_table([&](const TileKernels& table, auto real, const Bounds&) {
      using Real = decltype(real);
      const auto alone =
          sparse_results<Real>(of, index, sparse_tuned<Real>(table, 1), pairs_of(index));
      for (int run = 0; run < 3; ++run) {
        expect_same_bits(
            sparse_results<Real>(of, index, sparse_tuned<Real>(table), pairs_of(index)), alone);
      }
    });
  }
}

TEST(SparseAttention, HugeLogitsKeepTheirLargest) {
  for_each_huge_case({{1, 1, 32}}, 260, [](const Case& of, const auto&, const auto&) {
    std::mt19937_64 random(14);
    const SparseIndex index = random_index(of, 16, false, random);
    const Case pairs = by_pairs(of, index);
    const std::vector<bool> clear = clear_rows(pairs);
    const DocumentResult wanted = reference(pairs)[0];
    for_each_table([&](const TileKernels& table, auto real, const Bounds& bounds) {
      using Real = decltype(real);
      const auto got = sparse_results<Real>(of, index, sparse_tuned<Real>(table), pairs_of(index));
      expect_clear_rows(got[0], wanted, clear, bounds);
    });
  });
}
#endif

TEST(SparseAttention, DocumentsAreDenseForAllHeadsOrNone) {
  const SparsePattern one = SparsePattern::vertical_slash(8, 4, {}, {});
  EXPECT_TRUE(SparseIndex(2, {SparsePattern{}, SparsePattern{}, one, one}).is_dense(0));
  EXPECT_THROW(SparseIndex(2, {one, SparsePattern{}}), Error);
  EXPECT_THROW(SparseIndex(2, {SparsePattern{}, one}), Error);
}

TEST(SparseAttention, EqualsDefinitionInFloat64WithDenseDocuments) {
  std::mt19937_64 random(12);
  for (const std::int64_t block : {3, 16, 50}) {
    SCOPED_TRACE("block " + std::to_string(block));
    const Case of = make_case({{3, 1, 6}, 10000, {40, 110, 33}, true, 0, 0}, random);
    const SparseIndex index = random_index(of, block, true, random);
    expect_definition<double>(of, index, reference(by_pairs(of, index)), {}, {1e-12, 1e-12, 1e-11});
  }
}

}  // namespace
}  // namespace cadenza::testing
