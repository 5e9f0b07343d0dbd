// SPDX-License-Identifier: Apache-2.0
// Launches the kernels for tensor cores on a stream. Arrays of the problem are the device's.
#pragma once

#include "../device/sparse_problem.hpp"

using cudaStream_t = struct CUstream_st*;

namespace cadenza::kernels::mma {

using namespace device;

/// Whether the device has bfloat16 in its tensor cores and as much shared memory as sm_80:
/// data-centre devices from sm_80 on.
bool is_available();

/// Number of rows of a unit in a pass.
int unit_rows(Grid grid, int head_dim);

/// Launches one block for each of `units` units.
/// @throws Error(internal) if the device refuses
void launch(Grid grid, int head_dim, const Problem& problem, int units, cudaStream_t stream);
void launch(Grid grid, int head_dim, const SparseProblem& problem, int units, cudaStream_t stream);

}  // namespace cadenza::kernels::mma
