// SPDX-License-Identifier: Apache-2.0
// Dynamic sparse attention of every kernel against attention by definition over the same pairs,
// with the causal tasks cut anywhere.
#include <gtest/gtest.h>

#include "cadenza/base/error.hpp"
#include "unit/kernels/huge_logits.hpp"

namespace cadenza::testing {
namespace {

SparsePattern random_pattern(std::int64_t length, std::int64_t block, std::mt19937_64& random) {
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
  };
  std::vector<std::int64_t> columns;
  for (std::int64_t n = below(length / 6 + 2); n > 0; --n) columns.push_back(below(length));
  if (random() % 4 == 0) {
    const std::int64_t rows = (length + block - 1) / block;
    std::vector<bool> active(static_cast<std::size_t>(rows * (rows + 1) / 2));
    for (std::size_t i = 0; i < active.size(); ++i) active[i] = random() % 3 == 0;
    return SparsePattern::blocks(length, block, active);
  }
  std::vector<std::int64_t> slashes;
  for (std::int64_t n = below(4); n > 0; --n) slashes.push_back(below(length));
  return SparsePattern::vertical_slash(length, block, slashes, columns);
}

/// A pattern for every document and head; sometimes none for a document.
SparseIndex random_index(const Case& of, std::int64_t block, bool dense, std::mt19937_64& random) {
  std::vector<SparsePattern> patterns;
  for (std::size_t document = 0; document < of.documents.size(); ++document) {
    for (int head = 0; head < of.shape.heads; ++head) {
      if (dense && document == 0) {
        patterns.emplace_back();
      } else {
        patterns.push_back(random_pattern(of.documents[document].length, block, random));
      }
    }
  }
  return {of.shape.heads, std::move(patterns)};
}

/// The case with a piece for every range of keys that a query sees: what its definition reads.
Case by_pairs(Case of, const SparseIndex& index) {
  of.pieces.clear();
  for (int document = 0; document < index.documents(); ++document) {
    const std::int64_t length = of.documents[static_cast<std::size_t>(document)].length;
    const Range all{0, length};
    for (int head = 0; head < index.heads(); ++head) {
      const SparsePattern* pattern = index.of(document, head);
      for (std::int64_t i = 0; i < length; ++i) {
        for (std::int64_t begin = 0, end = 0; begin <= i; begin = end + 1) {
          for (end = begin; end <= i && (pattern == nullptr || pattern->sees(i, end));) ++end;
          if (end == begin) continue;
          const Task task{document, {i, i + 1}, {begin, end}, {head, head + 1}, Band::full()};
          of.pieces.push_back({task, all, all});
        }
      }
    }
  }
  return of;
}

using Counts = std::vector<std::int64_t>;

template <typename Call>
auto with_index(const SparseIndex& index, Counts& pairs, const Call& call) {
  return [&index, &pairs, call](const auto& shape, const auto& rotary, const auto& list) {
    auto sparse = list;
    sparse.index = &index;
    sparse.pairs = pairs.data();
    call(shape, rotary, sparse);
    fence();
  };
}

/// What the index says, document by document and head by head; 0 where it is dense.
Counts pairs_of(const SparseIndex& index) {
  Counts pairs;
  for (int document = 0; document < index.documents(); ++document) {
    for (int head = 0; head < index.heads(); ++head) {
      const SparsePattern* pattern = index.of(document, head);
      pairs.push_back(pattern == nullptr ? 0 : pattern->pairs());
    }
  }
  return pairs;
}

template <typename Real>
void expect_definition(const Case& of, const SparseIndex& index,
                       const std::vector<DocumentResult>& expected, Kernels<Real> by,
                       const Bounds& bounds) {
  Counts forward(pairs_of(index).size());
  Counts backward(forward.size());
  by.forward = with_index(index, forward, by.forward);
  by.backward = with_index(index, backward, by.backward);
  const std::vector<DocumentResult> got = computed<Real>(of, 2, by);
  EXPECT_EQ(forward, pairs_of(index));
  EXPECT_EQ(backward, pairs_of(index));
  expect_within(got, expected, bounds);
}

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

/// The results, of the pairs that the index says.
template <typename Real>
std::vector<DocumentResult> sparse_results(const Case& of, const SparseIndex& index,
                                           Kernels<Real> by) {
  Counts pairs(pairs_of(index).size());
  by.forward = with_index(index, pairs, by.forward);
  by.backward = with_index(index, pairs, by.backward);
  return computed<Real>(of, 1, by);
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
      const auto alone = sparse_results<Real>(of, index, sparse_tuned<Real>(table, 1));
      for (int run = 0; run < 3; ++run) {
        expect_same_bits(sparse_results<Real>(of, index, sparse_tuned<Real>(table)), alone);
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
      const auto got = sparse_results<Real>(of, index, sparse_tuned<Real>(table));
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
