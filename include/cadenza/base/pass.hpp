// SPDX-License-Identifier: Apache-2.0
// The two passes of a training step, which plans, programs and costs distinguish.
#pragma once

#include <cstdint>

namespace cadenza {

enum class Pass : std::uint8_t { forward, backward };

}  // namespace cadenza
