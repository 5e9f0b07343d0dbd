// SPDX-License-Identifier: Apache-2.0
// Names of what computes core attention.
#pragma once

#include <array>
#include <string_view>

#include "cadenza/base/at.hpp"

namespace cadenza {

/// In the order of preference, except that `avx512` comes before `avx512_bf16` where the processor
/// is slow at the latter. `automatic`: the first that the processor or device and the type allow.
/// Tensor cores of a device, in bfloat16: `sm90` on Hopper, where it fits the head_dim; `mma` from
/// sm_80 on.
enum class AttentionKernel {
  automatic,
  amx,
  avx512_bf16,
  avx512,
  avx2,
  mma,
  sm90,
  portable,
};

/// Their words in experiments and traces.
inline constexpr auto kAttentionKernelWords = std::to_array<std::string_view>(
    {"auto", "amx", "avx512_bf16", "avx512", "avx2", "mma", "sm90", "portable"});

constexpr std::string_view word(AttentionKernel kernel) {
  return kAttentionKernelWords[at(kernel)];
}

}  // namespace cadenza
