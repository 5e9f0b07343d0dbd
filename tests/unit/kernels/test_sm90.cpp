// SPDX-License-Identifier: Apache-2.0
// What the emulation of `sm90` finds, and its layout of shared memory.
#include "unit/kernels/device_kernels.hpp"
#ifndef KOKKOS_ENABLE_CUDA

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "../../../kernels/sm90/attention.hpp"
#include "../../../kernels/sm90/forward.hpp"
#include "../../../kernels/sm90/key_gradient.hpp"
#include "../../../kernels/sm90/query_gradient.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::testing {
namespace {

namespace sm90 = kernels::sm90;

/// Whether a run with the fault goes wrong, in one of some orders of threads.
bool is_found(const HopperFault& fault, const Case& of,
              const std::vector<DocumentResult>& expected) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    try {
      const DocumentResult got = computed(of, 1, emulated_sm90(fault, seed))[0];
      const bool right = relative_difference(got.out, expected[0].out) <= kBfloat16.out &&
                         relative_difference(got.dq, expected[0].dq) <= kBfloat16.gradients &&
                         relative_difference(got.dk, expected[0].dk) <= kBfloat16.gradients &&
                         relative_difference(got.dv, expected[0].dv) <= kBfloat16.gradients;
      if (!right) return true;
    } catch (const std::runtime_error&) {
      return true;
    }
  }
  return false;
}

/// What the emulation is for: a wait or an arrival that is left out shows, whichever it is.
TEST(Sm90, MissingWaitsAndArrivalsAreFound) {
  using Kind = HopperFault::Kind;
  std::mt19937_64 random(6);
  const Case of = rounded_case({{1, 1, 64}, 10000, {400}, false, 0, 0}, random);
  const std::vector<DocumentResult> expected = reference(of);
  for (int nth = 0; nth < 4; nth += kSanitized ? 3 : 1) {
    SCOPED_TRACE("the " + std::to_string(nth) + "th");
    EXPECT_TRUE(is_found({Kind::wait, false, nth}, of, expected));
    EXPECT_TRUE(is_found({Kind::products, false, nth}, of, expected));
    EXPECT_TRUE(is_found({Kind::arrival, false, nth}, of, expected));
  }
  // The loading warp's first waits are for slots that were never used, and some later ones for what
  // others that it waited for imply.
  for (const int nth : {6, 7, 9}) {
    SCOPED_TRACE("the " + std::to_string(nth) + "th of the loading warp");
    EXPECT_TRUE(is_found({Kind::wait, true, nth}, of, expected));
  }
}

TEST(EmulatedHopper, SaysWhatADeviceWouldHangOn) {
  EmulatedHopper block(1024, 1);
  auto* barrier = reinterpret_cast<std::uint64_t*>(block.shared());
  const auto nobody_arrives = [&](const HopperThread& thread) {
    if (thread.index() == 0) thread.initialize(barrier, 1);
    thread.block_barrier();
    thread.wait(barrier, 0);
  };
  EXPECT_THROW(block.run(nobody_arrives), std::runtime_error);
  const auto too_many_arrive = [&](const HopperThread& thread) {
    if (thread.index() == 0) thread.initialize(barrier, 2);
    thread.block_barrier();
    if (thread.index() == 1) thread.arrive_expecting(barrier, 16);
    if (thread.index() < 4) thread.arrive(barrier);
  };
  EXPECT_THROW(block.run(too_many_arrive), std::runtime_error);
  const auto part_of_a_warp = [](const HopperThread& thread) {
    if (thread.index() % 32 > 0) thread.exchanged(1, 1);
  };
  EXPECT_THROW(block.run(part_of_a_warp), std::runtime_error);
  const auto different_products = [](const HopperThread& thread) {
    float sums[8][4] = {};
    thread.multiply(sums, sm90::descriptor(0, 16, 1024),
                    sm90::descriptor(thread.index() % 2 * 16u, 16, 1024), false);
  };
  EXPECT_THROW(block.run(different_products), std::runtime_error);
}

