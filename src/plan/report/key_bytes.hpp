// SPDX-License-Identifier: Apache-2.0
// What of the keys and values that a plan moves its servers need.
#pragma once

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// Bytes of K and V, all servers together.
struct KeyBytes {
  std::int64_t moved = 0;
  /// Rows that some task of a server reads and that do not live there, each counted once. Of sparse
  /// attention an estimate: a task is expected to read a row unless all blocks of its queries leave
  /// it out, each with the share of pairs that the plan expects to be left out.
  double needed = 0;
  KeyBytes& operator+=(const KeyBytes& other);
};

/// Of a forward plan.
KeyBytes key_bytes(const Plan& plan);

}  // namespace cadenza::plan
