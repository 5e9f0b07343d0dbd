// SPDX-License-Identifier: Apache-2.0
// The kernels for Hopper: on a device as they are called, elsewhere their own source, run by
// emulated blocks.
#include <gmock/gmock.h>

#include <set>
#include <stdexcept>

#include "../../../kernels/sm90/call.hpp"
#include "unit/kernels/kernel_sets.hpp"
#include "unit/sanitized.hpp"
#ifndef KOKKOS_ENABLE_CUDA
#include "../../../kernels/mma/rotate.hpp"
#include "../../../kernels/sm90/forward.hpp"
#include "../../../kernels/sm90/key_gradient.hpp"
#include "../../../kernels/sm90/query_gradient.hpp"
#include "unit/kernels/emulated_hopper.hpp"
#endif

namespace cadenza::testing {
namespace {

#ifdef KOKKOS_ENABLE_CUDA

constexpr auto kKernel = AttentionKernel::sm90;

Kernels<bfloat16> under_test() {
  return {};
}

#else

namespace mma = kernels::mma;
namespace sm90 = kernels::sm90;

constexpr auto kKernel = AttentionKernel::automatic;

/// Calls test(std::integral_constant<int, D>) with the head_dim.
template <typename Test>
void with_head_dim(int dim, const Test& test) {
  if (dim == 64) return test(std::integral_constant<int, 64>());
  if (dim == 128) return test(std::integral_constant<int, 128>());
  FAIL() << "no kernels for head_dim " << dim;
}

/// A call's arrays, rotated, as a device has them.
struct PreparedCall {
  PreparedCall(const kernels::AttentionShape& of, const kernels::RotaryTable<float>& rotary,
               const kernels::TaskList<bfloat16>& tasks, Pass of_pass)
      : shape(of),
        list(tasks),
        call(mma::make_call(shape, rotary, list)),
        memory(static_cast<std::size_t>(call.rotated_elements) + 8) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    call.place_rotated(memory.data() + (16 - begin % 16) % 16 / sizeof(mma::Bits));
    static_cast<mma::Problem&>(problem) = call.problem;
    problem.queries = call.queries.data();
    problem.keys = call.keys.data();
    problem.rotations = call.rotations.data();
    problem.entries = call.entries.data();
    EmulatedHopper block(0, 0);
    const HopperThread thread(block, 0);
    for (const mma::Rotation& rotation : call.rotations) {
      for (std::int64_t pair = 0; pair < rotation.pairs; ++pair) {
        mma::rotate_pair(thread, problem, rotation, pair);
      }
    }
    maps = sm90::make_maps(call, list, of_pass, shape.head_dim, emulated_map);
    problem.entry_maps = maps.entries.data();
    problem.rotation_maps = maps.rotations.data();
    problem.dout_maps = maps.dout.data();
    problem.k_maps = maps.k.data();
    problem.v_maps = maps.v.data();
  }

  /// All units of a side, by one block.
  template <template <int, typename> typename LoaderOf,
            template <int, typename> typename ConsumerOf, template <int> typename LayoutOf>
  void run(kernels::Side side, std::uint64_t seed, const HopperFault& fault) {
    const mma::Units units = mma::units_of(shape, list, side, sm90::kUnitRows);
    int next = 0;
    problem.units = units.units.data();
    problem.order = units.order.data();
    problem.unit_count = static_cast<int>(units.units.size());
    problem.next_unit = &next;
    with_head_dim(shape.head_dim, [&](auto dim) {
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
  mma::Call call;
  std::vector<mma::Bits> memory;
  sm90::Problem problem;
  sm90::Maps maps;
};

/// Complete when it returns: its tests keep rows in vectors of the host.
template <typename Pass>
auto on_stream(const Pass& pass) {
  return [pass](const auto&... inputs) {
    enqueue(pass, inputs...);
    fence();
  };
}

/// `seed`: of the order of threads and copies.
Kernels<bfloat16> emulated(const HopperFault& fault = {}, std::uint64_t seed = 0) {
  using kernels::Side;
  Kernels<bfloat16> by;
  by.forward = on_stream([=](const auto& shape, const auto& rotary, const auto& list) {
    PreparedCall(shape, rotary, list, Pass::forward)
        .run<sm90::ForwardLoader, sm90::ForwardConsumer, sm90::ForwardLayout>(Side::queries, seed,
                                                                              fault);
  });
  by.backward = on_stream([=](const auto& shape, const auto& rotary, const auto& list) {
    PreparedCall prepared(shape, rotary, list, Pass::backward);
    prepared.run<sm90::QueryGradientLoader, sm90::QueryGradientConsumer, sm90::QueryGradientLayout>(
        Side::queries, seed, fault);
    prepared.run<sm90::KeyGradientLoader, sm90::KeyGradientConsumer, sm90::KeyGradientLayout>(
        Side::keys, seed, fault);
  });
  return by;
}

Kernels<bfloat16> under_test() {
  return emulated();
}

#endif

void expect_definition(const Case& of, int calls = 1) {
  expect_within(computed(of, calls, under_test()), reference(of), kBfloat16);
}

TEST(Sm90, EqualsDefinitionForEveryHeadDimAndGroup) {
  std::mt19937_64 random(1);
  for (const kernels::AttentionShape shape :
       {kernels::AttentionShape{2, 1, 64, kKernel}, {2, 2, 128, kKernel}}) {
    SCOPED_TRACE("head_dim " + std::to_string(shape.head_dim));
    expect_definition(rounded_case({shape, 10000, {1, 70, 300}, true, 0, 0}, random));
  }
}

TEST(Sm90, EqualsDefinitionForRandomTasksOfEveryRule) {
  std::mt19937_64 random(2);
  for (int round = 0; round < (kSanitized ? 1 : 3); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    CaseOptions options{{4, 2, 64, kKernel}, round % 3 == 0 ? 0.0 : 10000.0, {}, true, 0.3, 0.3};
    for (int d = 0; d < 2; ++d) {
      options.lengths.push_back(1 + static_cast<std::int64_t>(random() % 250));
    }
    expect_definition(rounded_case(options, random), 1 + round % 3);
  }
}

/// Random diagonals, tokens, positions and maps of them, bands, slices of heads.
TEST(Sm90, EqualsDefinitionForStripesBandsAndMaps) {
  std::mt19937_64 random(3);
  const kernels::AttentionShape shapes[] = {{4, 2, 64, kKernel}, {2, 2, 128, kKernel}};
  for (int round = 0; round < (kSanitized ? 2 : 6); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    CaseOptions options{shapes[round % 2], 10000, {}, true, 0.1, 0.1};
    options.window_share = round % 2 == 0 ? 0.7 : 0;
    options.striped = round % 3 == 1;
    options.sliced = round % 3 == 2;
    options.mapped_share = round % 2 == 1 ? 0.8 : 0;
    for (int d = 0; d < 2; ++d) {
      options.lengths.push_back(1 + static_cast<std::int64_t>(random() % 250));
    }
    expect_definition(rounded_case(options, random), 1 + round % 2);
  }
}

}  // namespace
}  // namespace cadenza::testing
