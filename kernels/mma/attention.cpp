// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#ifdef KOKKOS_ENABLE_CUDA

#include <algorithm>

#include "../portable/problem.hpp"
#include "call.hpp"
#include "cuda_kernels.hpp"

namespace cadenza::kernels::mma {
namespace {

/// A call's arrays in device memory. They go with the object, which waits for the stream.
struct DeviceCall {
  DeviceCall(const AttentionShape& shape, const RotaryTable<float>& rotary,
             const TaskList<bfloat16>& list)
      : call(make_call(shape, rotary, list)),
        rotated(Kokkos::view_alloc("attention_rotated_queries", Kokkos::WithoutInitializing),
                static_cast<std::size_t>(call.rotated_elements)) {
    call.place_rotated(rotated.data());
    queries = portable::to_device("attention_queries", call.queries);
    keys = portable::to_device("attention_keys", call.keys);
    rotations = portable::to_device("attention_rotations", call.rotations);
    entries = portable::to_device("attention_tasks", call.entries);
    call.problem.queries = queries.data();
    call.problem.keys = keys.data();
    call.problem.rotations = rotations.data();
    call.problem.entries = entries.data();
  }

  void rotate() const {
    if (call.problem.half == 0) return;
    std::int64_t most = 0;
    for (const Rotation& rotation : call.rotations) {
      const Queries& of = call.queries[static_cast<std::size_t>(rotation.queries)];
      most = std::max(most, rotation.rows * of.heads * call.problem.half);
    }
    launch_rotation(call.problem, static_cast<int>(call.rotations.size()), most,
                    Device().cuda_stream());
  }

  Call call;
  portable::DeviceList<Bits> rotated;
  portable::DeviceList<Queries> queries;
  portable::DeviceList<Keys> keys;
  portable::DeviceList<Rotation> rotations;
  portable::DeviceList<Entry> entries;
};

/// Units of one side, which live as long as the object.
struct DeviceUnits {
  DeviceUnits(const AttentionShape& shape, const TaskList<bfloat16>& list, Side side) {
    const Units made = units_of(shape, list, side);
    units = portable::to_device("attention_units", made.units);
    order = portable::to_device("attention_entries", made.order);
  }

  void launch(Grid grid, const AttentionShape& shape, Problem problem) const {
    problem.units = units.data();
    problem.order = order.data();
    mma::launch(grid, shape.head_dim, problem, static_cast<int>(units.extent(0)),
                Device().cuda_stream());
  }

  portable::DeviceList<Unit> units;
  portable::DeviceList<int> order;
};

}  // namespace

void attention(Pass pass, const AttentionShape& shape, const RotaryTable<float>& rotary,
               const TaskList<bfloat16>& list) {
  const DeviceCall device(shape, rotary, list);
  device.rotate();
  const DeviceUnits queries(shape, list, Side::queries);
  if (pass == Pass::forward) return queries.launch(Grid::forward, shape, device.call.problem);
  queries.launch(Grid::query_gradient, shape, device.call.problem);
  DeviceUnits(shape, list, Side::keys).launch(Grid::key_gradient, shape, device.call.problem);
}

}  // namespace cadenza::kernels::mma

#endif
