// SPDX-License-Identifier: Apache-2.0
// What every emulated thread computes with, in place of kernels::device::DeviceThread's PTX.
#pragma once

#include <cmath>

#include "cadenza/kernels/bfloat16.hpp"

namespace cadenza::testing {

struct EmulatedArithmetic {
  static float exp2(float x) { return std::exp2(x); }
  static float exp(float x) { return std::exp(x); }
  static float log(float x) { return std::log(x); }
  static float fma(float a, float b, float c) { return std::fma(a, b, c); }
  static unsigned pack(float low, float high) {
    return bfloat16(low).bits | static_cast<unsigned>(bfloat16(high).bits) << 16;
  }
};

}  // namespace cadenza::testing
