// SPDX-License-Identifier: Apache-2.0
// The model of tests: a step of it takes milliseconds, and everything that a model can have is
// there.
#pragma once

#include "cadenza/config/experiment.hpp"

namespace cadenza {

/// Two layers, four query heads of 8 elements on two of keys. A test changes what it is about.
inline config::Model tiny_model(std::int64_t layers = 2) {
  config::Model m;
  m.layers = layers;
  m.d_model = 32;
  m.heads = 4;
  m.kv_heads = 2;
  m.ffn = 48;
  m.vocab = 61;
  return m;
}

}  // namespace cadenza
