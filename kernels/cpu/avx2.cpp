// SPDX-License-Identifier: Apache-2.0
// Compiled with its instruction set's flags (CMakeLists.txt); empty if the compiler has none.
#ifdef __AVX2__
#include "observe_tile.hpp"
#include "table.hpp"

namespace cadenza::kernels::cpu {

extern const TileKernels kAvx2Kernels;
const TileKernels kAvx2Kernels = table_of<Avx2>("AVX2");
extern const TileKernels kAvx2WideningKernels;
const TileKernels kAvx2WideningKernels = table_of<Widening<Avx2>>("AVX2 in float32");
extern const ObserveKernels<float> kAvx2ObserveKernels;
const ObserveKernels<float> kAvx2ObserveKernels = observe_kernels<Avx2, float>();

}  // namespace cadenza::kernels::cpu
#endif
