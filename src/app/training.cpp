// SPDX-License-Identifier: Apache-2.0
#include "cadenza/app/training.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>

#include "cadenza/app/agree.hpp"
#include "cadenza/app/choose.hpp"
#include "cadenza/app/machine.hpp"
#include "cadenza/app/version.hpp"
#include "cadenza/config/flops.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/exec/memory.hpp"
#include "cadenza/model/checkpoint.hpp"

namespace cadenza::app {
namespace {

using trace::Category;

constexpr int kClockPings = 100;
constexpr std::size_t kSpareEvents = 4096;

/// Events of a step: every operation may pack, unpack and exchange a message with every rank, in
/// each half and, with recomputation, in three passes.
std::size_t event_capacity(const config::Experiment& e) {
  const program::Outline outline(e);
  const auto ticks = outline.ticks().size() * static_cast<std::size_t>(outline.parts);
  const auto layers = static_cast<std::size_t>(outline.layers * outline.pipeline.chunks);
  const auto per_layer = static_cast<std::size_t>(48 + 8 * outline.layout.pool_size());
  return kSpareEvents + ticks * layers * 3 * per_layer;
}

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

/// World ranks that compute attention tasks.
std::vector<Rank> attention_servers(const config::Experiment& e) {
  const bool trainers_serve = e.attention.servers == 0 || e.attention.mixed;
  std::vector<Rank> servers;
  for (std::int64_t rank = trainers_serve ? 0 : e.parallel.trainers(); rank < e.ranks(); ++rank) {
    servers.push_back(static_cast<Rank>(rank));
  }
  return servers;
}

Rank home_of(const plan::Workload& workload, const Task& task) {
  for (const plan::Home& home : workload.homes) {
    if (home.document == task.document && home.tokens.contains(task.q)) return home.rank;
  }
  return -1;  // several homes
}

/// @param rank  as plans count ranks
/// @param world_rank  (rank of the plan) -> rank of the run
template <typename WorldRank>
std::vector<trace::PlannedTask> planned_tasks(const program::StepPlan& step, Rank rank,
                                              WorldRank world_rank) {
  std::vector<trace::PlannedTask> rows;
  for (std::size_t tick = 0; tick < step.ticks.size(); ++tick) {
    const plan::Plan& plan = step.ticks[tick].forward;
    for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
      for (const plan::PlacedTask& placed : plan.stages[stage].tasks) {
        if (placed.server != rank) continue;
        const Task& task = placed.task;
        trace::PlannedTask row;
        row.step = static_cast<std::uint32_t>(step.batch.step);
        row.tick = static_cast<std::int32_t>(tick);
        row.document = task.document;
        const Rank home = home_of(plan.workload, task);
        row.home = home < 0 ? home : world_rank(home);
        row.server = world_rank(placed.server);
        row.stage = static_cast<std::int32_t>(stage);
        row.q_begin = task.q.begin;
        row.q_end = task.q.end;
        row.k_begin = task.k.begin;
        row.k_end = task.k.end;
        row.cost_flops = placed.cost;
        rows.push_back(row);
      }
    }
  }
  return rows;
}

}  // namespace

double attention_imbalance(const std::vector<RankStep>& ranks, const std::vector<Rank>& servers) {
  double sum = 0;
  double largest = 0;
  for (const Rank server : servers) {
    const auto busy = static_cast<double>(ranks[static_cast<std::size_t>(server)].attention_ns);
    sum += busy;
    largest = std::max(largest, busy);
  }
  return sum > 0 ? largest * static_cast<double>(servers.size()) / sum : 1.0;
}

template <typename Real>
Training<Real>::Training(comm::Communicator& world, config::Experiment experiment,
                         const std::string& output)
    : world_(world), experiment_(std::move(experiment)) {
  together(world_, [&] {
    corpus_ = data::open_corpus(experiment_.data, experiment_.model.vocab, experiment_.seed);
    packer_.emplace(*corpus_, experiment_);
    const Choice choice = choose_layout(experiment_, *packer_);
    experiment_ = choice.experiment;
    const bool chosen = !choice.explanation.empty();
    if (chosen && world_.rank() == 0) spdlog::info("{}", choice.explanation);
  });
  announce_kernels<Real>(world_, model::attention_shape(experiment_.model));
  rank_info_ = describe_rank(world_, experiment_);
  rank_info_.peak_flops = matmul_rate<Real>(world_);
  peak_flops_ = rank_info_.peak_flops;
  world_.all_reduce(std::span(&peak_flops_, 1), comm::Reduction::sum);
  open_outputs(output);
  recorder_.emplace(event_capacity(experiment_));
  tracer_.emplace(*recorder_, ledger_, experiment_.trace.events, experiment_.trace.memory);
  executor_.emplace(experiment_, world_, *corpus_, *tracer_, ledger_);
  summaries_.resize(static_cast<std::size_t>(world_.size()));
}

