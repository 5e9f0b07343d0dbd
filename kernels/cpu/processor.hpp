// SPDX-License-Identifier: Apache-2.0
// What the processor at hand does well.
#pragma once

namespace cadenza::kernels::cpu {

/// Whether AVX-512 BF16 outruns AVX-512 in float32. AMD's does, since Zen 4. Intel's multiplies two
/// pairs in the time of seven to eight float32 ones (vdpbf16ps, measured on Sapphire Rapids: half
/// of the FLOP/s of an FMA), and serves only where AMX is no choice.
bool fast_avx512_bfloat16();

}  // namespace cadenza::kernels::cpu
