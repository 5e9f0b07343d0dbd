// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#ifdef KOKKOS_ENABLE_CUDA

#include "../device/column_sums.hpp"
#include "../device/kept_call.hpp"
#include "../device/rotation.hpp"
#include "../device/sparse_call.hpp"
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

void sparse_attention(Pass pass, const AttentionShape& shape, const RotaryTable<float>& rotary,
                      const TaskList<bfloat16>& list) {
  cudaStream_t stream = Device().cuda_stream();
  SparseCall made = make_sparse_call(pass, shape, rotary, list);
  const StreamArray<Bits> rotated(static_cast<std::size_t>(made.call.rotated_elements), stream);
  made.call.place_rotated(rotated.data());
  const bool backward = pass == Pass::backward;
  const std::size_t numbers = backward ? made.gradient_elements(shape.head_dim) : 0;
  const StreamArray<float> gradients(numbers, stream);
  if (numbers > 0) {
    check(cudaMemsetAsync(gradients.data(), 0, numbers * sizeof(float), stream),
          "gradients of columns");
  }
  SparseArrays<StreamMemory> arrays(StreamMemory{stream}, made, gradients.data());
  const auto run = [&](Grid grid, Side side) {
    const UnitList units = sparse_units(made, shape, list, side, unit_rows(grid, shape.head_dim));
    const SparseProblem& problem = arrays.problem(units);
    if (side == Side::queries) launch_rotation(problem, made.call.rotations, stream);
    launch(grid, shape.head_dim, problem, static_cast<int>(units.units.size()), stream);
  };
  run(backward ? Grid::query_gradient : Grid::forward, Side::queries);
  if (backward) {
    run(Grid::key_gradient, Side::keys);
    launch_column_sums(arrays.problem(), shape.head_dim, static_cast<int>(made.sums.size()),
                       stream);
  }
  count_pairs(made, list);  // beside the device, which computes
}

}  // namespace cadenza::kernels::mma

#endif