/// Every element of a tile as products find it is where the copy engine put it, and no two elements
/// share a place.
TEST(Sm90Layout, ProductsFindWhatTheCopyEngineWrites) {
  for (const int head_dim : sm90::kHeadDims) {
    for (const int rows : {64, 128}) {
      std::set<unsigned> places;
      for (int row = 0; row < rows; ++row) {
        for (int column = 0; column < head_dim; ++column) {
          // The copy engine: panels of 64 elements, chunks of a row exchanged by its number.
          const int chunk = column % 64 / 8 ^ row % 8;
          const auto place = static_cast<unsigned>(column / 64 * rows * 128 + row * 128 +
                                                   chunk * 16 + column % 8 * 2);
          places.insert(place);
          // Depth is head_dim: 16 elements from a multiple of 16 on; rows in steps of 64.
          const std::uint64_t by_rows = sm90::advanced(sm90::rows_factor(0, row / 64 * 64),
                                                       sm90::depth_bytes(rows, column / 16 * 16));
          const unsigned start = static_cast<unsigned>(by_rows & 0x3fff) * 16;
          const auto in_rows =
              static_cast<unsigned>(row % 64 / 8 * 1024 + row % 8 * 128 + column % 16 * 2);
          EXPECT_EQ(sm90::swizzled(start + in_rows), place);
          // Depth is rows: 16 of them, all elements.
          const std::uint64_t by_columns =
              sm90::advanced(sm90::columns_factor(0, rows), row / 16 * 16 * sm90::kRowBytes);
          const unsigned begin = static_cast<unsigned>(by_columns & 0x3fff) * 16;
          const unsigned leading = static_cast<unsigned>(by_columns >> 16 & 0x3fff) * 16;
          const unsigned stride = static_cast<unsigned>(by_columns >> 32 & 0x3fff) * 16;
          const auto r = static_cast<unsigned>(row % 16);
          const auto c = static_cast<unsigned>(column);
          EXPECT_EQ(
              sm90::swizzled(begin + r / 8 * stride + r % 8 * 128 + c / 64 * leading + c % 64 * 2),
              place);
        }
      }
      EXPECT_EQ(places.size(), static_cast<std::size_t>(rows * head_dim));
    }
  }
}

/// Places of a pass in shared memory do not overlap, and panels begin where the swizzle does.
TEST(Sm90Layout, PlacesInSharedMemoryAreApart) {
  const auto check = [](auto layout) {
    using Layout = decltype(layout);
    std::vector<std::pair<int, int>> places;  // begin, end
    for (int slot = 0; slot < Layout::kSegmentSlots; ++slot) {
      for (int array = 0; array < Layout::kArrays; ++array) {
        places.emplace_back(Layout::segment(slot, array),
                            Layout::segment(slot, array) + Layout::kSegmentTile);
        EXPECT_EQ(Layout::segment(slot, array) % sm90::kAtomBytes, 0);
      }
      for (const int at : {Layout::segment_full(slot), Layout::segment_empty(slot)}) {
        places.emplace_back(at, at + 8);
        EXPECT_EQ(at % 8, 0);
      }
    }
    for (int slot = 0; slot < Layout::kTileSlots; ++slot) {
      for (int array = 0; array < 2; ++array) {
        places.emplace_back(Layout::tile(slot, array), Layout::tile(slot, array) + Layout::kTile);
        EXPECT_EQ(Layout::tile(slot, array) % sm90::kAtomBytes, 0);
        places.emplace_back(Layout::full(slot, array), Layout::full(slot, array) + 8);
        places.emplace_back(Layout::empty(slot, array), Layout::empty(slot, array) + 8);
      }
      places.emplace_back(Layout::numbers(slot),
                          Layout::numbers(slot) + Layout::kNumbersOfTile * 4);
      places.emplace_back(Layout::info(slot),
                          Layout::info(slot) + static_cast<int>(sizeof(sm90::TileInfo)));
    }
    std::ranges::sort(places);
    for (std::size_t i = 1; i < places.size(); ++i) {
      EXPECT_LE(places[i - 1].second, places[i].first);
    }
    EXPECT_LE(places.back().second, Layout::kBytes);
  };
  check(sm90::ForwardLayout<64>());
  check(sm90::ForwardLayout<128>());
  check(sm90::QueryGradientLayout<64>());
  check(sm90::QueryGradientLayout<128>());
  check(sm90::KeyGradientLayout<64>());
  check(sm90::KeyGradientLayout<128>());
}

}  // namespace
}  // namespace cadenza::testing

#endif
