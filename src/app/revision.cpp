// SPDX-License-Identifier: Apache-2.0
#include "cadenza/app/version.hpp"
#include "cadenza_revision.hpp"  // made by cmake/revision.cmake

namespace cadenza::app {

const char* revision() {
  return CADENZA_REVISION;
}

}  // namespace cadenza::app
