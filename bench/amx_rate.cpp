// SPDX-License-Identifier: Apache-2.0
// Compiled with the flags of AMX (CMakeLists.txt); without them nothing here can run.
#include "amx_rate.hpp"

#ifdef __AMX_BF16__
#include "../kernels/cpu/amx.hpp"
#include "../kernels/cpu/amx_product.hpp"

namespace cadenza::bench {

using kernels::cpu::Amx;

void multiply_in_registers(int times) {
  Amx::begin_tiles();  // all tiles are zero
  for (int i = 0; i < times; ++i) {
    Amx::multiply_tiles<0, 4, 6>();
    Amx::multiply_tiles<1, 4, 7>();
    Amx::multiply_tiles<2, 5, 6>();
    Amx::multiply_tiles<3, 5, 7>();
  }
  Amx::end_tiles();
}

void multiply_from_cache(const void* data, int times) {
  constexpr int kTileBytes = 1024, kSteps = kAmxCacheBytes / (4 * kTileBytes);
  Amx::begin_tiles();
  // Left tiles lie below one another, right tiles side by side, as in the kernels' scratch.
  const kernels::cpu::Factor left{data, 64, 2 * kTileBytes};
  const kernels::cpu::Factor right{left.at(kAmxCacheBytes / 2), 128, 2 * kTileBytes};
  kernels::cpu::Idle idle;
  for (int i = 0; i < times; i += kSteps) {
    kernels::cpu::multiply_block<Amx>(left, right, kSteps, idle);
  }
  Amx::end_tiles();
}

}  // namespace cadenza::bench

#else

namespace cadenza::bench {

void multiply_in_registers(int) {}
void multiply_from_cache(const void*, int) {}

}  // namespace cadenza::bench
#endif
