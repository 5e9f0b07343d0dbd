// SPDX-License-Identifier: Apache-2.0
// The kernels for tensor cores: on a device as they are called, elsewhere their own source, run by
// emulated blocks.
#include <gmock/gmock.h>

#include <set>
#include <stdexcept>

#include "../../../kernels/device/call.hpp"
#include "../../../kernels/mma/attention.hpp"
#include "unit/kernels/huge_logits.hpp"
#include "unit/sanitized.hpp"
#ifndef KOKKOS_ENABLE_CUDA
#include "../../../kernels/device/rotation.hpp"
#include "../../../kernels/mma/backward.hpp"
#include "../../../kernels/mma/forward.hpp"
#include "unit/kernels/emulated_block.hpp"
#endif

namespace cadenza::testing {
namespace {

#ifdef KOKKOS_ENABLE_CUDA

Kernels<bfloat16> mma_under_test() {
  return {};
}

#else

namespace device = kernels::device;
namespace mma = kernels::mma;

/// Calls test(std::integral_constant<int, D>) with the head_dim.
template <typename Test>
void with_mma_dim(int dim, const Test& test) {
  switch (dim) {
    case 32:
      return test(std::integral_constant<int, 32>());
    case 64:
      return test(std::integral_constant<int, 64>());
    case 96:
      return test(std::integral_constant<int, 96>());
    case 128:
      return test(std::integral_constant<int, 128>());
    default:
      FAIL() << "no kernels for head_dim " << dim;
  }
}

/// A call's arrays, rotated, as a device has them.
struct Prepared {
  Prepared(const kernels::AttentionShape& shape, const kernels::RotaryTable<float>& rotary,
           const kernels::TaskList<bfloat16>& list, std::uint64_t order)
      : seed(order),
        call(device::make_call(shape, rotary, list)),
        memory(static_cast<std::size_t>(call.rotated_elements) + 8) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    call.place_rotated(memory.data() + (16 - begin % 16) % 16 / sizeof(device::Bits));
    call.problem.queries = call.queries.data();
    call.problem.keys = call.keys.data();
    call.problem.rotations = call.rotations.data();
    call.problem.entries = call.entries.data();
    EmulatedBlock block(32, 16, 1);
    const EmulatedThread thread(block, 0);
    for (const device::Rotation& rotation : call.rotations) {
      for (std::int64_t pair = 0; pair < rotation.pairs; ++pair) {
        device::rotate_pair(thread, call.problem, rotation, pair);
      }
    }
  }

  /// Runs Pass<kDim, EmulatedThread> for all units of a side.
  template <template <int, typename> typename Pass, template <int> typename Shape>
  void run(const kernels::AttentionShape& shape, const kernels::TaskList<bfloat16>& list,
           kernels::Side side, int planted) {
    with_mma_dim(shape.head_dim, [&](auto dim) {
      using Of = Shape<dim()>;
      const kernels::UnitList units =
          kernels::make_units(shape, list, device::unit_shape(shape, side, Of::kRows));
      device::Problem problem = call.problem;
      problem.order = units.entries.data();
      EmulatedBlock block(Of::kThreads, Of::kBytes, ++seed, planted);
      for (const kernels::Unit& unit : units.units) {
        block.run([&](const EmulatedThread& thread) {
          Pass<dim(), EmulatedThread>(thread, problem, unit, block.shared()).run();
        });
      }
    });
  }

  std::uint64_t seed;
  device::Call call;
  std::vector<device::Bits> memory;
};

enum class Only { all, forward, query_gradient, key_gradient };

/// A barrier that is left out of a pass, and which passes run.
struct Planted {
  Only in = Only::all;
  int barrier = -1;  ///< as for EmulatedBlock

