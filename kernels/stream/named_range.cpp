// SPDX-License-Identifier: Apache-2.0
#include "cadenza/kernels/named_range.hpp"

#include <string>

#ifdef KOKKOS_ENABLE_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace cadenza {

#ifdef KOKKOS_ENABLE_CUDA

void push_named_range(std::string_view name) {
  nvtxRangePushA(std::string(name).c_str());
}
void pop_named_range() {
  nvtxRangePop();
}

#else

void push_named_range(std::string_view /*name*/) {}
void pop_named_range() {}

#endif

}  // namespace cadenza
