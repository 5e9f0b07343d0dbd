// SPDX-License-Identifier: Apache-2.0
#include "software_tiles.hpp"

#include "amx_table.hpp"

namespace cadenza::kernels::cpu {

const TileKernels* software_tile_kernels() {
  static constexpr TileKernels kKernels = amx_table_of<SoftwareTiles>("software tiles");
  return &kKernels;
}

}  // namespace cadenza::kernels::cpu
