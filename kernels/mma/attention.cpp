// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#ifdef KOKKOS_ENABLE_CUDA

#include <algorithm>

#include "cadenza/kernels/device.hpp"
#include "call.hpp"
#include "cuda_kernels.hpp"
#include "stream_memory.hpp"

namespace cadenza::kernels::mma {
namespace {

/// A call's arrays in device memory.
class DeviceCall {
 public:
  DeviceCall(const AttentionShape& shape, const RotaryTable<float>& rotary,
             const TaskList<bfloat16>& list, cudaStream_t stream)
      : shape_(shape),
        list_(list),
        stream_(stream),
        call_(make_call(shape, rotary, list)),
        rotated_(static_cast<std::size_t>(call_.rotated_elements), stream),
        rotations_((call_.place_rotated(rotated_.data()), call_.rotations), stream),
        queries_(call_.queries, stream),
        keys_(call_.keys, stream),
        entries_(call_.entries, stream) {
    call_.problem.queries = queries_.data();
    call_.problem.keys = keys_.data();
    call_.problem.rotations = rotations_.data();
    call_.problem.entries = entries_.data();
  }

  void rotate() const {
    if (call_.problem.half == 0) return;
    std::int64_t most = 0;
    for (const Rotation& rotation : call_.rotations) {
      most = std::max(most, rotation.pairs);
    }
    launch_rotation(call_.problem, static_cast<int>(call_.rotations.size()), most, stream_);
  }

  void run(Grid grid, Side side) const {
    const Units made = units_of(shape_, list_, side, unit_rows(grid, shape_.head_dim));
    const StreamArray<Unit> units(made.units, stream_);
    const StreamArray<int> order(made.order, stream_);
    Problem problem = call_.problem;
    problem.units = units.data();
    problem.order = order.data();
    launch(grid, shape_.head_dim, problem, static_cast<int>(made.units.size()), stream_);
  }

 private:
  const AttentionShape& shape_;
  const TaskList<bfloat16>& list_;
  cudaStream_t stream_;
  Call call_;
  StreamArray<Bits> rotated_;
  StreamArray<Rotation> rotations_;
  StreamArray<Queries> queries_;
  StreamArray<Keys> keys_;
  StreamArray<Entry> entries_;
};

}  // namespace

void attention(Pass pass, const AttentionShape& shape, const RotaryTable<float>& rotary,
               const TaskList<bfloat16>& list) {
  const DeviceCall call(shape, rotary, list, Device().cuda_stream());
  call.rotate();
  if (pass == Pass::forward) return call.run(Grid::forward, Side::queries);
  call.run(Grid::query_gradient, Side::queries);
  call.run(Grid::key_gradient, Side::keys);
}

}  // namespace cadenza::kernels::mma

#endif
