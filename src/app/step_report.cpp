// SPDX-License-Identifier: Apache-2.0
#include "cadenza/app/step_report.hpp"

#include <algorithm>

#include "cadenza/app/version.hpp"
#include "cadenza/config/flops.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app {
namespace {

double seconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

double sum_of_squares(const std::vector<std::int64_t>& lengths) {
  double sum = 0;
  for (const std::int64_t length : lengths) {
    sum += static_cast<double>(length) * static_cast<double>(length);
  }
  return sum;
}

/// By document: its homes.
using Homes = std::vector<std::vector<const plan::Home*>>;

Homes homes_of(const plan::Workload& workload) {
  Homes homes(workload.lengths.size());
  for (const plan::Home& home : workload.homes) {
    homes[static_cast<std::size_t>(home.document)].push_back(&home);
  }
  return homes;
}

/// -1: several homes.
Rank home_of(const Homes& homes, const Task& task) {
  for (const plan::Home* home : homes[static_cast<std::size_t>(task.document)]) {
    if (home->tokens.contains(task.q)) return home->rank;
  }
  return -1;
}

trace::PlannedTask planned_task(const plan::PlacedTask& placed, Rank home) {
  const Task& task = placed.task;
  trace::PlannedTask row;
  row.document = task.document;
  row.home = home;
  row.server = placed.server;
  row.q_begin = task.q.begin;
  row.q_end = task.q.end;
  row.k_begin = task.k.begin;
  row.k_end = task.k.end;
  row.cost_flops = placed.cost;
  return row;
}

bool trainers_serve(const config::Experiment& e) {
  return e.attention.servers == 0 || e.attention.mixed;
}

}  // namespace

std::vector<Rank> attention_servers(const config::Experiment& e) {
  std::vector<Rank> servers;
  for (std::int64_t rank = trainers_serve(e) ? 0 : e.parallel.trainers(); rank < e.ranks();
       ++rank) {
    servers.push_back(static_cast<Rank>(rank));
  }
  return servers;
}

double attention_imbalance(std::span<const RankStep> ranks, std::span<const Rank> servers) {
  double sum = 0;
  double largest = 0;
  for (const Rank server : servers) {
    const auto busy = static_cast<double>(ranks[static_cast<std::size_t>(server)].attention_ns);
    sum += busy;
    largest = std::max(largest, busy);
  }
  return sum > 0 ? largest * static_cast<double>(servers.size()) / sum : 1.0;
}

StepMetrics step_metrics(const config::Experiment& experiment, const data::Batch& batch,
                         std::span<const RankStep> ranks, double peak_flops) {
  StepMetrics metrics;
  metrics.step = batch.step;
  metrics.tokens = batch.tokens();
  metrics.seconds = seconds(ranks[0].step_ns);
  metrics.tokens_per_second = static_cast<double>(metrics.tokens) / metrics.seconds;
  metrics.model_flops_utilization =
      config::step_flops(experiment.model, batch.lengths()) / (metrics.seconds * peak_flops);
  metrics.attention_imbalance = attention_imbalance(ranks, attention_servers(experiment));
  for (const RankStep& step : ranks) {
    metrics.bytes_moved += step.bytes_sent;
    metrics.peak_memory_bytes = std::max(metrics.peak_memory_bytes, step.peak_bytes);
  }
  return metrics;
}

void add_step(const RankStep& step, RankSummary& summary) {
  summary.attention += seconds(step.attention_ns);
  summary.busy += seconds(step.busy_ns);
  summary.waiting += seconds(step.wait_ns);
  summary.communicating += seconds(step.communication_ns);
  summary.total += seconds(step.step_ns);
  summary.bytes_sent += step.bytes_sent;
  summary.peak_memory = std::max(summary.peak_memory, step.peak_bytes);
}

trace::StepRecord step_record(const config::Experiment& experiment, const data::Batch& batch) {
  const std::vector<std::int64_t> lengths = batch.lengths();
  trace::StepRecord record;
  record.step = static_cast<std::uint32_t>(batch.step);
  record.documents = static_cast<std::uint32_t>(lengths.size());
  record.tokens = batch.tokens();
  record.sum_length2 = sum_of_squares(lengths);
  record.model_flops = config::step_flops(experiment.model, lengths);
  return record;
}

std::vector<std::vector<trace::PlannedTask>> planned_tasks(
    std::int64_t step, std::span<const program::TickPlans> ticks) {
  std::vector<std::vector<trace::PlannedTask>> by_server;
  for (std::size_t tick = 0; tick < ticks.size(); ++tick) {
    const plan::Plan& plan = ticks[tick].forward;
    const Homes homes = homes_of(plan.workload);
    by_server.resize(static_cast<std::size_t>(plan.workload.ranks));
    for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
      for (const plan::PlacedTask& placed : plan.stages[stage].tasks) {
        trace::PlannedTask row = planned_task(placed, home_of(homes, placed.task));
        row.step = static_cast<std::uint32_t>(step);
        row.tick = static_cast<std::int32_t>(tick);
        row.stage = static_cast<std::int32_t>(stage);
        by_server[static_cast<std::size_t>(placed.server)].push_back(row);
      }
    }
  }
  return by_server;
}

std::vector<trace::PlannedTask> in_world(std::vector<trace::PlannedTask> tasks,
                                         const program::Layout& layout, int pool) {
  for (trace::PlannedTask& task : tasks) {
    if (task.home >= 0) task.home = layout.world_rank(pool, task.home);
    task.server = layout.world_rank(pool, task.server);
  }
  return tasks;
}

trace::RankInfo rank_info(const config::Experiment& experiment, Rank rank) {
  const program::Layout layout(experiment);
  const bool trainer = layout.trains(rank);
  const bool in_place = trainers_serve(experiment);
  trace::RankInfo info;
  info.rank = rank;
  info.world = layout.ranks();
  info.role = !trainer   ? trace::Role::attention_server
              : in_place ? trace::Role::both
                         : trace::Role::trainer;
  info.data = info.pipeline = info.tensor = info.context = -1;
  if (trainer) {
    const program::Coordinates at = layout.coordinates(rank);
    info.data = at.data;
    info.pipeline = at.pipeline;
    info.tensor = at.tensor;
    info.context = at.context;
  }
  info.server = in_place ? rank : (trainer ? -1 : rank - layout.trainers());
  return info;
}

trace::RunInfo run_info(const config::Experiment& experiment, const std::string& created_utc) {
  trace::RunInfo info;
  info.config_yaml = config::to_yaml(experiment);
  info.code_version = kVersion;
  info.seed = experiment.seed;
  info.created_utc = created_utc;
  info.run_id = experiment.name + "-" + created_utc;
  return info;
}

}  // namespace cadenza::app
