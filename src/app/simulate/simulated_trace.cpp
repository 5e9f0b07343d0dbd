// SPDX-License-Identifier: Apache-2.0
#include "app/simulate/simulated_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "app/planner/step_report.hpp"
#include "app/runtime/machine.hpp"
#include "app/train/plan_rows.hpp"
#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/program/operation_work.hpp"

namespace cadenza::app {
namespace {

std::vector<trace::RankInfo> rank_infos(const Simulation& simulation) {
  const config::Machine& machine = simulation.machine();
  std::vector<trace::RankInfo> ranks;
  std::int32_t local_rank = 0;
  for (Rank rank = 0; rank < simulation.step_shape().layout.ranks(); ++rank) {
    const int node = simulation.costs().node_of(rank);
    const bool same_node = rank > 0 && node == simulation.costs().node_of(rank - 1);
    local_rank = same_node ? local_rank + 1 : 0;
    trace::RankInfo& info = ranks.emplace_back(rank_info(simulation.experiment(), rank));
    info.host = fmt::format("node-{:05}", node);
    info.local_rank = local_rank;
    info.device = machine.name;
    info.peak_flops = machine.peak_flops_per_second;
  }
  return ranks;
}

trace::MemoryHighwater highwater(std::uint32_t step, const exec::MemoryEstimate& memory) {
  trace::MemoryHighwater marks;
  marks.step = step;
  const auto set = [&](MemoryKind kind, std::int64_t bytes) { marks.peak_bytes[at(kind)] = bytes; };
  set(MemoryKind::parameters, memory.parameters - memory.gradients - memory.optimizer);
  set(MemoryKind::gradients, memory.gradients);
  set(MemoryKind::optimizer, memory.optimizer);
  set(MemoryKind::activations, memory.activations);
  set(MemoryKind::attention, memory.attention);
  set(MemoryKind::communication, memory.communication);
  set(MemoryKind::other, memory.other);
  marks.peak_total_bytes = memory.total();
  return marks;
}

/// Nanoseconds by which each rank's clock is ahead.
std::vector<std::int64_t> clocks(const config::Experiment& experiment) {
  std::vector<std::int64_t> clocks(static_cast<std::size_t>(experiment.ranks()), 0);
  for (const config::Fault& fault : experiment.cluster.faults) {
    clocks[static_cast<std::size_t>(fault.rank)] += simulate::nanoseconds(fault.clock);
  }
  return clocks;
}

/// Fills a recorder with the events of the rank `offset` further in the tensor group, which does
/// the same as `record`. @param clock  nanoseconds by which its clock is ahead
void fill(const simulate::RankRecord& record, Rank offset, std::int64_t clock,
          trace::Recorder& recorder) {
  for (trace::Event event : record.events) {
    event.begin_ns += clock;
    event.end_ns += clock;
    recorder.record(simulate::twin_of(event, offset));
  }
}

}  // namespace

SimulatedTrace::SimulatedTrace(const Simulation& simulation, const std::string& folder,
                               std::int64_t steps, bool events)
    : simulation_(simulation),
      folder_(folder),
      steps_left_(steps),
      run_(run_info(simulation.experiment(), utc_now())),
      ranks_(rank_infos(simulation)),
      clocks_(clocks(simulation.experiment())),
      recording_(simulation.step_shape().layout.ranks(), simulation.step_shape().halves, events) {
  run_.producer = "simulator";
  run_.machine_yaml = config::to_yaml(simulation.machine());
  trace::write_run_index(folder_, run_, ranks_);
}

simulate::Observer SimulatedTrace::observe(std::int64_t step) {
  begin_ns_ +=
      simulate::nanoseconds(std::ranges::min(simulate::begins(simulation_.experiment(), step)));
  recording_.begin_step(step, begin_ns_);
  return [this](const simulate::Span& span) { recording_.add(span); };
}

void SimulatedTrace::write(const SimulatedStep& step) {
  std::size_t most = 0;
  const double opens =
      std::ranges::max_element(step.result.ranks, {}, &simulate::RankTimes::begin)->begin;
  for (const program::Program& program : step.programs) {
    const simulate::RankTimes& times = step.result.ranks[at(program.rank)];
    const bool trains = simulation_.step_shape().layout.trains(program.rank);
    recording_.surround(program.rank, trains, times, opens, step.result.seconds);
    most = std::max(most, recording_.of(program.rank).events.size());
  }
  trace::Recorder recorder(most);
  for (const std::string& name : simulate::event_names()) recorder.intern(name);
  const Tasks tasks = planned_tasks(step.batch.step, simulation_.step_shape(), step.tick_plans);
  const std::int64_t end_ns = begin_ns_ + simulate::nanoseconds(step.result.seconds);
  trace::StepRecord record = step_record(simulation_.experiment(), step.batch);
  record.loss = record.gradient_norm = record.learning_rate =
      std::numeric_limits<double>::quiet_NaN();
  record.end_ns = end_ns;
  --steps_left_;
  const cost::Pool pool = program::planning_pool(simulation_.experiment(), simulation_.machine(),
                                                 simulation_.step_shape().layout);
  for (const trace::RankInfo& rank : ranks_) {
    write_rank(rank, step, tasks, pool, record, recorder);
  }
  begin_ns_ = end_ns;
  begun_ = true;
}

void SimulatedTrace::write_rank(const trace::RankInfo& info, const SimulatedStep& step,
                                const Tasks& tasks, const cost::Pool& pool,
                                trace::StepRecord record, trace::Recorder& recorder) const {
  const program::Layout& layout = simulation_.step_shape().layout;
  const Rank rank = info.rank;
  const std::size_t program = simulation_.program_of(rank);
  const Rank replica = step.programs[program].rank;
  const simulate::RankRecord& mine = recording_.of(replica);
  fill(mine, rank - replica, clocks_[at(rank)], recorder);
  record.begin_ns =
      begin_ns_ + simulate::nanoseconds(step.result.ranks[at(rank)].begin) + clocks_[at(rank)];
  record.end_ns += clocks_[at(rank)];
  record.executed_flops = mine.flops;
  record.bytes_sent = step.result.ranks[at(rank)].bytes_sent;
  record.machine_seconds = step.result.ranks[at(replica)].machine;
  record.bytes_received = mine.bytes_received;

  const std::string path = folder_ + "/" + trace::rank_file_name(rank);
  trace::Writer writer =
      begun_ ? trace::Writer(path) : trace::Writer(path, run_, info, mine.events.size());
  writer.write_plan(
      in_world(tasks[at(layout.in_pool(rank))], layout, layout.pool_of(rank)),
      planned_stages(step.batch.step, simulation_.step_shape(), step.tick_plans, rank, pool));
  writer.write_step(record, highwater(record.step, step.memory[program]), recorder);
  steps_left_ > 0 ? writer.pause() : writer.finish();
}

}  // namespace cadenza::app
