// SPDX-License-Identifier: Apache-2.0
// Compiled with its instruction set's flags (CMakeLists.txt); empty if the compiler has none.
#ifdef __AVX512BF16__
#include "table.hpp"

namespace cadenza::kernels::cpu {

extern const TileKernels kAvx512Bfloat16Kernels;
const TileKernels kAvx512Bfloat16Kernels = table_of<Avx512Bfloat16>("AVX-512 BF16");

}  // namespace cadenza::kernels::cpu
#endif
