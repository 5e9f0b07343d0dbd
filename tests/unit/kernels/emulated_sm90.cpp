// SPDX-License-Identifier: Apache-2.0
// `sm90`, run by emulated blocks.
#include "unit/kernels/device_kernels.hpp"
#ifndef KOKKOS_ENABLE_CUDA

#include <gtest/gtest.h>

#include "../../../kernels/device/rotation.hpp"
#include "../../../kernels/sm90/attention.hpp"
#include "../../../kernels/sm90/call.hpp"
#include "../../../kernels/sm90/forward.hpp"
#include "../../../kernels/sm90/key_gradient.hpp"
#include "../../../kernels/sm90/query_gradient.hpp"

namespace cadenza::testing {
namespace {

namespace device = kernels::device;
namespace sm90 = kernels::sm90;

/// Calls test(std::integral_constant<int, D>) with the head_dim.
template <typename Test>
void with_sm90_dim(int dim, const Test& test) {
  if (dim == 64) return test(std::integral_constant<int, 64>());
  if (dim == 128) return test(std::integral_constant<int, 128>());
  FAIL() << "no kernels for head_dim " << dim;
}

/// A call's arrays, rotated, as a device has them.
struct PreparedHopper {
  PreparedHopper(const AttentionShape& of, const kernels::RotaryTable<float>& rotary,
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

  const AttentionShape& shape;
  const kernels::TaskList<bfloat16>& list;
  device::Call call;
  std::vector<device::Bits> memory;
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
