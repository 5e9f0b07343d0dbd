// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#ifdef KOKKOS_ENABLE_CUDA

#include "../device/kept_call.hpp"
#include "../device/rotation.hpp"
#include "../device/stream_memory.hpp"
#include "cadenza/kernels/device.hpp"
#include "cuda_kernels.hpp"

namespace cadenza::kernels::mma {

void attention(Pass pass, const AttentionShape& shape, const RotaryTable<float>& rotary,
               const TaskList<bfloat16>& list) {
  cudaStream_t stream = Device().cuda_stream();
  auto& kept = kept_of<KeptCall<StreamMemory>>(list, StreamMemory{stream});
  kept.take(shape, rotary, list);
  const StreamArray<Bits> rotated(static_cast<std::size_t>(kept.call().rotated_elements), stream);
  kept.place_rotated(rotated.data());
  const auto problem = [&](Grid grid) {
    const Side side = grid == Grid::key_gradient ? Side::keys : Side::queries;
    return kept.problem(shape, list, side, unit_rows(grid, shape.head_dim));
  };
  const auto run = [&](Grid grid) {
    const PassProblem of = problem(grid);
    launch(grid, shape.head_dim, of.problem, of.units, stream);
  };
  const Grid first = pass == Pass::forward ? Grid::forward : Grid::query_gradient;
  launch_rotation(problem(first).problem, kept.call().rotations, stream);
  run(first);
  if (pass == Pass::backward) run(Grid::key_gradient);
}

}  // namespace cadenza::kernels::mma

#endif
