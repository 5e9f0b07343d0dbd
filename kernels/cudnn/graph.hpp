// SPDX-License-Identifier: Apache-2.0
// cuDNN itself: graphs of scaled-dot-product attention, a plan for every shape.
#pragma once

#include <cstddef>
#include <string>

#include "cadenza/base/pass.hpp"
#include "sdpa.hpp"

using cudaStream_t = struct CUstream_st*;

namespace cadenza::kernels::cudnn {

/// What a call needs beside its rows. Makes the plan of the shape when it is first asked for, which
/// takes milliseconds to seconds, and keeps it.
/// @throws Error(usage) where cuDNN does not compute the shape on this device
std::size_t workspace_bytes(Pass pass, const SdpaShape& shape);

/// Puts a call on the stream. Gradients have the same bits in every run.
/// @throws Error(internal) where cuDNN refuses
void execute(Pass pass, const SdpaShape& shape, const SdpaRows& rows, void* workspace,
             cudaStream_t stream);

/// Why cuDNN has no plan of the shape for the device that `properties` describe in its own JSON, of
/// architecture `sm`; empty: it has one. Needs no device.
std::string refusal(Pass pass, const SdpaShape& shape, const std::string& properties, int sm);

}  // namespace cadenza::kernels::cudnn
