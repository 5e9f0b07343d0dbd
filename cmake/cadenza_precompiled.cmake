# SPDX-License-Identifier: Apache-2.0
# Headers of libraries that many files include are parsed once, not by every file. Compiling with
# CMAKE_DISABLE_PRECOMPILE_HEADERS=ON does without and finds files that lack an #include.
#
# Not for kernels/: its files for different instruction sets must not share inline functions.
set(cadenza_common_headers <algorithm> <array> <cmath> <cstdint> <filesystem> <fstream> <functional>
  <map> <memory> <numeric> <optional> <set> <span> <sstream> <stdexcept> <string> <string_view>
  <unordered_map> <utility> <variant> <vector> <fmt/format.h>)

# cadenza_precompile(<target> <owner> [headers...]): the common headers and these. Targets with the same
# compiler options share what is compiled for <owner>, which is one of them.
function(cadenza_precompile target owner)
  if(CADENZA_CUDA)  # Kokkos is for nvcc then, which reads no precompiled headers
    list(REMOVE_ITEM ARGN <Kokkos_Core.hpp>)
  endif()
  if(target STREQUAL owner)
    target_precompile_headers(${target} PRIVATE ${cadenza_common_headers} ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()
