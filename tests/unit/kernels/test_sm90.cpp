// SPDX-License-Identifier: Apache-2.0
// The kernels for Hopper: on a device as they are called, elsewhere their own source, run by
// emulated blocks.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "../../../kernels/sm90/attention.hpp"
#include "../../../kernels/sm90/call.hpp"
#include "unit/kernels/huge_logits.hpp"
#include "unit/sanitized.hpp"
#ifndef KOKKOS_ENABLE_CUDA
#include "../../../kernels/device/rotation.hpp"
#include "../../../kernels/sm90/forward.hpp"
#include "../../../kernels/sm90/key_gradient.hpp"
#include "../../../kernels/sm90/query_gradient.hpp"
#include "unit/kernels/emulated_hopper.hpp"
#endif

namespace cadenza::testing {
namespace {

#ifdef KOKKOS_ENABLE_CUDA

constexpr auto kSm90 = AttentionKernel::sm90;

bool sm90_is_here() {
  return std::ranges::count(kernels::available_attention_kernels<bfloat16>(), kSm90) > 0;
}

Kernels<bfloat16> sm90_under_test() {
  return {};
}

#else

namespace device = kernels::device;
namespace sm90 = kernels::sm90;

constexpr auto kSm90 = AttentionKernel::automatic;

bool sm90_is_here() {
  return true;
}

/// Calls test(std::integral_constant<int, D>) with the head_dim.
template <typename Test>
void with_sm90_dim(int dim, const Test& test) {
  if (dim == 64) return test(std::integral_constant<int, 64>());
  if (dim == 128) return test(std::integral_constant<int, 128>());
  FAIL() << "no kernels for head_dim " << dim;
}

/// A call's arrays, rotated, as a device has them.
struct PreparedHopper {
  PreparedHopper(const kernels::AttentionShape& of, const kernels::RotaryTable<float>& rotary,
                 const kernels::TaskList<bfloat16>& tasks, Pass pass)
      : shape(of),
        list(tasks),
        call(device::make_call(shape, rotary, list)),
        memory(static_cast<std::size_t>(call.rotated_elements) + 8) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    call.place_rotated(memory.data() + (16 - begin % 16) % 16 / sizeof(device::Bits));
    static_cast<device::Problem&>(problem) = call.problem;
    problem.queries = call.queries.data();
    problem.keys = call.keys.data();
    problem.rotations = call.rotations.data();
    problem.entries = call.entries.data();
    EmulatedHopper block(0, 0);
    const HopperThread thread(block, 0);
    for (const device::Rotation& rotation : call.rotations) {
      for (std::int64_t pair = 0; pair < rotation.pairs; ++pair) {
        device::rotate_pair(thread, problem, rotation, pair);
      }
    }
    const sm90::CallRows rows = sm90::rows_of(call, list, pass, shape.head_dim);
    entry_maps = sm90::encoded(rows.entries, emulated_map);
    rotation_maps = sm90::encoded(rows.rotations, emulated_map);
    dout_maps = sm90::encoded(rows.dout, emulated_map);
    key_maps = sm90::encoded(rows.keys, emulated_map);
    problem.entry_maps = entry_maps.data();
    problem.rotation_maps = rotation_maps.data();
    problem.dout_maps = dout_maps.data();
    problem.key_maps = key_maps.data();
  }

  /// All units of a side, by one block.
  template <template <int, typename> typename LoaderOf,
            template <int, typename> typename ConsumerOf, template <int> typename LayoutOf>
  void run(kernels::Side side, std::uint64_t seed, const HopperFault& fault) {
    const kernels::UnitList units =
        kernels::make_units(shape, list, device::unit_shape(shape, side, sm90::kUnitRows));
    int next = 0;
    problem.units = units.units.data();
    problem.order = units.entries.data();
    problem.unit_count = static_cast<int>(units.units.size());
    problem.next_unit = &next;
    with_sm90_dim(shape.head_dim, [&](auto dim) {
      using Layout = LayoutOf<dim()>;
      EmulatedHopper block(Layout::kBytes, seed, fault);
      block.run([&](const HopperThread& thread) {
        sm90::initialize_barriers<Layout>(thread, block.shared());
        if (thread.index() < 32) {
          LoaderOf<dim(), HopperThread>(thread, problem, block.shared()).run();
        } else if (thread.index() >= sm90::kWarpgroup) {
          ConsumerOf<dim(), HopperThread>(thread, problem, block.shared()).run();
        }
      });
    });
  }