template <typename Real>
void Training<Real>::open_outputs(const std::string& output) {
  const std::string path = output.empty() ? "runs/" + experiment_.name : output;
  together(world_, [&] {
    if (world_.rank() == 0) folder_ = RunFolder::create(path, experiment_);
  });
  if (world_.rank() != 0) folder_.emplace(path);
  run_info_.config_yaml = config::to_yaml(experiment_);
  run_info_.code_version = kVersion;
  run_info_.seed = experiment_.seed;
  run_info_.created_utc = comm::broadcast(world_, utc_now(), 0);
  run_info_.run_id = experiment_.name + "-" + run_info_.created_utc;
  together(world_, [&] {
    writer_.emplace(folder_->trace() + "/" + trace::rank_file_name(world_.rank()), run_info_,
                    rank_info_);
  });
  std::vector<trace::RankInfo> ranks = gather_ranks(world_, rank_info_);
  together(world_, [&] {
    if (world_.rank() == 0) trace::write_run_index(folder_->trace(), run_info_, ranks);
  });
}

template <typename Real>
void Training<Real>::run() {
  measure_clock(0);
  progress_.emplace(world_.rank() == 0, experiment_.run.steps);
  if (experiment_.run.checkpoint.every > 0) save_checkpoint(0);
  Planned next = plan_ahead(0);
  for (std::int64_t step = 0; step < experiment_.run.steps; ++step) {
    const std::int64_t begin = trace::now_ns();
    tracer_->begin_step(step);
    std::optional<program::StepPlan> plan;
    tracer_->time(Category::plan, tracer_->intern("wait_for_plan"), {},
                  [&] { plan = take_plan(next); });
    if (step + 1 < experiment_.run.steps) next = plan_ahead(step + 1);
    run_step(*plan, begin);
    const std::int64_t every = experiment_.run.checkpoint.every;
    if (every > 0 && (step + 1) % every == 0) save_checkpoint(step + 1);
  }
  finish();
}

template <typename Real>
typename Training<Real>::Planned Training<Real>::plan_ahead(std::int64_t step) const {
  return std::async(std::launch::async, [this, step] {
    return program::plan_step(experiment_, *packer_, world_.rank(), step);
  });
}

template <typename Real>
program::StepPlan Training<Real>::take_plan(Planned& planned) {
  program::StepPlan plan;
  together(world_, [&] {
    plan = planned.get();
    if (experiment_.run.memory == 0) return;
    const program::Outline outline(experiment_);
    exec::require_memory(experiment_, world_.rank(),
                         exec::estimate_memory(experiment_, outline, plan.program, plan.ticks));
  });
  return plan;
}

template <typename Real>
void Training<Real>::run_step(const program::StepPlan& plan, std::int64_t begin_ns) {
  ledger_.reset_peaks();
  tracer_->sample_memory();
  const exec::StepResult result = executor_->run(plan);
  const std::int64_t end_ns = trace::now_ns();
  const std::vector<RankStep> ranks = gather(end_ns - begin_ns);
  together(world_, [&] {
    write_trace(plan, result, begin_ns, end_ns);
    if (world_.rank() == 0) report_step(plan, result, ranks);
  });
  if (!std::isfinite(result.loss)) {
    progress_->finish();
    throw AgreedError(
        ExitCode::numerics,
        fmt::format(
            "the loss of step {} is {} (gradient norm {}, learning rate {}): the run stops; "
            "a lower optimizer.lr, more optimizer.warmup or optimizer.clip may help",
            plan.batch.step, result.loss, result.gradient_norm, result.learning_rate));
  }
}

