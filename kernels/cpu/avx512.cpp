// SPDX-License-Identifier: Apache-2.0
// Compiled with its instruction set's flags (CMakeLists.txt); empty if the compiler has none.
#ifdef __AVX512F__
#include "observe_tile.hpp"
#include "table.hpp"

namespace cadenza::kernels::cpu {

extern const TileKernels kAvx512Kernels;
const TileKernels kAvx512Kernels = table_of<Avx512>("AVX-512");
extern const TileKernels kAvx512WideningKernels;
const TileKernels kAvx512WideningKernels = table_of<Widening<Avx512>>("AVX-512 in float32");
extern const ObserveKernels<float> kAvx512ObserveKernels;
const ObserveKernels<float> kAvx512ObserveKernels = observe_kernels<Avx512, float>();

}  // namespace cadenza::kernels::cpu
#endif
