// SPDX-License-Identifier: Apache-2.0
// How many tiles a sparse call of `mma` walks over, and what its arrays take: the walks run on the
// host.
#include "unit/kernels/device_kernels.hpp"
#ifndef KOKKOS_ENABLE_CUDA

#include <gmock/gmock.h>

#include <set>

#include "../../../kernels/device/sparse_call.hpp"
#include "../../../kernels/mma/backward.hpp"
#include "../../../kernels/mma/forward.hpp"
#include "../../../kernels/mma/sparse_tiles.hpp"

namespace cadenza::testing {
namespace {

namespace device = kernels::device;
namespace mma = kernels::mma;
using kernels::Side;

constexpr int kDim = 64;
constexpr int kTile = 64;

/// Rows that no one reads; their addresses are multiples of 16 bytes.
const bfloat16* rows_at(int place) {
  return reinterpret_cast<const bfloat16*>(static_cast<std::uintptr_t>(place) * 4096);
}

std::int64_t tiles_of(std::int64_t rows) {
  return (rows + kTile - 1) / kTile;
}

/// A causal call of one document.
class SparseCall {
 public:
  SparseCall(const AttentionShape& shape, std::int64_t length, std::vector<SparsePattern> patterns)
      : shape_(shape), index_(shape.heads, std::move(patterns)) {
    list_.index = &index_;
    list_.queries = {{{0, length}, rows_at(1), nullptr, nullptr, rows_at(2)}};
    list_.keys = {{{0, length}, rows_at(3), rows_at(4)}};
    list_.tasks = {{{0, {0, length}, {0, length}, {0, shape.heads}, Band::causal()}, 0, 0}};
    made_ = device::make_sparse_call(Pass::backward, shape_, {}, list_);
    arrays_.emplace(HostMemory(), made_, nullptr);
  }

  struct Tiles {
    std::int64_t gathered = 0;
    std::int64_t neighbours = 0;
  };

  /// Calls visit(unit, tiles) for the units of a side, with the tiles of Tile's walk.
  template <typename Tile, typename Visit>
  void for_each_unit(Side side, const Visit& visit) {
    const kernels::UnitList units = device::sparse_units(made_, shape_, list_, side, 128);
    const device::SparseProblem& problem = arrays_->problem(units);
    for (const kernels::Unit& unit : units.units) {
      Tiles tiles;
      Tile tile;
      for (tile.start(problem, unit); !tile.done(); tile.advance(problem, unit)) {
        bool gathered = unit.columns > 0;
        if constexpr (requires { tile.gathered; }) gathered = tile.gathered != nullptr;
        ++(gathered ? tiles.gathered : tiles.neighbours);
      }
      visit(unit, tiles);
    }
  }

  const device::SparseCall& made() const { return made_; }
  const SparsePattern& pattern(int head) const { return *index_.of(0, head); }
  std::int64_t bytes() const { return arrays_->bytes(); }

