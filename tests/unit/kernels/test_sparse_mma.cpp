// SPDX-License-Identifier: Apache-2.0
// Sparse calls of `mma`, on a device or by its emulation, against attention by definition over the
// pairs of random patterns.
#include <gmock/gmock.h>

#include <algorithm>

#include "../../../kernels/tasks/sparse_rows.hpp"
#include "unit/kernels/device_kernels.hpp"
#include "unit/kernels/huge_logits.hpp"
#include "unit/kernels/sparse_case.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::testing {
namespace {

class SparseMma : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto here = kernels::available_attention_kernels<bfloat16>();
    if (kDeviceIsCuda && std::ranges::count(here, AttentionKernel::mma) == 0) {
      GTEST_SKIP() << "this device does not run mma";
    }
  }
};

/// The seam's kernels or, elsewhere, their emulation.
/// @param seed  elsewhere: of the order of threads
Kernels<bfloat16> under_test(std::uint64_t seed = 0) {
#ifdef KOKKOS_ENABLE_CUDA
  static_cast<void>(seed);
  return {};
#else
  return emulated_sparse_mma(seed);
#endif
}

void expect_right(const Case& of, const SparseIndex& index, const Kernels<bfloat16>& by) {
  const Case pairs = by_pairs(of, index);
  expect_within(sparse_results<bfloat16>(of, index, by, pairs_in(pairs, index), 2),
                reference(pairs), kBfloat16);
}

/// Documents cut into random tasks and buffers, of which some are left out: rows that see few keys
/// or none. Many columns, few and none; blocks as long as a warp's rows and unlike them.
TEST_F(SparseMma, EqualsDefinitionForRandomPatterns) {
  struct Round {
    AttentionShape shape;
    std::int64_t block, share;
  };
  const Round rounds[] = {{{2, 1, 32}, 64, 1},
                          {{2, 2, 64}, 5, 1},
                          {{1, 1, 96}, 16, 2},
                          {{2, 1, 128}, 64, 1},
                          {{3, 1, 32}, 100, kFewColumns},
                          {{4, 2, 32}, 128, 2}};
  std::mt19937_64 random(21);
  for (const Round& round : rounds) {
    SCOPED_TRACE("head_dim " + std::to_string(round.shape.head_dim) + ", block " +
                 std::to_string(round.block));
    if (kSanitized && round.shape.head_dim > 64) continue;
    const std::int64_t length = kSanitized ? 140 : 190;
    const Case of = rounded_case({round.shape, 10000, {1, length, 45}, true, 0, 0.15}, random);
    expect_right(of, random_index(of, round.block, false, random, round.share), under_test());
  }
}

/// Tokens that count every third position, as those of a rank of stripes do.
TEST_F(SparseMma, EqualsDefinitionForStripes) {
  std::mt19937_64 random(22);
  Case of = rounded_case({{2, 1, 32}, 10000, {150}, true, 0, 0}, random);
  const auto position = [](std::int64_t token) { return 2 + 3 * token; };
  of.documents[0].storage.positions = {position(0), 3};
  Kernels<bfloat16> by = under_test();
  const auto with_positions_of_keys = [&](const auto& call) {
    return [=](const auto& shape, const auto& rotary, auto list) {
      for (auto& keys : list.keys) keys.positions = {position(keys.tokens.begin), 3};
      call(shape, rotary, list);
    };
  };
  by.forward = with_positions_of_keys(by.forward);
  by.backward = with_positions_of_keys(by.backward);
  for (const std::int64_t block : {64, 7}) {
    expect_right(of, random_index(of, block, false, random, 4), by);
  }
}

/// More queries than a sum in registers holds, of gathered keys and of neighbours.
TEST_F(SparseMma, SumsOfKeysGoToMemoryOnTheWay) {
  if (kSanitized) GTEST_SKIP() << "thousands of queries, one by one: too slow with sanitizers";
  std::mt19937_64 random(23);
  const std::int64_t queries = kernels::device::kQueriesPerFlush + 128;
  Case of = rounded_case({{1, 1, 32}, 0, {queries}, false, 0, 0}, random);
  of.pieces[0].task.k = {0, 40};
  std::vector<std::int64_t> slashes;
  for (std::int64_t slash = 0; slash < queries; slash += 64) slashes.push_back(slash);
  const std::int64_t columns[] = {1, 3, 20, 39, 200};
  const SparseIndex index(1, {SparsePattern::vertical_slash(queries, 64, slashes, columns)});
  expect_right(of, index, under_test());
}

TEST_F(SparseMma, SameBitsInWhateverOrderThreadsRun) {
  std::mt19937_64 random(24);
  const Case of = rounded_case({{3, 1, 32}, 10000, {180}, true, 0, 0}, random);
  const SparseIndex index = random_index(of, 16, false, random, 2);
  const Counts pairs = pairs_of(index);
  expect_same_bits(sparse_results<bfloat16>(of, index, under_test(), pairs),
                   sparse_results<bfloat16>(of, index, under_test(1000), pairs));
}

TEST_F(SparseMma, OverflowedLogitsAreNotTakenForNoKeys) {
  const Case of = overflowing_case({1, 1, 32});
  const std::int64_t columns[] = {3, 100};  // the key whose logit is finite
  const SparseIndex index(1, {SparsePattern::vertical_slash(150, 8, {}, columns)});
  const auto got = sparse_results<bfloat16>(of, index, under_test(), pairs_of(index));
  expect_overflow_shows(got[0], of, kBfloat16);
}

#ifndef KOKKOS_ENABLE_CUDA
/// The planted fault: gathered keys take the places of neighbours in the mask.
TEST_F(SparseMma, WrongPositionsOfGatheredKeysAreFound) {
  std::mt19937_64 random(25);
  const Case of = rounded_case({{1, 1, 64}, 10000, {200}, false, 0, 0}, random);
  std::vector<std::int64_t> columns;
  for (std::int64_t column = 0; column < 200; column += 7) columns.push_back(column);
  const SparseIndex index(1, {SparsePattern::vertical_slash(200, 64, {}, columns)});
  const Vector wanted = reference(by_pairs(of, index))[0].out;
  const auto error = [&](bool wrong) {
    const auto by = emulated_sparse_mma(0, wrong);
    const auto got = sparse_results<bfloat16>(of, index, by, pairs_of(index));
    return relative_difference(got[0].out, wanted);
  };
  EXPECT_LE(error(false), kBfloat16.out);
  EXPECT_GT(error(true), kBfloat16.out);
}
#endif

}  // namespace
}  // namespace cadenza::testing