  bool runs(Only pass) const { return in == Only::all || in == pass; }
};

/// `seed`: of the order of threads.
Kernels<bfloat16> emulated_mma(const Planted& planted = {}, std::uint64_t seed = 0) {
  Kernels<bfloat16> by;
  by.forward = on_stream([=](const auto& shape, const auto& rotary, const auto& list) {
    Prepared prepared(shape, rotary, list, seed);
    prepared.run<mma::Forward, mma::ForwardShape>(
        shape, list, kernels::Side::queries, planted.in == Only::forward ? planted.barrier : -1);
  });
  by.backward = on_stream([=](const auto& shape, const auto& rotary, const auto& list) {
    if (planted.in == Only::forward) return;
    Prepared prepared(shape, rotary, list, seed);
    if (planted.runs(Only::query_gradient)) {
      prepared.run<mma::QueryGradient, mma::QueryGradientShape>(shape, list, kernels::Side::queries,
                                                                planted.barrier);
    }
    if (planted.runs(Only::key_gradient)) {
      prepared.run<mma::KeyGradient, mma::KeyGradientShape>(shape, list, kernels::Side::keys,
                                                            planted.barrier);
    }
  });
  return by;
}

Kernels<bfloat16> mma_under_test() {
  return emulated_mma();
}

#endif

void expect_mma(const Case& of, int calls = 1) {
  expect_within(computed(of, calls, mma_under_test()), reference(of), kBfloat16);
}

TEST(Mma, EqualsDefinitionForEveryHeadDimAndGroup) {
  std::mt19937_64 random(1);
  for (const kernels::AttentionShape shape :
       {kernels::AttentionShape{2, 1, 32}, {2, 2, 64}, {2, 1, 96}, {2, 2, 128}}) {
    SCOPED_TRACE("head_dim " + std::to_string(shape.head_dim));
    expect_mma(rounded_case({shape, 10000, {1, kSanitized ? 70 : 140}, true, 0, 0}, random));
  }
}

TEST(Mma, EqualsDefinitionForRandomTasksOfEveryRule) {
  std::mt19937_64 random(2);
  for (int round = 0; round < (kSanitized ? 1 : 3); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const CaseOptions options = every_rule({4, 2, 32}, round, {1, 130}, random);
    expect_mma(rounded_case(options, random), 1 + round % 3);
  }
}

/// Random diagonals, tokens, positions and maps of them, bands, slices of heads.
TEST(Mma, EqualsDefinitionForStripesBandsAndMaps) {
  std::mt19937_64 random(3);
  const kernels::AttentionShape shapes[] = {{4, 2, 32}, {2, 2, 64}, {3, 1, 32}};
  for (int round = 0; round < (kSanitized ? 3 : 5); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const CaseOptions options = stripes_bands_and_maps(shapes[round % 3], round, {1, 130}, random);
    expect_mma(rounded_case(options, random), 1 + round % 2);
  }
}

/// More queries than a sum in registers holds.
TEST(Mma, SumsOfKeysGoToMemoryOnTheWay) {
  std::mt19937_64 random(4);
  Case of =
      rounded_case({{1, 1, 32}, 0, {kernels::device::kQueriesPerFlush + 128}, false, 0, 0}, random);
  of.pieces[0].task.band = Band::full();
  of.pieces[0].task.k = {0, 40};
  expect_mma(of);
}

TEST(Mma, HugeLogitsKeepTheirLargest) {
  const std::vector<kernels::AttentionShape> shapes = {{1, 1, 32}, {1, 1, 64}, {1, 1, 128}};
  for_each_huge_case(shapes, 80, [](const Case& of, const auto& clear, const auto& wanted) {
    for (const int calls : {1, 2}) {
      const auto got = computed(of, calls, forward_only(mma_under_test()));
      expect_clear_rows(got[0], wanted, clear, kBfloat16);
    }
  });
}

TEST(Mma, OverflowedLogitsAreNotTakenForNoKeys) {
  const Case of = overflowing_case({1, 1, 32});
  expect_overflow_shows(computed(of, 1, mma_under_test())[0], of, kBfloat16);
}

TEST(Mma, KeysOutsideTheBandAreNotRead) {
  std::mt19937_64 random(13);
  Case of = rounded_case({{2, 1, 32}, 10000, {500}, false, 0, 0}, random);
  of.pieces[0].task.q = {400, 500};
  of.pieces[0].task.band = Band::window(100);
  const std::vector<DocumentResult> expected = reference(of);
  for (std::size_t at = 0; at < 300 * 32; ++at) {
    of.documents[0].k[at] = of.documents[0].v[at] = std::nan("");
  }
  expect_within(computed(of, 1, mma_under_test()), expected, kBfloat16);
}

#ifndef KOKKOS_ENABLE_CUDA

TEST(Mma, SameBitsInWhateverOrderThreadsRun) {
  std::mt19937_64 random(5);
  const Case of = rounded_case({{2, 1, 64}, 10000, {140}, true, 0.1, 0}, random);
  const auto a = computed(of, 1, emulated_mma());
  const auto b = computed(of, 1, emulated_mma({}, 1000));
  expect_same_bits(a, b);
}

/// A result that differs, or a block that waits for ever.
bool shows(const Case& of, const DocumentResult& expected, const Planted& planted) {
  try {
    const DocumentResult got = computed(of, 1, emulated_mma(planted)).front();
    const auto differs = [](const Vector& a, const Vector& b, double bound) {
      return !(relative_difference(a, b) <= bound);  // or is NaN
    };
    if (planted.in == Only::forward) return differs(got.out, expected.out, kBfloat16.out);
    if (planted.in == Only::query_gradient) {
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
    for (const Only pass : {Only::forward, Only::query_gradient, Only::key_gradient}) {
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
  for (const int head_dim : mma::kHeadDims) {
    with_mma_dim(head_dim, [&](auto dim) {
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
    });
  }
}

#endif

}  // namespace
}  // namespace cadenza::testing
