// SPDX-License-Identifier: Apache-2.0
#include "cadenza/app/simulated_trace.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "cadenza/app/machine.hpp"
#include "cadenza/app/step_report.hpp"
#include "cadenza/base/error.hpp"

namespace cadenza::app {
namespace {

constexpr rlim_t kOtherFiles = 32;

/// All ranks' files are open at once: more than a shell usually allows a process.
void allow_open_files(std::size_t ranks) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t needed = ranks + kOtherFiles;
  if (limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed) {
    fail(ExitCode::data,
         "--trace: {} ranks need {} open files, this process may have {}; valid: a higher limit "
         "(ulimit -Hn), or --trace none",
         ranks, needed, limit.rlim_max);
  }
  limit.rlim_cur = needed;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::vector<trace::RankInfo> rank_infos(const Simulation& simulation) {
  const config::Machine& machine = simulation.machine();
  std::vector<trace::RankInfo> ranks;
  std::int32_t local_rank = 0;
  for (Rank rank = 0; rank < simulation.outline().layout.ranks(); ++rank) {
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
  const auto set = [&](MemoryKind kind, std::int64_t bytes) {
    marks.peak[static_cast<std::size_t>(kind)] = bytes;
  };
  set(MemoryKind::parameters, memory.parameters);
  set(MemoryKind::activations, memory.activations);
  set(MemoryKind::attention, memory.attention);
  set(MemoryKind::communication, memory.communication);
  marks.peak_total = memory.total();
  return marks;
}

/// A recorder with the events of a rank that does as `record` says, `offset` ranks further.
void fill(const simulate::RankRecord& record, Rank offset, trace::Recorder& recorder) {
  for (trace::Event event : record.events) {
    if (event.peer >= 0) event.peer += offset;
    recorder.record(event);
  }
}

}  // namespace

SimulatedTrace::SimulatedTrace(const Simulation& simulation, const std::string& folder, bool events)
    : simulation_(simulation), recording_(simulation.outline().layout.ranks(), events) {
  trace::RunInfo run = run_info(simulation.experiment(), utc_now());
  run.producer = "simulator";
  const std::vector<trace::RankInfo> ranks = rank_infos(simulation);
  allow_open_files(ranks.size());
  for (const trace::RankInfo& rank : ranks) {
    writers_.push_back(std::make_unique<trace::Writer>(
        folder + "/" + trace::rank_file_name(rank.rank), run, rank));
  }
  trace::write_run_index(folder, run, ranks);
}

simulate::Observer SimulatedTrace::observe(std::int64_t step) {
  recording_.begin_step(step, begin_ns_);
  return [this](const simulate::Span& span) { recording_.add(span); };
}

void SimulatedTrace::write(const SimulatedStep& step) {
  const program::Layout& layout = simulation_.outline().layout;
  std::size_t most = 0;
  for (const program::Program& program : step.programs) {
    const double end = step.result.ranks[static_cast<std::size_t>(program.rank)].end;
    recording_.surround(program.rank, end, step.result.seconds);
    most = std::max(most, recording_.of(program.rank).events.size());
  }
  trace::Recorder recorder(most);
  for (const std::string& name : simulate::event_names()) recorder.intern(name);
  const auto tasks = planned_tasks(step.batch.step, step.ticks);
  trace::StepRecord record = step_record(simulation_.experiment(), step.batch);
  record.loss = record.gradient_norm = record.learning_rate =
      std::numeric_limits<double>::quiet_NaN();
  record.t_begin_ns = begin_ns_;
  record.t_end_ns = begin_ns_ + simulate::nanoseconds(step.result.seconds);
  for (Rank rank = 0; rank < layout.ranks(); ++rank) {
    const std::size_t program = simulation_.program_of(rank);
    const Rank twin = step.programs[program].rank;
    const simulate::RankRecord& mine = recording_.of(twin);
    trace::Writer& writer = *writers_[static_cast<std::size_t>(rank)];
    fill(mine, rank - twin, recorder);
    record.executed_flops = mine.flops;
    record.bytes_sent = step.result.ranks[static_cast<std::size_t>(rank)].bytes_sent;
    record.bytes_received = mine.bytes_received;
    writer.write_plan(in_world(tasks[static_cast<std::size_t>(layout.in_pool(rank))], layout,
                               layout.pool_of(rank)));
    writer.write_step(record, highwater(record.step, step.memory[program]), recorder);
  }
  begin_ns_ = record.t_end_ns;
}

void SimulatedTrace::finish() {
  for (const auto& writer : writers_) writer->finish();
}

}  // namespace cadenza::app
