// SPDX-License-Identifier: Apache-2.0
// `mma`, run by emulated blocks.
#include "unit/kernels/device_kernels.hpp"
#ifndef KOKKOS_ENABLE_CUDA

#include "../../../kernels/mma/backward.hpp"
#include "../../../kernels/mma/forward.hpp"
#include "unit/kernels/emulated_block.hpp"

namespace cadenza::testing {
namespace {

namespace device = kernels::device;
namespace mma = kernels::mma;

/// A call whose passes are run by blocks that differ in the order of their threads.
struct PreparedMma : RotatedCall {
  PreparedMma(const AttentionShape& shape, const kernels::RotaryTable<float>& rotary,
              const kernels::TaskList<bfloat16>& list, std::uint64_t order)
      : RotatedCall(shape, rotary, list), seed(order) {}

  /// Runs Pass<kDim, EmulatedThread> for all units of a side.
  template <template <int, typename> typename Pass, template <int> typename Shape>
  void run(const AttentionShape& shape, const kernels::TaskList<bfloat16>& list, kernels::Side side,
           int planted) {
    with_head_dim<32, 64, 96, 128>(shape.head_dim, [&](auto dim) {
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
