// SPDX-License-Identifier: Apache-2.0
// The table of one instruction set.
#pragma once

#include "backward_tile.hpp"
#include "forward_tile.hpp"

namespace cadenza::kernels::cpu {

template <typename M>
constexpr TileKernels table_of(const char* name) {
  return {name,
          kPanel<M>,
          M::kDepth,
          kGradientQueries,
          kGradientKeys,
          nullptr,
          nullptr,
          forward_begin<M>,
          forward_load_queries<M>,
          forward_load<M>,
          forward_step<M>,
          forward_end<M>,
          backward_load_keys<M>,
          backward_load_queries<M>,
          backward_step<M>,
          backward_end<M>,
          add_rows<M>};
}

}  // namespace cadenza::kernels::cpu
