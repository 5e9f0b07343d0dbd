// SPDX-License-Identifier: Apache-2.0
// Products of bfloat16 that are computed in float32.
#pragma once

#include "multiply.hpp"

namespace cadenza::kernels {

/// multiply() of factors that become float32 on the way, some rows at a time, so that scratch does
/// not grow with the rows of a microbatch. Sums are float32; products of bfloat16 are exact in it.
void multiply_widened(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
                      float beta, float* c);
void multiply_widened(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
                      float beta, bfloat16* c);

}  // namespace cadenza::kernels