 private:
  AttentionShape shape_;
  SparseIndex index_;
  kernels::TaskList<bfloat16> list_;
  device::SparseCall made_;
  std::optional<device::SparseArrays<HostMemory>> arrays_;
};

std::int64_t columns_before(const SparsePattern& pattern, std::int64_t token) {
  return std::ranges::lower_bound(pattern.columns(), token) - pattern.columns().begin();
}

std::vector<std::int64_t> every(std::int64_t step, std::int64_t length) {
  std::vector<std::int64_t> all;
  for (std::int64_t at = 0; at < length; at += step) all.push_back(at);
  return all;
}

/// A unit of queries takes a tile for every 64 columns that it sees, and its own blocks.
TEST(SparseCall, ColumnsOfQueriesAreGatheredByTheTile) {
  constexpr std::int64_t kLength = 500;
  SparseCall call({2, 1, kDim}, kLength,
                  {SparsePattern::vertical_slash(kLength, 64, {}, every(2, kLength)),
                   SparsePattern::vertical_slash(kLength, 64, {}, every(300, kLength))});
  int units = 0;
  call.for_each_unit<mma::SparseKeyTile<kDim, kTile>>(
      Side::queries, [&](const auto& unit, const auto& tiles) {
        const std::int64_t columns = columns_before(call.pattern(unit.head_begin), unit.end);
        EXPECT_EQ(tiles.gathered, tiles_of(columns)) << "head " << unit.head_begin;
        EXPECT_EQ(tiles.neighbours, tiles_of(unit.end - unit.begin));
        ++units;
      });
  EXPECT_EQ(units, 8);
}

/// The columns of a head are units of 128 gathered keys, which take all queries behind their first.
TEST(SparseCall, ColumnsOfKeysAreUnitsOfTheirOwn) {
  constexpr std::int64_t kLength = 500;
  SparseCall call({2, 1, kDim}, kLength,
                  {SparsePattern::vertical_slash(kLength, 64, {}, every(2, kLength)),
                   SparsePattern::vertical_slash(kLength, 64, {}, every(300, kLength))});
  std::multiset<int> gathered_units;
  std::int64_t rows = 0;
  call.for_each_unit<mma::SparseQueryTile<kDim, kTile>>(
      Side::keys, [&](const auto& unit, const auto& tiles) {
        if (unit.columns == 0) {
          rows += unit.end - unit.begin;
          EXPECT_EQ(tiles.neighbours, 2 * tiles_of(unit.end - unit.begin));  // of two heads
          return;
        }
        gathered_units.insert(unit.head_begin);
        EXPECT_EQ(tiles.gathered, tiles_of(kLength - unit.begin));
      });
  EXPECT_EQ(rows, kLength);
  EXPECT_EQ(gathered_units, (std::multiset<int>{0, 0, 1}));  // 250 columns, 2 columns
  EXPECT_EQ(call.made().sums.size(), 250u);                  // rows that some head gathers
  EXPECT_EQ(call.made().summed.size(), 252u);
}

/// A head of 128K tokens with as many columns and slashes as are the default: the tiles of its
/// blocks, a tile for every 64 columns and unit of queries, and arrays that do not grow with them.
/// The numbers are those of docs/results/sparse.md.
TEST(SparseCall, ALongDocumentTakesFewTilesAndBytes) {
  constexpr std::int64_t kLength = 128 * 1024;
  std::mt19937_64 random(26);
  const auto drawn = [&](std::int64_t first, int count) {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < first; ++i) all.push_back(i);
    while (std::ssize(all) < count) {
      all.push_back(static_cast<std::int64_t>(random() % std::uint64_t{kLength}));
    }
    return all;
  };
  const std::vector<std::int64_t> slashes = drawn(32, 256);
  SparseCall call({1, 1, kDim}, kLength,
                  {SparsePattern::vertical_slash(kLength, 64, slashes, drawn(16, 1024))});
  const SparsePattern& pattern = call.pattern(0);
  std::int64_t blocks = 0, wide = 0, single = 0;
  for (std::int64_t row = 0; row < pattern.rows(); ++row) {
    for (std::int64_t column = 0; column <= row; ++column) {
      const bool active = pattern.active(row, column);
      blocks += active;  // with the block before it in one unit of keys, if that is active
      wide += active && (column % 2 == 0 || !pattern.active(row, column - 1));
    }
    pattern.for_each_column(row, {0, kLength}, [&](std::int64_t) { ++single; });
  }
  std::int64_t gathered = 0, neighbours = 0;
  call.for_each_unit<mma::SparseKeyTile<kDim, kTile>>(
      Side::queries, [&](const auto& unit, const auto& tiles) {
        EXPECT_EQ(tiles.gathered, tiles_of(columns_before(pattern, unit.end)));
        gathered += tiles.gathered;
        neighbours += tiles.neighbours;
      });
  std::int64_t gathered_keys = 0, neighbouring_keys = 0;
  call.for_each_unit<mma::SparseQueryTile<kDim, kTile>>(
      Side::keys, [&](const auto& unit, const auto& tiles) {
        EXPECT_EQ(tiles.gathered, unit.columns > 0 ? tiles_of(kLength - unit.begin) : 0);
        gathered_keys += tiles.gathered;
        neighbouring_keys += tiles.neighbours;
      });
  EXPECT_EQ(neighbours, blocks);
  EXPECT_EQ(neighbouring_keys, wide);
  EXPECT_EQ(wide, 305435);
  EXPECT_EQ(single, 852684);
  EXPECT_EQ(gathered, 8881);
  EXPECT_EQ(blocks, 428537);
  EXPECT_LT(call.bytes(), 200 * 1024);
}

}  // namespace
}  // namespace cadenza::testing

#endif
