// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cadenza/program/program.hpp"

namespace cadenza::exec {

/// Sampled queries of a document: one, at random, of each of so many equal parts.
inline constexpr std::int64_t kRecallQueries = 16;

/// Bytes that an index exchange holds: `working` while it makes the index of a tick, `kept` for
/// every layer and activation buffer.
struct IndexNeeds {
  std::int64_t working = 0;
  std::int64_t kept = 0;
  void add(const program::TickPlans& plans, Rank rank);
};

}  // namespace cadenza::exec
