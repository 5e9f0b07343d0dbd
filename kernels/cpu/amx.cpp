// SPDX-License-Identifier: Apache-2.0
// Compiled with its instruction set's flags (CMakeLists.txt); empty if the compiler has none.
#ifdef __AMX_BF16__
#include "amx.hpp"
#include "amx_table.hpp"

namespace cadenza::kernels::cpu {

extern const TileKernels kAmxKernels;
const TileKernels kAmxKernels = amx_table_of<Amx>("AMX BF16");

}  // namespace cadenza::kernels::cpu
#endif
