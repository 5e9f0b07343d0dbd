// SPDX-License-Identifier: Apache-2.0
// 64-bit FNV-1a, used to prove that ranks hold the same plan and to name parameter streams.
#pragma once

#include <cstdint>
#include <string_view>

namespace cadenza {

class Hasher {
 public:
  constexpr Hasher& add(std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) step(static_cast<unsigned char>(value >> (8 * byte)));
    return *this;
  }
  constexpr Hasher& add(std::string_view text) {
    for (char c : text) step(static_cast<unsigned char>(c));
    return *this;
  }
  constexpr std::uint64_t value() const { return state_; }

 private:
  constexpr void step(unsigned char byte) { state_ = (state_ ^ byte) * 0x100000001b3ULL; }
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

}  // namespace cadenza
