// SPDX-License-Identifier: Apache-2.0
// What kind of thing an operation is and where in a step it belongs: what programs say and traces
// record. Numbers and names are those of trace files (docs/trace.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cadenza {

enum class Category : std::uint8_t {
  step = 0,
  compute_dense = 1,      ///< matrix products
  compute_attention = 2,  ///< core attention tasks
  compute_other = 3,      ///< element-wise, reductions, packing
  p2p_send = 4,
  p2p_receive = 5,
  collective = 6,
  attention_dispatch = 7,  ///< attention inputs under way (Q, K, V; dO, LSE, delta)
  attention_return = 8,    ///< attention results under way (O, LSE; dQ, dK, dV)
  wait = 9,                ///< blocked until messages are there
  data = 10,
  optimizer = 11,
  checkpoint = 12,
  host = 13,
  plan = 14,
  trace_overhead = 15,
};
inline constexpr auto kCategoryNames = std::to_array<std::string_view>(
    {"step", "compute_dense", "compute_attention", "compute_other", "p2p_send", "p2p_receive",
     "collective", "attention_dispatch", "attention_return", "wait", "data", "optimizer",
     "checkpoint", "host", "plan", "trace_overhead"});
static_assert(kCategoryNames.size() == static_cast<std::size_t>(Category::trace_overhead) + 1);

enum class Phase : std::uint8_t {
  forward = 0,
  backward = 1,
  recompute = 2,
  optimizer = 3,
  other = 4,
};
inline constexpr auto kPhaseNames =
    std::to_array<std::string_view>({"forward", "backward", "recompute", "optimizer", "other"});
static_assert(kPhaseNames.size() == static_cast<std::size_t>(Phase::other) + 1);

/// Where in a step an operation belongs. -1 where a field does not apply.
struct EventContext {
  Phase phase = Phase::other;
  std::int16_t microbatch = -1;
  std::int16_t layer = -1;
  std::int32_t tick = -1;   ///< of the step's plans
  std::int16_t stage = -1;  ///< of the plan
  std::int8_t half = -1;    ///< of the microbatch, in ping-pong
  friend bool operator==(const EventContext&, const EventContext&) = default;
};

}  // namespace cadenza
