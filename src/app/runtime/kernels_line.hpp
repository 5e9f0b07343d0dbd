// SPDX-License-Identifier: Apache-2.0
// What a run says of its attention kernels.
#pragma once

#include <span>
#include <string>

namespace cadenza::app {

/// "AVX-512"; where ranks differ "AVX-512 on ranks 0-2,5; AVX2 on ranks 3-4".
/// @param kernels  of every rank, in rank order
std::string describe_kernels(std::span<const std::string> kernels);

}  // namespace cadenza::app
