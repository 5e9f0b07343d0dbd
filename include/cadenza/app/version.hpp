// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace cadenza::app {

/// The project's version, as CMakeLists.txt gives it.
inline constexpr const char* kVersion = CADENZA_VERSION;

}  // namespace cadenza::app
