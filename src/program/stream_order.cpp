// SPDX-License-Identifier: Apache-2.0
#include "program/stream_order.hpp"

#include <algorithm>
#include <tuple>

#include "cadenza/base/at.hpp"

namespace cadenza::program {
namespace {

/// A unit's (pass, microbatch, chunk of the model), which is unique over all stages.
using Name = std::tuple<Pass, int, int>;

/// Names units; the chunks of all stages are numbered in the order of the layers.
class Names {
 public:
  explicit Names(const StepShape& step_shape) : shape_(step_shape.pipeline) {}
  Name of(int stage, const MicrobatchPass& unit) const {
    return {unit.pass, unit.microbatch, unit.chunk * shape_.stages + stage};
  }
  /// The unit that must end before `name` begins; `name` itself for the first of a microbatch.
  Name before(const Name& name) const {
    const auto [pass, microbatch, part] = name;
    if (pass == Pass::forward) return {pass, microbatch, std::max(part - 1, 0)};
    const bool last = part + 1 == shape_.stages * shape_.chunks;
    return last ? Name{Pass::forward, microbatch, part} : Name{pass, microbatch, part + 1};
  }
  /// Their own below count().
  std::size_t number_of(const Name& name) const {
    const auto [pass, microbatch, part] = name;
    const int row = (pass == Pass::forward ? 0 : shape_.microbatches) + microbatch;
    return at(row * shape_.stages * shape_.chunks + part);
  }
  std::size_t count() const { return at(2 * shape_.microbatches * shape_.stages * shape_.chunks); }

 private:
  PipelineShape shape_;
};

/// The times at which units begin, by stage, if all take equally long.
class Timetable {
  static constexpr int kNotYet = -1;

 public:
  explicit Timetable(const StepShape& step_shape) : step_shape_(step_shape), names_(step_shape) {
    const int stages = step_shape.layout.pipeline();
    for (int stage = 0; stage < stages; ++stage)
      units_.push_back(microbatch_passes(step_shape, true, stage));
    begins_.resize(units_.size());
    ends_.resize(names_.count(), kNotYet);
    for (bool some = true; some;) {
      some = false;
      for (int stage = 0; stage < stages; ++stage) some |= advance(stage);
    }
  }
  const std::vector<int>& begins(int stage) const { return begins_[at(stage)]; }
  const std::vector<MicrobatchPass>& units(int stage) const { return units_[at(stage)]; }
  int end_of(const Name& name) const { return ends_[names_.number_of(name)]; }

 private:
  /// Schedules units of a stage as far as possible. @return whether any could run
  bool advance(int stage) {
    std::vector<int>& begins = begins_[at(stage)];
    const std::size_t before = begins.size();
    while (begins.size() < units_[at(stage)].size()) {
      const MicrobatchPass& unit = units_[at(stage)][begins.size()];
      int begin = begins.empty() ? 0 : begins.back() + 1;
      if (step_shape_.layout.pools_stages()) {
        begin = unit.tick;  // common to all stages
      } else {
        const Name name = names_.of(stage, unit);
        const Name needed = names_.before(name);
        if (needed != name && end_of(needed) == kNotYet) break;
        if (needed != name) begin = std::max(begin, end_of(needed));
      }
      if (unit.microbatch >= 0) ends_[names_.number_of(names_.of(stage, unit))] = begin + 1;
      begins.push_back(begin);
    }
    return begins.size() > before;
  }

  const StepShape& step_shape_;
  Names names_;
  std::vector<std::vector<MicrobatchPass>> units_;
  std::vector<std::vector<int>> begins_;
  std::vector<int> ends_;  ///< by number of their names
};

/// The edge on which a pass of a stage sends.
int edge_of(const StepShape& step_shape, int stage, Pass pass) {
  const int stages = step_shape.layout.pipeline();
  return pass == Pass::forward ? stage : (stage + stages - 1) % stages;
}

}  // namespace

StreamPlace place_of_send(const StepShape& step_shape, int stage, const MicrobatchPass& unit,
                          int begin) {
  return {begin + 1, unit.pass, edge_of(step_shape, stage, unit.pass)};
}

StreamOrder order_streams(const StepShape& step_shape, int stage) {
  const Timetable table(step_shape);
  const Names names(step_shape);
  const int stages = step_shape.layout.pipeline();
  StreamOrder order{table.begins(stage), {}};
  for (const MicrobatchPass& unit : table.units(stage)) {
    if (unit.microbatch < 0) continue;
    const Name name = names.of(stage, unit);
    const Name needed = names.before(name);
    if (needed == name || std::get<Pass>(needed) != unit.pass) continue;  // on this stage
    const int from = std::get<2>(needed) % stages;
    order.arrivals.push_back(
        {{table.end_of(needed), unit.pass, edge_of(step_shape, from, unit.pass)}, unit});
  }
  std::ranges::sort(order.arrivals, {}, &StreamArrival::place);
  return order;
}

StreamBuffers stream_buffers_of_stage(const StepShape& step_shape, int stage) {
  StreamBuffers buffers;
  if (step_shape.layout.pipeline() == 1) return buffers;
  constexpr int kLeaving = 2;  // one is sent while the next one is packed
  const StreamOrder order = order_streams(step_shape, stage);
  const std::vector<MicrobatchPass> units = microbatch_passes(step_shape, true, stage);
  const int parts = step_shape.layout.pipeline() * step_shape.pipeline.chunks;
  auto arrival = order.arrivals.begin();
  int taken = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const MicrobatchPass& unit = units[i];
    if (unit.microbatch < 0) continue;
    arrival = std::find_if(arrival, order.arrivals.end(), [&](const StreamArrival& next) {
      return next.place.time > order.begins[i];
    });
    const auto posted = static_cast<int>(arrival - order.arrivals.begin());
    buffers.receives = std::max(buffers.receives, posted - taken);
    const int part = unit.chunk * step_shape.layout.pipeline() + stage;
    const bool forward = unit.pass == Pass::forward;
    if (part != (forward ? 0 : parts - 1)) ++taken;
    int& sends = buffers.sends[at(unit.pass)];
    if (part != (forward ? parts - 1 : 0)) sends = std::min(sends + 1, kLeaving);
  }
  return buffers;
}

std::vector<MicrobatchPass> microbatch_passes(const StepShape& step_shape, bool trainer,
                                              int stage) {
  std::vector<MicrobatchPass> units;
  if (step_shape.layout.pools_stages()) {
    const std::vector<Tick> ticks = step_shape.ticks();
    for (int t = 0; t < static_cast<int>(ticks.size()); ++t) {
      const auto& tick = ticks[at(t)];
      const int microbatch = trainer ? tick.microbatch[at(stage)] : -1;
      units.push_back({tick.phase, t, microbatch, 0});
      // With one stage a tick is a microbatch: its backward pass follows, with the same plans.
      if (step_shape.layout.pipeline() > 1 || step_shape.evaluates) continue;
      units.push_back({Pass::backward, t, microbatch, 0});
    }
    return units;
  }
  for (const ScheduleEntry& turn : one_f_one_b(step_shape.pipeline, stage)) {
    if (step_shape.evaluates && turn.pass == Pass::backward) continue;
    units.push_back({turn.pass, turn.microbatch, turn.microbatch, turn.chunk});
  }
  return units;
}

}  // namespace cadenza::program
