// SPDX-License-Identifier: Apache-2.0
// Names of what computes core attention.
#pragma once

#include <array>
#include <string_view>

namespace cadenza {

/// In the order of preference, except that `avx512` comes before `avx512_bf16` where the processor
/// is slow at the latter. `mma`: a device's tensor cores, in bfloat16; `cudnn`: NVIDIA's library
/// there, by name alone. `automatic`: the first of the others that the processor or device and the
/// type allow.
enum class AttentionKernel { automatic, amx, avx512_bf16, avx512, avx2, mma, cudnn, portable };

/// Their words in experiments and traces.
inline constexpr auto kAttentionKernelWords = std::to_array<std::string_view>(
    {"auto", "amx", "avx512_bf16", "avx512", "avx2", "mma", "cudnn", "portable"});

constexpr std::string_view word(AttentionKernel kernel) {
  return kAttentionKernelWords[static_cast<std::size_t>(kernel)];
}

}  // namespace cadenza
