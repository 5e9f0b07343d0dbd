// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: a value depends on (seed, stream, index) alone, so that every
// layout of ranks draws the same numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

/// Marks a function that device code calls too, where nvcc compiles it.
#ifdef __CUDACC__
#define CADENZA_HOST_DEVICE __host__ __device__
#else
#define CADENZA_HOST_DEVICE
#endif

namespace cadenza {

/// SplitMix64 finaliser: a bijection on 64-bit integers with good avalanche.
CADENZA_HOST_DEVICE constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// 64 random bits for (seed, stream, index).
CADENZA_HOST_DEVICE constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream,
                                                        std::uint64_t index) {
  return mix64(mix64(mix64(seed) ^ stream) ^ index);
}

/// A uniform number in [0, 1), with 53 random bits.
CADENZA_HOST_DEVICE constexpr double random_uniform(std::uint64_t seed, std::uint64_t stream,
                                                    std::uint64_t index) {
  return static_cast<double>(random_bits(seed, stream, index) >> 11) * 0x1.0p-53;
}

/// A standard normal number (Box-Muller on draws 2 index and 2 index + 1). A device's log and cos
/// may differ from a host's in the last bit of a double.
CADENZA_HOST_DEVICE inline double random_normal(std::uint64_t seed, std::uint64_t stream,
                                                std::uint64_t index) {
  const double u = 1.0 - random_uniform(seed, stream, 2 * index);
  const double v = random_uniform(seed, stream, 2 * index + 1);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace cadenza
