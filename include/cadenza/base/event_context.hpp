// SPDX-License-Identifier: Apache-2.0
// The category of an operation and its place in a step, as programs state and traces record them,
// and the collectives of a group. Numbers and names are those of trace files (docs/trace.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cadenza {

/// Collectives of a group of ranks. all_gather and reduce_scatter run round a ring once, all_reduce
/// twice or, where that is faster, over a tree.
enum class Collective : std::uint8_t { all_gather, reduce_scatter, all_reduce };

enum class Category : std::uint8_t {
  compute_dense = 0,      ///< matrix products
  compute_attention = 1,  ///< core attention tasks
  compute_other = 2,      ///< element-wise, reductions, packing
  p2p_send = 3,
  p2p_receive = 4,
  collective = 5,
  attention_dispatch = 6,  ///< attention inputs under way (Q, K, V; dO, LSE, delta)
  attention_return = 7,    ///< attention results under way (O, LSE; dQ, dK, dV)
  wait = 8,                ///< blocked until messages have arrived
  data = 9,
  optimizer = 10,
  checkpoint = 11,
  host = 12,
  plan = 13,
  trace_overhead = 14,
};
inline constexpr auto kCategoryNames = std::to_array<std::string_view>(
    {"compute_dense", "compute_attention", "compute_other", "p2p_send", "p2p_receive", "collective",
     "attention_dispatch", "attention_return", "wait", "data", "optimizer", "checkpoint", "host",
     "plan", "trace_overhead"});
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

/// The place of an operation in a step; -1 where a field does not apply.
struct EventContext {
  Phase phase = Phase::other;
  std::int32_t microbatch = -1;
  std::int32_t layer = -1;
  std::int32_t tick = -1;   ///< tick of the step's plans
  std::int32_t stage = -1;  ///< stage of the plan
  std::int32_t half = -1;   ///< half of the microbatch, in ping-pong
  friend bool operator==(const EventContext&, const EventContext&) = default;
};

}  // namespace cadenza
