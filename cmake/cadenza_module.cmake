# SPDX-License-Identifier: Apache-2.0
# cadenza_module(<name> [DEPENDS modules...] [LIBRARIES targets...]): a static
# library of all src/<name>/**/*.cpp (kernels: kernels/*/*.cpp) with public headers in
# include/cadenza/<name>; header-only where it has no sources. Private headers are included by their path
# below src.
function(cadenza_module name)
  cmake_parse_arguments(MODULE "" "" "DEPENDS;LIBRARIES" ${ARGN})
  set(folder src/${name})
  if(name STREQUAL "kernels")
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/kernels/*/*.cpp)
    if(CADENZA_CUDA)
      list(FILTER sources EXCLUDE REGEX "/kernels/cpu/")
    endif()
  else()
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp)
  endif()
  list(TRANSFORM MODULE_DEPENDS PREPEND cadenza_)
  set(target cadenza_${name})
  if(sources)
    add_library(${target} STATIC ${sources})
    set(visibility PUBLIC)
    target_link_libraries(${target} PRIVATE cadenza_options)
    target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  else()
    add_library(${target} INTERFACE)
    set(visibility INTERFACE)
  endif()
  target_include_directories(${target} ${visibility} ${CMAKE_CURRENT_SOURCE_DIR}/include)
  target_link_libraries(${target} ${visibility} ${MODULE_DEPENDS} ${MODULE_LIBRARIES})
  # Sources that include Kokkos are device code of the CUDA build.
  if(CADENZA_CUDA AND name MATCHES "^(kernels|attention|model|exec|app)$" AND sources)
    set_source_files_properties(${sources} PROPERTIES LANGUAGE CUDA)
  endif()
endfunction()
