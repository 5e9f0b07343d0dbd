// SPDX-License-Identifier: Apache-2.0
// The one order of moves and tasks inside a stage: equal work gives equal plans, byte for byte.
#pragma once

#include <algorithm>
#include <tuple>

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

inline void sort_stage(Stage& stage) {
  const auto move_key = [](const Move& m) {
    return std::tuple(m.from, m.to, m.what, m.document, m.tokens.begin, m.heads.begin);
  };
  const auto task_key = [](const PlacedTask& p) {
    const Task& t = p.task;
    return std::tuple(p.server, t.document, t.q.begin, t.k.begin, t.heads.begin);
  };
  std::sort(stage.moves.begin(), stage.moves.end(),
            [&](const Move& a, const Move& b) { return move_key(a) < move_key(b); });
  std::sort(stage.tasks.begin(), stage.tasks.end(),
            [&](const PlacedTask& a, const PlacedTask& b) { return task_key(a) < task_key(b); });
}

}  // namespace cadenza::plan
