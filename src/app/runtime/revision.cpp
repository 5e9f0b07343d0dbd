// SPDX-License-Identifier: Apache-2.0
#include "cadenza_revision.hpp"  // made by cmake/revision.cmake
#include "app/runtime/version.hpp"

namespace cadenza::app {

const char* revision() {
  return CADENZA_REVISION;
}

}  // namespace cadenza::app
