// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <string_view>

#include "cadenza/base/error.hpp"

namespace cadenza::comm {

/// @throws Error(communication) unless the MPI call succeeded
inline void check(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(result, text, &length);
  fail(ExitCode::communication, "{} failed: {}", call,
       std::string_view(text, static_cast<std::size_t>(length)));
}

}  // namespace cadenza::comm
