// SPDX-License-Identifier: Apache-2.0
// The kernels for Hopper, put on a stream. Arrays of the problem are the device's.
#pragma once

#include "problem.hpp"

using cudaStream_t = struct CUstream_st*;

namespace cadenza::kernels::sm90 {

/// Whether this build has code for the device: compute capability 9.0.
bool is_available();

/// A pass over the problem's units, with as many blocks as the device has multiprocessors.
/// @throws Error(internal) where the device refuses
void launch(Grid grid, int head_dim, const Problem& problem, cudaStream_t stream);

/// As the copy engine reads it. @throws Error(internal) where the driver refuses
TensorMap tensor_map(const MappedRows& rows);

}  // namespace cadenza::kernels::sm90
