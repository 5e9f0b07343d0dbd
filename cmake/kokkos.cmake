# SPDX-License-Identifier: Apache-2.0
# Kokkos: an installed one wins; otherwise scripts/build-kokkos builds a pinned source, once, into a cache
# outside the build tree.
set(kokkos_backend openmp)
if(CADENZA_CUDA)
  set(kokkos_backend cuda)
endif()
find_package(Kokkos 4.7 QUIET)
if(NOT Kokkos_FOUND)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env CMAKE=${CMAKE_COMMAND} CXX=${CMAKE_CXX_COMPILER}
      CUDACXX=${CMAKE_CUDA_COMPILER} "CADENZA_CUDA_ARCHITECTURE=${CMAKE_CUDA_ARCHITECTURES}"
      ${CMAKE_CURRENT_SOURCE_DIR}/scripts/build-kokkos ${kokkos_backend}
    OUTPUT_VARIABLE kokkos_prefix OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE kokkos_result)
  if(NOT kokkos_result EQUAL 0)
    message(FATAL_ERROR
      "No Kokkos >= 4.7 was found and scripts/build-kokkos ${kokkos_backend} failed (see above)")
  endif()
  find_package(Kokkos 4.7 REQUIRED PATHS ${kokkos_prefix} NO_DEFAULT_PATH)
endif()
message(STATUS "Kokkos ${Kokkos_VERSION} in ${Kokkos_DIR} (${Kokkos_DEVICES})")

# The one that was found must fit this build.
string(TOUPPER "${Kokkos_DEVICES}" kokkos_devices)
string(TOUPPER ${kokkos_backend} kokkos_needed)
if(NOT kokkos_needed IN_LIST kokkos_devices OR (NOT CADENZA_CUDA AND "CUDA" IN_LIST kokkos_devices))
  message(FATAL_ERROR "The Kokkos in ${Kokkos_DIR} is built for ${Kokkos_DEVICES}; this build needs one "
    "for ${kokkos_needed}. Set Kokkos_ROOT to one of those, or unload this one: then one is built")
endif()
