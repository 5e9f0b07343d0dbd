# SPDX-License-Identifier: Apache-2.0
# Kokkos: an installed one wins; otherwise scripts/build-kokkos builds a pinned source, once, into a cache
# outside the build tree.
set(kokkos_backend openmp)
if(CADENZA_CUDA)
  set(kokkos_backend cuda)
  set(Kokkos_ENABLE_COMPILE_AS_CMAKE_LANGUAGE ON)
endif()
find_package(Kokkos 4.7 QUIET)
if(Kokkos_FOUND AND NOT Kokkos_DEVICES MATCHES "${kokkos_backend}|[Oo]pen[Mm][Pp]|OPENMP|CUDA")
  message(FATAL_ERROR "The Kokkos in ${Kokkos_DIR} has devices ${Kokkos_DEVICES}; this build needs ${kokkos_backend}")
endif()
if(NOT Kokkos_FOUND)
  execute_process(
    COMMAND ${CMAKE_SOURCE_DIR}/scripts/build-kokkos ${kokkos_backend}
    OUTPUT_VARIABLE kokkos_prefix OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE kokkos_result)
  if(NOT kokkos_result EQUAL 0)
    message(FATAL_ERROR "No Kokkos >= 4.7 was found and scripts/build-kokkos ${kokkos_backend} failed (see above)")
  endif()
  find_package(Kokkos 4.7 REQUIRED PATHS ${kokkos_prefix} NO_DEFAULT_PATH)
endif()
message(STATUS "Kokkos ${Kokkos_VERSION} in ${Kokkos_DIR} (${Kokkos_DEVICES})")
