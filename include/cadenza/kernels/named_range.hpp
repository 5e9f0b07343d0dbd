// SPDX-License-Identifier: Apache-2.0
// Names on the host's timeline for NVIDIA's profilers (NVTX).
#pragma once

#include <string_view>

#include "cadenza/kernels/device.hpp"

namespace cadenza {

void push_named_range(std::string_view name);
void pop_named_range();

/// Names what the calling thread does during its lifetime, in builds for NVIDIA devices; ranges
/// nest.
class NamedRange {
 public:
  explicit NamedRange([[maybe_unused]] std::string_view name) {
    if constexpr (kDeviceIsCuda) push_named_range(name);
  }
  ~NamedRange() {
    if constexpr (kDeviceIsCuda) pop_named_range();
  }
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;
};

}  // namespace cadenza
