// SPDX-License-Identifier: Apache-2.0
// The table of kernels built from tile products.
#pragma once

#include "amx_backward.hpp"
#include "amx_forward.hpp"

namespace cadenza::kernels::cpu {

template <typename M>
constexpr TileKernels amx_table_of(const char* name) {
  return {name,
          kPanel<M>,
          M::kDepth,
          kAmxGradientQueries,
          kAmxGradientKeys,
          M::begin_tiles,
          M::end_tiles,
          forward_begin<M>,
          forward_load_queries<M>,
          amx_forward_load<M>,
          amx_forward_step<M>,
          amx_forward_end<M>,
          backward_load_keys<M>,
          amx_backward_load_queries<M>,
          amx_backward_step<M>,
          amx_backward_end<M>,
          add_rows<M>};
}

}  // namespace cadenza::kernels::cpu
