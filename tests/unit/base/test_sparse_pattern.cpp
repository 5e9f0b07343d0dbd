// SPDX-License-Identifier: Apache-2.0
// Patterns of sparse attention against worked examples: the blocks and columns of a small index,
// and how evenly context-parallel layouts share a large one (MTraining, arXiv 2510.18830).
#include "cadenza/base/sparse_pattern.hpp"

#include <gmock/gmock.h>

#include <functional>
#include <random>

namespace cadenza {
namespace {

using testing::ElementsAre;

constexpr Range kAll{0, std::int64_t{1} << 40};

/// 32 tokens in 8 blocks.
SparsePattern small_pattern() {
  const std::vector<std::int64_t> slashes = {16, 0, 5}, columns = {9, 18, 0};
  return SparsePattern::vertical_slash(32, 4, slashes, columns);
}

TEST(SparsePattern, SlashesMakeTheBlocksActiveThatTheyCross) {
  const SparsePattern pattern = small_pattern();
  const std::vector<std::vector<std::int64_t>> expected = {
      {0}, {0, 1}, {0, 1, 2}, {1, 2, 3}, {0, 2, 3, 4}, {1, 3, 4, 5}, {2, 4, 5, 6}, {3, 5, 6, 7}};
  const std::vector<std::vector<std::int64_t>> columns = {{}, {},     {},  {0},
                                                          {}, {0, 9}, {0}, {0, 9, 18}};
  const std::vector<std::int64_t> areas = {10, 26, 42, 46, 58, 66, 62, 70};
  for (std::int64_t row = 0; row < 8; ++row) {
    const auto at = static_cast<std::size_t>(row);
    std::vector<std::int64_t> active, seen;
    pattern.for_each_active(row, kAll, [&](Range keys) {
      for (std::int64_t key = keys.begin; key < keys.end; key += 4) active.push_back(key / 4);
    });
    pattern.for_each_column(row, kAll, [&](std::int64_t key) { seen.push_back(key); });
    EXPECT_EQ(active, expected[at]) << "row " << row;
    EXPECT_EQ(seen, columns[at]) << "row " << row;
    EXPECT_EQ(pattern.pairs({4 * row, 4 * row + 4}, kAll), areas[at]) << "row " << row;
  }
  EXPECT_EQ(pattern.pairs(), 380);
}

/// Blocks of a document dealt to ranks, and the work of each rank at each step of a ring.
struct Balance {
  double worker, step, lockstep;

