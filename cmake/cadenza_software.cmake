# SPDX-License-Identifier: Apache-2.0
# Compiles inputs/software into the program, so that cluster.software finds its stacks by name wherever it is
# started: config/software_files.hpp has their texts.
file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/inputs/software/*.yaml)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
set(software_files "")
foreach(file ${files})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} text)
  string(APPEND software_files "    {\"${name}\", R\"yaml(${text})yaml\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/software/config/software_files.hpp @ONLY CONTENT [[
// Generated from inputs/software.
#pragma once

#include <string_view>

namespace cadenza::config {

struct SoftwareFile {
  std::string_view name;
  std::string_view text;
};

inline constexpr SoftwareFile kSoftwareFiles[] = {
@software_files@};

}  // namespace cadenza::config
]])
target_include_directories(cadenza_config PRIVATE ${CMAKE_BINARY_DIR}/software)
