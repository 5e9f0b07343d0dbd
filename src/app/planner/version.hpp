// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace cadenza::app {

/// The project's version from CMakeLists.txt.
inline constexpr const char* kVersion = CADENZA_VERSION;

/// Returns compiler, type and options of this program: "GNU 12.2.0, Release, x86-64-v3".
const char* build_options();

/// Returns git's name of this program's sources ("ddb7bcf-dirty": with uncommitted changes);
/// "unknown" if they are no checkout.
const char* revision();

}  // namespace cadenza::app
