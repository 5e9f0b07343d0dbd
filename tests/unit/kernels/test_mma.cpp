// SPDX-License-Identifier: Apache-2.0
// What the emulation of `mma` finds, and its layout of tiles.
#include "unit/kernels/device_kernels.hpp"
#ifndef KOKKOS_ENABLE_CUDA

#include <gmock/gmock.h>

#include <set>
#include <stdexcept>
#include <type_traits>

#include "../../../kernels/mma/layout.hpp"
#include "unit/kernels/emulated_block.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::testing {
namespace {

namespace mma = kernels::mma;

/// A result that differs, or a block that waits for ever.
bool shows(const Case& of, const DocumentResult& expected, const MissingBarrier& fault) {
  try {
    const DocumentResult got = computed(of, 1, emulated_mma(fault)).front();
    const auto differs = [](const Vector& a, const Vector& b, double bound) {
      return !(relative_difference(a, b) <= bound);  // or is NaN
    };
    if (fault.in == MmaPass::forward) return differs(got.out, expected.out, kBfloat16.out);
    if (fault.in == MmaPass::query_gradient) {
      return differs(got.dq, expected.dq, kBfloat16.gradients);
    }
    return differs(got.dk, expected.dk, kBfloat16.gradients) ||
           differs(got.dv, expected.dv, kBfloat16.gradients);
  } catch (const std::runtime_error&) {
    return true;
  }
}

/// What the emulation is for: a barrier that is left out shows, whichever it is and in which pass.
TEST(Mma, MissingBarriersAreFound) {
  std::mt19937_64 random(6);
  for (const int head_dim : {64, 128}) {  // one warp has 32 keys, or two share them
    if (kSanitized && head_dim == 64) continue;
    const Case of = rounded_case({{1, 1, head_dim}, 10000, {200}, false, 0, 0}, random);
    const DocumentResult expected = reference(of).front();
    for (const MmaPass pass : {MmaPass::forward, MmaPass::query_gradient, MmaPass::key_gradient}) {
      EXPECT_FALSE(shows(of, expected, {pass}));
      for (int barrier = 0; barrier < 4; ++barrier) {
        EXPECT_TRUE(shows(of, expected, {pass, barrier}))
            << "head_dim " << head_dim << ", pass " << static_cast<int>(pass)
            << ", without barrier " << barrier;
      }
    }
  }
}

TEST(EmulatedBlock, SaysWhatADeviceWouldHangOn) {
  constexpr int kThreads = 64;
  EmulatedBlock block(kThreads, 64, 1);
  const auto some_wait = [](const EmulatedThread& thread) {
    if (thread.index() > 0) thread.barrier();
  };
  EXPECT_THROW(block.run(some_wait), std::runtime_error);
  const auto part_of_a_warp = [](const EmulatedThread& thread) {
    if (thread.index() % 32 > 0) thread.exchanged(1, 1);
  };
  EXPECT_THROW(block.run(part_of_a_warp), std::runtime_error);
  const auto outside = [&](const EmulatedThread& thread) {
    unsigned to[4];
    thread.load(to, block.shared() + 32);
  };
  EXPECT_THROW(block.run(outside), std::runtime_error);
  int ended = 0;
  block.run([&](const EmulatedThread&) { ++ended; });
  EXPECT_EQ(ended, kThreads);
}

/// Every element of a tile has a place of its own, and the eight rows that are read at once lie in
/// eight different groups of four banks.
TEST(MmaLayout, ElementsHavePlacesAndRowsHaveBanks) {
  constexpr int kRows = 64;
  const auto check = [](auto dim) {
    std::set<int> places;
    for (int row = 0; row < kRows; ++row) {
      for (int column = 0; column < dim(); ++column) {
        const int place = mma::at<dim()>(row, column);
        EXPECT_TRUE(place >= 0 && place < kRows * dim());
        EXPECT_EQ(place % mma::kChunk, column % mma::kChunk);
        places.insert(place);
      }
    }
    EXPECT_EQ(places.size(), static_cast<std::size_t>(kRows * dim()));
    for (int row = 0; row < kRows; ++row) {
      for (int column = 0; column < 2 * mma::kChunk; ++column) {
        const int place = mma::at<dim()>(row, column);
        for (int by = 0; by < dim(); by += 16) {
          EXPECT_EQ(mma::after<dim()>(place, by), mma::at<dim()>(row, column + by));
        }
      }
    }
    for (int row = 0; row < kRows; row += 8) {
      for (int column = 0; column < dim(); column += mma::kChunk) {
        std::set<int> banks;
        for (int i = 0; i < 8; ++i) banks.insert(mma::at<dim()>(row + i, column) / 8 % 8);
        EXPECT_EQ(banks.size(), 8u)
            << "head_dim " << dim() << ", row " << row << ", column " << column;
      }
    }
  };
  check(std::integral_constant<int, 32>());
  check(std::integral_constant<int, 64>());
  check(std::integral_constant<int, 96>());
  check(std::integral_constant<int, 128>());
}

}  // namespace
}  // namespace cadenza::testing

#endif