  const kernels::AttentionShape& shape;
  const kernels::TaskList<bfloat16>& list;
  device::Call call;
  std::vector<device::Bits> memory;
  sm90::Problem problem;
  std::vector<sm90::TensorMap> entry_maps, rotation_maps, dout_maps, key_maps;
};

/// `seed`: of the order of threads and copies.
Kernels<bfloat16> emulated_sm90(const HopperFault& fault = {}, std::uint64_t seed = 0) {
  using kernels::Side;
  Kernels<bfloat16> by;
  by.forward = on_stream([=](const auto& shape, const auto& rotary, const auto& list) {
    PreparedHopper(shape, rotary, list, Pass::forward)
        .run<sm90::ForwardLoader, sm90::ForwardConsumer, sm90::ForwardLayout>(Side::queries, seed,
                                                                              fault);
  });
  by.backward = on_stream([=](const auto& shape, const auto& rotary, const auto& list) {
    PreparedHopper prepared(shape, rotary, list, Pass::backward);
    prepared.run<sm90::QueryGradientLoader, sm90::QueryGradientConsumer, sm90::QueryGradientLayout>(
        Side::queries, seed, fault);
    prepared.run<sm90::KeyGradientLoader, sm90::KeyGradientConsumer, sm90::KeyGradientLayout>(
        Side::keys, seed, fault);
  });
  return by;
}

Kernels<bfloat16> sm90_under_test() {
  return emulated_sm90();
}

#endif

class Sm90 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!sm90_is_here()) GTEST_SKIP() << "the device is not of compute capability 9.0";
  }
};

void expect_sm90(const Case& of, int calls = 1) {
  expect_within(computed(of, calls, sm90_under_test()), reference(of), kBfloat16);
}

TEST_F(Sm90, EqualsDefinitionForEveryHeadDimAndGroup) {
  std::mt19937_64 random(1);
  for (const kernels::AttentionShape shape :
       {kernels::AttentionShape{2, 1, 64, kSm90}, {2, 2, 128, kSm90}}) {
    SCOPED_TRACE("head_dim " + std::to_string(shape.head_dim));
    expect_sm90(rounded_case({shape, 10000, {1, 70, 300}, true, 0, 0}, random));
  }
}

TEST_F(Sm90, EqualsDefinitionForRandomTasksOfEveryRule) {
  std::mt19937_64 random(2);
  for (int round = 0; round < (kSanitized ? 1 : 3); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const CaseOptions options = every_rule({4, 2, 64, kSm90}, round, {1, 180}, random);
    expect_sm90(rounded_case(options, random), 1 + round % 3);
  }
}

/// Random diagonals, tokens, positions and maps of them, bands, slices of heads.
TEST_F(Sm90, EqualsDefinitionForStripesBandsAndMaps) {
  std::mt19937_64 random(3);
  const kernels::AttentionShape shapes[] = {{4, 2, 64, kSm90}, {2, 2, 128, kSm90}};
  for (int round = 0; round < (kSanitized ? 1 : 6); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const CaseOptions options = stripes_bands_and_maps(shapes[round % 2], round, {1, 180}, random);
    expect_sm90(rounded_case(options, random), 1 + round % 2);
  }
}

TEST_F(Sm90, HugeLogitsKeepTheirLargest) {
  const std::vector<kernels::AttentionShape> shapes = {{1, 1, 64, kSm90}, {1, 1, 128, kSm90}};
  for_each_huge_case(shapes, 80, [](const Case& of, const auto& clear, const auto& wanted) {
    for (const int calls : {1, 2}) {
      const auto got = computed(of, calls, forward_only(sm90_under_test()));
      expect_clear_rows(got[0], wanted, clear, kBfloat16);
    }
  });
}

TEST_F(Sm90, OverflowedLogitsAreNotTakenForNoKeys) {
  const Case of = overflowing_case({1, 1, 64, kSm90});
  expect_overflow_shows(computed(of, 1, sm90_under_test())[0], of, kBfloat16);
}

TEST_F(Sm90, KeysOutsideTheBandAreNotRead) {
  std::mt19937_64 random(13);
  Case of = rounded_case({{2, 1, 64, kSm90}, 10000, {500}, false, 0, 0}, random);
  of.pieces[0].task.q = {400, 500};
  of.pieces[0].task.band = Band::window(100);
  const std::vector<DocumentResult> expected = reference(of);
  for (std::size_t at = 0; at < 300 * 64; ++at) {
    of.documents[0].k[at] = of.documents[0].v[at] = std::nan("");
  }
  expect_within(computed(of, 1, sm90_under_test()), expected, kBfloat16);
}

#ifndef KOKKOS_ENABLE_CUDA

TEST_F(Sm90, SumsOfKeysGoToMemoryOnTheWay) {
  if (kSanitized) GTEST_SKIP() << "thousands of queries, one by one: too slow with sanitizers";
  std::mt19937_64 random(4);
  Case of = rounded_case({{1, 1, 64}, 0, {sm90::kQueriesPerFlush + 100}, false, 0, 0}, random);
  of.pieces[0].task.band = Band::full();
  of.pieces[0].task.k = {0, 40};
  expect_sm90(of);
}

TEST_F(Sm90, SameBitsInWhateverOrderThreadsRun) {
  std::mt19937_64 random(5);
  const Case of = rounded_case({{2, 1, 64}, 10000, {300}, true, 0.1, 0}, random);
  const auto a = computed(of, 1, emulated_sm90());
  const auto b = computed(of, 1, emulated_sm90({}, 1000));
  expect_same_bits(a, b);
}

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
TEST_F(Sm90, MissingWaitsAndArrivalsAreFound) {
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

#endif

}  // namespace
}  // namespace cadenza::testing
