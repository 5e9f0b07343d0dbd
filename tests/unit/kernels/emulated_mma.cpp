// SPDX-License-Identifier: Apache-2.0
// `mma`, run by emulated blocks.
#include "unit/kernels/device_kernels.hpp"
#ifndef KOKKOS_ENABLE_CUDA

#include <gtest/gtest.h>

#include "../../../kernels/device/call.hpp"
#include "../../../kernels/device/rotation.hpp"
#include "../../../kernels/mma/backward.hpp"
#include "../../../kernels/mma/forward.hpp"
#include "unit/kernels/emulated_block.hpp"

namespace cadenza::testing {
namespace {

namespace device = kernels::device;
namespace mma = kernels::mma;

/// Calls test(std::integral_constant<int, D>) with the head_dim.
template <typename Test>
void with_dim(int dim, const Test& test) {
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
struct PreparedMma {
  PreparedMma(const AttentionShape& shape, const kernels::RotaryTable<float>& rotary,
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
  void run(const AttentionShape& shape, const kernels::TaskList<bfloat16>& list, kernels::Side side,
           int planted) {
    with_dim(shape.head_dim, [&](auto dim) {
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

}  // namespace

Kernels<bfloat16> emulated_mma(const MissingBarrier& fault, std::uint64_t seed) {
  Kernels<bfloat16> by;
  by.forward = on_stream([=](const auto& shape, const auto& rotary, const auto& list) {
    PreparedMma prepared(shape, rotary, list, seed);
    prepared.run<mma::Forward, mma::ForwardShape>(
        shape, list, kernels::Side::queries, fault.in == MmaPass::forward ? fault.barrier : -1);
  });
  by.backward = on_stream([=](const auto& shape, const auto& rotary, const auto& list) {
    if (fault.in == MmaPass::forward) return;
    PreparedMma prepared(shape, rotary, list, seed);
    if (fault.runs(MmaPass::query_gradient)) {
      prepared.run<mma::QueryGradient, mma::QueryGradientShape>(shape, list, kernels::Side::queries,
                                                                fault.barrier);
    }
    if (fault.runs(MmaPass::key_gradient)) {
      prepared.run<mma::KeyGradient, mma::KeyGradientShape>(shape, list, kernels::Side::keys,
                                                            fault.barrier);
    }
  });
  return by;
}

}  // namespace cadenza::testing

#endif
