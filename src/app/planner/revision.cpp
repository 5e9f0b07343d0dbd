// SPDX-License-Identifier: Apache-2.0
#include "app/planner/version.hpp"
#include "cadenza_build.hpp"
#include "cadenza_revision.hpp"

namespace cadenza::app {

const char* build_options() {
  return CADENZA_BUILD;
}

const char* revision() {
  return CADENZA_REVISION;
}

}  // namespace cadenza::app
