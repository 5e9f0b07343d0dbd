// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace cadenza::app {

/// The project's version, as CMakeLists.txt gives it.
inline constexpr const char* kVersion = CADENZA_VERSION;

/// Compiler, type and options of this program: "GNU 12.2.0, Release, x86-64-v3".
inline constexpr const char* kBuild = CADENZA_BUILD;

/// What git calls the sources that this program was built from ("ddb7bcf-dirty": with changes of
/// their own); "unknown" where they are no checkout.
const char* revision();

}  // namespace cadenza::app
