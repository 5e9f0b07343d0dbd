// SPDX-License-Identifier: Apache-2.0
// `sm90`, run by emulated blocks.
#include "unit/kernels/device_kernels.hpp"
#ifndef KOKKOS_ENABLE_CUDA

#include "../../../kernels/sm90/attention.hpp"
#include "../../../kernels/sm90/call.hpp"
#include "../../../kernels/sm90/forward.hpp"
#include "../../../kernels/sm90/key_gradient.hpp"
#include "../../../kernels/sm90/query_gradient.hpp"

namespace cadenza::testing {
namespace {

namespace device = kernels::device;
namespace sm90 = kernels::sm90;

/// A call and its maps for the copy engine.
struct PreparedHopper : RotatedCall {
  PreparedHopper(const AttentionShape& of, const kernels::RotaryTable<float>& rotary,
                 const kernels::TaskList<bfloat16>& tasks, Pass pass)
      : RotatedCall(of, rotary, tasks), shape(of), list(tasks) {
    static_cast<device::Problem&>(problem) = call.problem;
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
    with_head_dim<64, 128>(shape.head_dim, [&](auto dim) {
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

  const AttentionShape& shape;
  const kernels::TaskList<bfloat16>& list;
  sm90::Problem problem;
  std::vector<sm90::TensorMap> entry_maps, rotation_maps, dout_maps, key_maps;
};

}  // namespace

Kernels<bfloat16> emulated_sm90(const HopperFault& fault, std::uint64_t seed) {
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

}  // namespace cadenza::testing

#endif
