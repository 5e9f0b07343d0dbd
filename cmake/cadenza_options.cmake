# SPDX-License-Identifier: Apache-2.0
# Language, warnings, instruction set, sanitizers.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # As ccache's manual has it for precompiled headers.
  set(launcher ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
  foreach(language C CXX CUDA)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${launcher})
  endforeach()
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

add_library(cadenza_options INTERFACE)
target_compile_options(cadenza_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas,-Werror
    -Werror=all-warnings>)  # pragmas for devices are unknown to the host's compiler
# GCC 12 warns of the standard library's strings where it inlines them (its bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(cadenza_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wno-array-bounds,-Wno-restrict,-Wno-stringop-overflow>)
endif()
# Sources compiled as one are headers to GCC, whose types it expects to be seen elsewhere.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(cadenza_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
# fmt 9 takes nvcc for a compiler without constexpr, but checks format strings with it all the same.
target_compile_definitions(cadenza_options INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX
  $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>
  # nvcc 12.9 and 13 lay out [[no_unique_address]] members otherwise than the host's compiler (kokkos/mdspan
  # #434, #435): a kernel would read what follows a Kokkos::View from another place than it was written to.
  # With this, mdspan leaves the attribute out.
  $<$<COMPILE_LANGUAGE:CUDA>:MDSPAN_IMPL_USE_ATTRIBUTE_NO_UNIQUE_ADDRESS=1>)

set(cadenza_march ${CADENZA_ARCH})
if(cadenza_march STREQUAL "default")
  set(cadenza_march "")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(cadenza_march x86-64-v3)
  endif()
endif()
if(cadenza_march)
  target_compile_options(cadenza_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-march=${cadenza_march}>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-march=${cadenza_march}>)
endif()

# Tile kernels of kernels/cpu: one file per instruction set, chosen at run time, fast in every build.
# What is fused is written so: where a product is rounded before a difference, that counts.
# GCC 12 takes the undefined values of its own AVX-512 header for unset variables.
set(cadenza_software_tiles -O2)
if(CADENZA_SANITIZE)  # with the checks of sanitizers in every element, -O2 compiles for a minute
  set(cadenza_software_tiles -O1)
endif()
set_source_files_properties(kernels/cpu/software_tiles.cpp PROPERTIES
  COMPILE_OPTIONS "${cadenza_software_tiles};-ffp-contract=off")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(cadenza_tile_options -O3 -ffp-contract=off -Wno-uninitialized -Wno-maybe-uninitialized)
  set_source_files_properties(kernels/cpu/avx2.cpp PROPERTIES
    COMPILE_OPTIONS "${cadenza_tile_options};-march=x86-64-v3")
  set_source_files_properties(kernels/cpu/avx512.cpp PROPERTIES
    COMPILE_OPTIONS "${cadenza_tile_options};-march=x86-64-v4")
  set_source_files_properties(kernels/cpu/avx512_bfloat16.cpp PROPERTIES
    COMPILE_OPTIONS "${cadenza_tile_options};-march=x86-64-v4;-mavx512bf16")
  set(cadenza_amx_options
    ${cadenza_tile_options} -march=x86-64-v4 -mavx512bf16 -mamx-tile -mamx-bf16)
  set_source_files_properties(kernels/cpu/amx.cpp PROPERTIES
    COMPILE_OPTIONS "${cadenza_amx_options}")
  set_source_files_properties(kernels/cpu/processor.cpp PROPERTIES
    COMPILE_DEFINITIONS CADENZA_X86_KERNELS)
endif()

set(CADENZA_SANITIZE "" CACHE STRING "Sanitizers of host code, e.g. address,undefined")
if(CADENZA_SANITIZE)
  # What a sanitizer finds ends the program; its code makes GCC see unset variables where none are. Checks
  # of every pointer before its use are a third of the time to compile, and the address sanitizer sees
  # the use itself; only alignment is left unseen.
  target_compile_options(cadenza_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${CADENZA_SANITIZE} -fno-sanitize-recover=all
      -fno-sanitize=null,alignment,object-size,vptr
      -fno-omit-frame-pointer -Wno-error=maybe-uninitialized>)
  target_link_options(cadenza_options INTERFACE -fsanitize=${CADENZA_SANITIZE})
endif()
