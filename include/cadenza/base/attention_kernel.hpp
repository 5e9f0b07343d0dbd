// SPDX-License-Identifier: Apache-2.0
// Names of the kernels of core attention.
#pragma once

#include <array>
#include <string_view>

#include "cadenza/base/at.hpp"

namespace cadenza {

/// Kernels of core attention. `automatic` takes the best that the processor or device and the type
/// allow. On a host that is the first in this order, except that `avx512` is preferred to
/// `avx512_bf16` where the processor is slow at the latter. In bfloat16 a device uses its tensor
/// cores: `sm90` on Hopper, where it fits the head_dim, else `mma`, from sm_80 on.
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

/// The kernels' words in experiments and traces, by enumerator.
inline constexpr auto kAttentionKernelWords = std::to_array<std::string_view>(
    {"auto", "amx", "avx512_bf16", "avx512", "avx2", "mma", "sm90", "portable"});

constexpr std::string_view word(AttentionKernel kernel) {
  return kAttentionKernelWords[at(kernel)];
}

}  // namespace cadenza
