// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#ifdef KOKKOS_ENABLE_CUDA

#include <algorithm>

#include "../device/kept_call.hpp"
#include "../device/rotation.hpp"
#include "../device/stream_memory.hpp"
#include "cadenza/kernels/device.hpp"
#include "call.hpp"
#include "cuda_kernels.hpp"

namespace cadenza::kernels::sm90 {
namespace {

/// Maps of one kind of rows on the device, made when rows differ from the previous call's.
class KeptMaps {
 public:
  void set(const std::vector<MappedRows>& rows, cudaStream_t stream) {
    if (rows == rows_) return;
    if (rows.size() != rows_.size()) maps_ = StreamArray<TensorMap>(rows.size(), stream);
    maps_.copy(encoded(rows, tensor_map));
    rows_ = rows;
  }
  const TensorMap* data() const { return maps_.data(); }

 private:
  std::vector<MappedRows> rows_;
  StreamArray<TensorMap> maps_;
};

class Kept : public KeptCall<StreamMemory> {
 public:
  explicit Kept(const StreamMemory& memory)
      : KeptCall(memory), stream_(memory.stream), next_unit_(1, memory.stream) {}

  /// Sets the maps of a pass, once the rotated queries have their memory.
  void map(const TaskList<bfloat16>& list, Pass pass, int head_dim) {
    const CallRows rows = rows_of(call(), list, pass, head_dim);
    entries_.set(rows.entries, stream_);
    rotations_.set(rows.rotations, stream_);
    dout_.set(rows.dout, stream_);
    keys_.set(rows.keys, stream_);
  }

  /// Returns the problem of one grid of the pass.
  Problem problem(const AttentionShape& shape, const TaskList<bfloat16>& list, Side side) {
    const PassProblem made = KeptCall::problem(shape, list, side, kUnitRows);
    Problem problem;
    static_cast<device::Problem&>(problem) = made.problem;
    problem.unit_count = made.units;
    problem.next_unit = next_unit_.data();
    problem.entry_maps = entries_.data();
    problem.rotation_maps = rotations_.data();
    problem.dout_maps = dout_.data();
    problem.key_maps = keys_.data();
    return problem;
  }

 private:
  cudaStream_t stream_;
  StreamArray<int> next_unit_;
  KeptMaps entries_, rotations_, dout_, keys_;
};

}  // namespace

void attention(Pass pass, const AttentionShape& shape, const RotaryTable<float>& rotary,
               const TaskList<bfloat16>& list) {
  cudaStream_t stream = Device().cuda_stream();
  auto& kept = kept_of<Kept>(list, StreamMemory{stream});
  kept.take(shape, rotary, list);
  const StreamArray<Bits> rotated(static_cast<std::size_t>(kept.call().rotated_elements), stream);
  kept.place_rotated(rotated.data());
  kept.map(list, pass, shape.head_dim);
  const auto run = [&](Grid grid, Side side) {
    const Problem problem = kept.problem(shape, list, side);
    if (side == Side::queries) launch_rotation(problem, kept.call().rotations, stream);
    launch(grid, shape.head_dim, problem, stream);
  };
  run(pass == Pass::forward ? Grid::forward : Grid::query_gradient, Side::queries);
  if (pass == Pass::backward) run(Grid::key_gradient, Side::keys);
}

}  // namespace cadenza::kernels::sm90

#endif