template <typename Real>
std::vector<RankStep> Training<Real>::gather(std::int64_t step_ns) {
  const exec::StepTotals& totals = tracer_->totals();
  RankStep mine;
  mine.attention_ns = totals.of(Category::compute_attention);
  mine.busy_ns = mine.attention_ns + totals.of(Category::compute_dense) +
                 totals.of(Category::compute_other) + totals.of(Category::optimizer) +
                 totals.of(Category::data);
  mine.wait_ns = totals.of(Category::wait);
  mine.communication_ns = totals.of(Category::collective);
  mine.bytes_sent = totals.bytes_sent;
  mine.peak_bytes = ledger_.peak_total();
  mine.step_ns = step_ns;
  std::vector<RankStep> all(static_cast<std::size_t>(world_.size()));
  world_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

template <typename Real>
void Training<Real>::write_trace(const program::StepPlan& plan, const exec::StepResult& result,
                                 std::int64_t begin_ns, std::int64_t end_ns) {
  const std::vector<std::int64_t> lengths = plan.batch.lengths();
  trace::StepRecord step;
  step.step = static_cast<std::uint32_t>(plan.batch.step);
  step.documents = static_cast<std::uint32_t>(lengths.size());
  step.t_begin_ns = begin_ns;
  step.t_end_ns = end_ns;
  step.tokens = plan.batch.tokens();
  step.sum_length2 = sum_of_squares(lengths);
  step.model_flops = config::step_flops(experiment_.model, lengths);
  step.executed_flops = tracer_->totals().flops;
  step.loss = result.loss;
  step.gradient_norm = result.gradient_norm;
  step.learning_rate = result.learning_rate;
  step.bytes_sent = tracer_->totals().bytes_sent;
  step.bytes_received = tracer_->totals().bytes_received;
  trace::MemoryHighwater memory;
  memory.step = step.step;
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    memory.peak[static_cast<std::size_t>(kind)] = ledger_.peak(static_cast<MemoryKind>(kind));
  }
  memory.peak_total = ledger_.peak_total();
  const program::Layout layout(experiment_);
  const Rank mine = world_.rank();
  writer_->write_plan(planned_tasks(plan, layout.in_pool(mine), [&](Rank in_pool) {
    return layout.world_rank(layout.pool_of(mine), in_pool);
  }));
  writer_->write_step(step, memory, *recorder_);
}

template <typename Real>
void Training<Real>::report_step(const program::StepPlan& plan, const exec::StepResult& result,
                                 const std::vector<RankStep>& ranks) {
  StepMetrics metrics;
  metrics.step = plan.batch.step;
  metrics.loss = result.loss;
  metrics.gradient_norm = result.gradient_norm;
  metrics.learning_rate = result.learning_rate;
  metrics.tokens = plan.batch.tokens();
  metrics.seconds = seconds(ranks[0].step_ns);
  metrics.tokens_per_second = static_cast<double>(metrics.tokens) / metrics.seconds;
  metrics.model_flops_utilization =
      config::step_flops(experiment_.model, plan.batch.lengths()) / (metrics.seconds * peak_flops_);
  metrics.attention_imbalance = attention_imbalance(ranks, attention_servers(experiment_));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankStep& step = ranks[rank];
    RankSummary& summary = summaries_[rank];
    metrics.bytes_moved += step.bytes_sent;
    metrics.peak_memory_bytes = std::max(metrics.peak_memory_bytes, step.peak_bytes);
    summary.attention += seconds(step.attention_ns);
    summary.busy += seconds(step.busy_ns);
    summary.waiting += seconds(step.wait_ns);
    summary.communicating += seconds(step.communication_ns);
    summary.total += seconds(step.step_ns);
    summary.bytes_sent += step.bytes_sent;
    summary.peak_memory = std::max(summary.peak_memory, step.peak_bytes);
  }
  folder_->append(metrics);
  progress_->show(metrics);
}

template <typename Real>
void Training<Real>::save_checkpoint(std::int64_t step) {
  tracer_->time(Category::checkpoint, tracer_->intern("save_checkpoint"), {}, [&] {
    together(world_, [&] {
      executor_->write_checkpoint(folder_->checkpoints() + "/" + model::checkpoint_name(step),
                                  step);
    });
  });
}

template <typename Real>
void Training<Real>::measure_clock(std::uint32_t phase) {
  const comm::ClockOffset offset = comm::measure_clock(world_, kClockPings, trace::now_ns);
  trace::ClockSync sync;
  sync.t_local_ns = offset.t_local_ns;
  sync.offset_ns = offset.offset_ns;
  sync.rtt_min_ns = offset.rtt_min_ns;
  sync.pings = kClockPings;
  sync.phase = phase;
  together(world_, [&] { writer_->write_clock(sync); });
}

template <typename Real>
void Training<Real>::finish() {
  measure_clock(2);
  together(world_, [&] { writer_->finish(); });
  if (world_.rank() != 0) return;
  progress_->finish();
  for (std::size_t rank = 0; rank < summaries_.size(); ++rank) {
    summaries_[rank].role = role_name(experiment_, static_cast<Rank>(rank));
  }
  spdlog::info("\n{}", summary_table(summaries_));
  spdlog::info("metrics   {}", folder_->metrics());
  spdlog::info("traces    {}/run.h5", folder_->trace());
  if (experiment_.run.checkpoint.every > 0) spdlog::info("weights   {}", folder_->checkpoints());
  spdlog::info("next      cadenza-analyze summary {}", folder_->path());
}

template class Training<bfloat16>;
template class Training<float>;
template class Training<double>;

}  // namespace cadenza::app
