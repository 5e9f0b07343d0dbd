// SPDX-License-Identifier: Apache-2.0
// Loops over pairs (row, head), whose elements are contiguous: on the host a pair belongs to one
// thread, whose vector instructions take the elements, on a device to a warp, whose lanes read them
// together.
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

#include "cadenza/kernels/device.hpp"
#include "cadenza/kernels/simd.hpp"

namespace cadenza::attention {

/// Calls f(d) for d in [0, count). `lanes` run the pair, as HeadLoop passes them.
template <typename Lanes, typename F>
KOKKOS_INLINE_FUNCTION void for_elements(const Lanes& lanes, int count, const F& f) {
  if constexpr (kDeviceIsCuda) {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(lanes, count), f);
  } else {
    CADENZA_SIMD()
    for (int d = 0; d < count; ++d) f(d);
  }
}

/// Returns the sum of f(d), known to all lanes. `f` is passed by value: by reference, the sum of
/// doubles takes another order and twice the time.
template <typename Sum, typename Lanes, typename F>
KOKKOS_INLINE_FUNCTION Sum sum_elements(const Lanes& lanes, int count, F f) {
  Sum sum = 0;
  if constexpr (kDeviceIsCuda) {
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(lanes, count), [&](const int d, Sum& part) { part += f(d); },
        sum);
  } else {
    CADENZA_SIMD(reduction(+ : sum))
    for (int d = 0; d < count; ++d) sum += f(d);
  }
  return sum;
}

/// Writes one number of a pair, after all lanes have passed for_elements or sum_elements, since
/// they may read its old value before.
template <typename Lanes, typename T>
KOKKOS_INLINE_FUNCTION void write_once(const Lanes& lanes, T value, T* to) {
  if constexpr (kDeviceIsCuda) {
    Kokkos::single(Kokkos::PerThread(lanes), [=]() { *to = value; });
  } else {
    *to = value;
  }
}

#ifdef KOKKOS_ENABLE_CUDA

inline constexpr int kPairsPerTeam = 8;  // of 32 lanes each

template <typename Body>
struct HeadLoop {
  Body body;
  std::int64_t pairs;
  KOKKOS_FUNCTION void operator()(const Kokkos::TeamPolicy<Device>::member_type& team) const {
    const std::int64_t i =
        static_cast<std::int64_t>(team.league_rank()) * kPairsPerTeam + team.team_rank();
    if (i < pairs) body(team, i);
  }
};

inline Kokkos::TeamPolicy<Device> over_heads(std::int64_t pairs) {
  return {static_cast<int>((pairs + kPairsPerTeam - 1) / kPairsPerTeam), kPairsPerTeam, 32};
}

#else

struct OneThread {};

template <typename Body>
struct HeadLoop {
  Body body;
  std::int64_t pairs;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { body(OneThread{}, i); }
};

inline Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>> over_heads(std::int64_t pairs) {
  return {0, pairs};
}

#endif

/// Calls body(lanes, i) for i in [0, pairs).
template <typename Body>
void for_heads(const char* label, std::int64_t pairs, const Body& body) {
  launch(label, over_heads(pairs), HeadLoop<Body>{body, pairs});
}

}  // namespace cadenza::attention