  Balance(const SparsePattern& pattern, int ranks,
          const std::function<std::int64_t(std::int64_t)>& owner) {
    const auto count = static_cast<std::size_t>(ranks);
    std::vector<std::vector<double>> work(count, std::vector<double>(count, 0));
    const std::int64_t size = pattern.block();
    for (std::int64_t row = 0; row < pattern.rows(); ++row) {
      for (std::int64_t column = 0; column <= row; ++column) {
        const std::int64_t pairs =
            pattern.pairs({row * size, (row + 1) * size}, {column * size, (column + 1) * size});
        const std::int64_t rank = owner(row);
        const std::int64_t at = (rank - owner(column) + ranks) % ranks;
        work[static_cast<std::size_t>(rank)][static_cast<std::size_t>(at)] +=
            static_cast<double>(pairs);
      }
    }
    double total = 0, most = 0, lock = 0;
    step = 0;
    for (const auto& steps : work) {
      const double mine = std::accumulate(steps.begin(), steps.end(), 0.0);
      total += mine;
      most = std::max(most, mine);
      step = std::max(step, std::ranges::max(steps) * ranks / mine);
    }
    for (std::size_t t = 0; t < count; ++t) {
      double largest = 0;
      for (const auto& steps : work) largest = std::max(largest, steps[t]);
      lock += largest;
    }
    worker = most * ranks / total;
    lockstep = lock * ranks / total;
  }
};

TEST(SparsePattern, StripesOfBlocksShareASmallOne) {
  const Balance found(small_pattern(), 2, [](std::int64_t block) { return block % 2; });
  EXPECT_NEAR(found.worker, 1.0947, 5e-5);
  EXPECT_NEAR(found.lockstep, 1.1158, 5e-5);
}

TEST(SparsePattern, LayoutsShareALargeOneAsWorkedOut) {
  struct Expected {
    int ranks;
    std::int64_t pairs;
    double sparsity, striped[3], zigzag[3], contiguous[3];
  };
  const std::vector<Expected> table = {{4,
                                        29551488,
                                        0.7798,
                                        {1.0075, 1.2529, 1.0090},
                                        {1.0690, 1.9791, 1.1992},
                                        {1.3509, 4, 1.3510}},
                                       {8,
                                        63239680,
                                        0.8822,
                                        {1.0083, 1.6752, 1.0100},
                                        {1.0683, 3.0198, 1.2858},
                                        {1.3661, 8, 1.3662}},
                                       {32,
                                        278235456,
                                        0.9676,
                                        {1.0084, 3.1602, 1.0184},
                                        {1.0661, 7.6935, 1.4873},
                                        {1.3494, 32, 1.3567}}};
  for (const Expected& row : table) {
    const std::int64_t size = 64, blocks = 64 * row.ranks, ranks = row.ranks;
    std::vector<std::int64_t> slashes, columns;
    for (std::int64_t k = 0; k < 48; ++k) slashes.push_back(size * (blocks * k * k * k / 110592));
    for (std::int64_t k = 0; k < 16; ++k) columns.push_back(97 * k % blocks * size);
    const auto pattern = SparsePattern::vertical_slash(blocks * size, size, slashes, columns);
    EXPECT_EQ(pattern.pairs(), row.pairs);
    const double all =
        0.5 * static_cast<double>(blocks * size) * static_cast<double>(blocks * size + 1);
    EXPECT_NEAR(1 - static_cast<double>(row.pairs) / all, row.sparsity, 5e-5);
    const auto expect = [&](const double* expected, const auto& owner, const char* layout) {
      const Balance found(pattern, row.ranks, owner);
      EXPECT_NEAR(found.worker, expected[0], 5e-5) << layout;
      EXPECT_NEAR(found.step, expected[1], 5e-5) << layout;
      EXPECT_NEAR(found.lockstep, expected[2], 5e-5) << layout;
    };
    expect(
        row.striped, [&](std::int64_t b) { return b % ranks; }, "striped");
    expect(
        row.zigzag,
        [&](std::int64_t b) {
          const std::int64_t piece = b / (blocks / ranks / 2);
          return std::min(piece, 2 * ranks - 1 - piece);
        },
        "zigzag");
    expect(
        row.contiguous, [&](std::int64_t b) { return b / (blocks / ranks); }, "contiguous");
  }
}

TEST(SparsePattern, AnyCutIsExact) {
  std::mt19937 random(3);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int trial = 0; trial < 100; ++trial) {
    const std::int64_t length = 1 + below(70), block = 1 + below(12);
    std::vector<std::int64_t> slashes, columns;
    for (std::int64_t i = below(4); i > 0; --i) slashes.push_back(below(length));
    for (std::int64_t i = below(6); i > 0; --i) columns.push_back(below(length));
    SparsePattern pattern = SparsePattern::vertical_slash(length, block, slashes, columns);
    if (trial % 2 == 1) {
      const std::int64_t rows = pattern.rows();
      std::vector<bool> active(static_cast<std::size_t>(rows * (rows + 1) / 2));
      for (std::size_t i = 0; i < active.size(); ++i) active[i] = below(3) == 0;
      pattern = SparsePattern::blocks(length, block, active);
    }
    std::int64_t sum = 0;
    const std::int64_t q = below(length + 1), k = below(length + 1);
    for (const Range queries : {Range{0, q}, Range{q, length}}) {
      for (const Range keys : {Range{0, k}, Range{k, length}}) {
        std::int64_t seen = 0;
        for (std::int64_t i = queries.begin; i < queries.end; ++i) {
          for (std::int64_t j = keys.begin; j < keys.end; ++j) seen += pattern.sees(i, j) ? 1 : 0;
        }
        EXPECT_EQ(pattern.pairs(queries, keys), seen);
        sum += seen;
      }
    }
    EXPECT_EQ(pattern.pairs(), sum);
    for (std::int64_t i = 0; i < length; ++i) EXPECT_TRUE(pattern.sees(i, i));
  }
}

}  // namespace
}  // namespace cadenza
