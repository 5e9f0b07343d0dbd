// SPDX-License-Identifier: Apache-2.0
// Relative speeds of the processor's instruction sets.
#pragma once

namespace cadenza::kernels::cpu {

/// Whether AVX-512 BF16 is faster than AVX-512 in float32. AMD's is, since Zen 4. Intel's
/// multiplies two pairs in the time of seven to eight float32 ones (vdpbf16ps, measured on Sapphire
/// Rapids: half of the FLOP/s of an FMA), so it is used only if AMX is unavailable.
bool fast_avx512_bfloat16();

}  // namespace cadenza::kernels::cpu
