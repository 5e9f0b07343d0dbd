// SPDX-License-Identifier: Apache-2.0
#include "program/units.hpp"

namespace cadenza::program {

std::vector<Unit> units_of(const StepShape& outline, bool trainer, int stage) {
  std::vector<Unit> units;
  if (outline.layout.pools_stages()) {
    const std::vector<Tick> ticks = outline.ticks();
    for (int t = 0; t < static_cast<int>(ticks.size()); ++t) {
      const auto& tick = ticks[static_cast<std::size_t>(t)];
      const int microbatch = trainer ? tick.microbatch[static_cast<std::size_t>(stage)] : -1;
      units.push_back({tick.phase, t, microbatch, 0});
      // With one stage a tick is a microbatch: forward, then backward with the same plans.
      if (outline.layout.pipeline() == 1) units.push_back({Pass::backward, t, microbatch, 0});
    }
    return units;
  }
  for (const ScheduleEntry& turn : one_f_one_b(outline.pipeline, stage)) {
    units.push_back({turn.pass, turn.microbatch, turn.microbatch, turn.chunk});
  }
  return units;
}

}  // namespace cadenza::program
