# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=folder -DOUTPUT=header -P revision.cmake: what git calls the sources, at build time. The
# header is written when that changes alone, so that nothing else is compiled again.
cmake_minimum_required(VERSION 3.24)
set(revision "unknown")  # an unpacked archive, or no git
find_package(Git QUIET)
if(Git_FOUND AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} describe --always --dirty --tags
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(revision ${described})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define CADENZA_REVISION \"${revision}\"\n" @ONLY)
