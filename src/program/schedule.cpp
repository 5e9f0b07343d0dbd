// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/schedule.hpp"

#include <algorithm>

namespace cadenza::program {
namespace {

/// The n-th forward (or backward) pass of every stage: in stages x chunks passes, `stages`
/// microbatches go through all chunks of a stage.
ScheduleEntry nth(const PipelineShape& shape, Pass pass, int n) {
  const int round = shape.stages * shape.chunks;
  const int chunk = n % round / shape.stages;
  const int microbatch = n / round * shape.stages + n % shape.stages;
  return {pass, microbatch, pass == Pass::forward ? chunk : shape.chunks - 1 - chunk};
}

int passes_ahead(const PipelineShape& shape, int stage, int turns) {
  const int behind = shape.stages - stage - 1;
  const int ahead = shape.chunks == 1 ? behind : 2 * behind + (shape.chunks - 1) * shape.stages;
  return std::min(ahead, turns);
}

}  // namespace

std::vector<ScheduleEntry> one_f_one_b(const PipelineShape& shape, int stage) {
  const auto turn = [&](Pass pass, int n) {
    return shape.chunks == 1 ? ScheduleEntry{pass, n, 0} : nth(shape, pass, n);
  };
  const int turns = shape.microbatches * shape.chunks;
  const int ahead = passes_ahead(shape, stage, turns);
  std::vector<ScheduleEntry> order;
  for (int n = 0; n < ahead; ++n) order.push_back(turn(Pass::forward, n));
  for (int n = ahead; n < turns; ++n) {
    order.push_back(turn(Pass::forward, n));
    order.push_back(turn(Pass::backward, n - ahead));
  }
  for (int n = turns - ahead; n < turns; ++n) order.push_back(turn(Pass::backward, n));
  return order;
}

std::vector<Tick> phase_aligned(const PipelineShape& shape) {
  const int last = shape.stages - 1;
  std::vector<Tick> ticks;
  const auto add = [&](Pass phase, int tick) {
    Tick& next = ticks.emplace_back(Tick{phase, {}});
    for (int stage = 0; stage < shape.stages; ++stage) {
      const int microbatch = tick - (phase == Pass::forward ? stage : last - stage);
      const bool runs = microbatch >= 0 && microbatch < shape.microbatches;
      next.microbatch.push_back(runs ? microbatch : -1);
    }
  };
  for (int tick = 0; tick < last; ++tick) add(Pass::forward, tick);
  for (int m = 0; m < shape.microbatches; ++m) {
    add(Pass::forward, last + m);
    add(Pass::backward, m);
  }
  for (int tick = 0; tick < last; ++tick) add(Pass::backward, shape.microbatches + tick);
  return ticks;
}

}  // namespace cadenza::program
