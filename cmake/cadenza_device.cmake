# SPDX-License-Identifier: Apache-2.0
# cadenza_device_sources(<target> files...): in a CUDA build, nvcc compiles these files of a target, those
# of a module as one, of kernels those of a folder that take longest: nearly all of the time for a file is
# Kokkos' headers, which nvcc parses three times. So a name in an unnamed namespace is defined once in a
# module. (CMake before 3.31 has UNITY_BUILD for other languages only.)
function(cadenza_device_sources target)
  if(NOT CADENZA_CUDA OR NOT ARGN)
    return()
  endif()
  set_source_files_properties(${ARGN} PROPERTIES HEADER_FILE_ONLY ON)
  set(groups ${CMAKE_CURRENT_BINARY_DIR}/device_sources/${target})
  set(names "")
  foreach(source ${ARGN})
    get_filename_component(source ${source} ABSOLUTE)
    file(RELATIVE_PATH source ${PROJECT_SOURCE_DIR} ${source})
    get_filename_component(folder ${source} DIRECTORY)
    # Of app, three: one alone would be compiled last, beside an idle core; and behind the sources of
    # conversion, nvcc 13.0 takes a std::span for no range.
    string(REGEX REPLACE "^src/app/convert$" "src/app_convert" folder ${folder})
    string(REGEX REPLACE "^src/app/(runtime|train)$" "src/app_train" folder ${folder})
    string(REGEX REPLACE "^(src/[^/]+)/.*" "\\1" folder ${folder})
    string(REGEX REPLACE "^kernels/(device|dispatch|identity|portable|separate|stream|tasks)$" "kernels" folder ${folder})
    string(REPLACE "/" "_" name ${folder})
    string(APPEND content_${name} "#include \"${source}\"\n")
    list(APPEND names ${name})
  endforeach()
  list(REMOVE_DUPLICATES names)
  foreach(name ${names})
    file(CONFIGURE OUTPUT ${groups}/${name}.cu CONTENT "${content_${name}}" @ONLY)
    target_sources(${target} PRIVATE ${groups}/${name}.cu)
  endforeach()
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
endfunction()
