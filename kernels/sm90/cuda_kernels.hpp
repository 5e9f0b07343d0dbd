// SPDX-License-Identifier: Apache-2.0
// Launches the kernels for Hopper on a stream. Arrays of the problem are the device's.
#pragma once

#include "problem.hpp"

using cudaStream_t = struct CUstream_st*;

namespace cadenza::kernels::sm90 {

/// Whether this build has code for the device: compute capability 9.0.
bool is_available();

/// Launches a pass over the problem's units, with as many blocks as the device has multiprocessors.
/// @throws Error(internal) if the device refuses
void launch(Grid grid, int head_dim, const Problem& problem, cudaStream_t stream);

/// Encodes rows for the copy engine. @throws Error(internal) if the driver refuses
TensorMap tensor_map(const MappedRows& rows);

}  // namespace cadenza::kernels::sm90
