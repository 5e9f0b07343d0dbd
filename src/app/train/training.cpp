// SPDX-License-Identifier: Apache-2.0
#include "app/train/training.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "app/evaluate/scoring.hpp"
#include "app/files.hpp"
#include "app/planner/corpus.hpp"
#include "app/planner/experiment_file.hpp"
#include "app/planner/search/search.hpp"
#include "app/planner/step_report.hpp"
#include "app/planner/terminal.hpp"
#include "app/runtime/failure.hpp"
#include "app/runtime/machine.hpp"
#include "app/runtime/signals.hpp"
#include "app/train/plan_rows.hpp"
#include "app/train/start.hpp"
#include "cadenza/base/at.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/model/hugging_face.hpp"
#include "cadenza/program/operation_work.hpp"

namespace cadenza::app {
namespace {

using program::OtherEvent;

constexpr int kClockPings = 100;
constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::size_t kSpareEvents = 4096;

/// Returns the capacity for events of a step: every operation may pack, unpack and exchange a
/// message with every rank, in each half and, with recomputation, in three passes.
std::size_t event_capacity(const config::Experiment& e) {
  const program::StepShape step_shape(e);
  const auto ticks = step_shape.ticks().size() * static_cast<std::size_t>(step_shape.halves);
  const auto layers = static_cast<std::size_t>(step_shape.most_layers);
  const auto per_layer = static_cast<std::size_t>(64 + 8 * step_shape.layout.pool_size());
  return kSpareEvents + ticks * layers * 3 * per_layer;
}

/// Returns the usual number of events of a step: in each layer and half, forward and backward,
/// dense operations, an exchange and its messages.
std::size_t usual_events(const config::Experiment& e) {
  const program::StepShape step_shape(e);
  const auto ticks = step_shape.ticks().size() * static_cast<std::size_t>(step_shape.halves);
  return ticks * static_cast<std::size_t>(step_shape.most_layers) * 24;
}

/// Describes how to continue a run that a signal ended, or what an evaluation has.
std::string describe_stop(int signal, std::int64_t steps, const config::Experiment& experiment,
                          const std::string& folder) {
  if (experiment.run.evaluates) {
    return fmt::format("stopped   by {} after {} of {} steps, exit code {}: results are of these",
                       signal_name(signal), steps, experiment.run.steps, exit_code_of(signal));
  }
  const bool kept = experiment.run.checkpoint.every > 0;
  return fmt::format("stopped   by {} after {} of {} steps, exit code {}; {}", signal_name(signal),
                     steps, experiment.run.steps, exit_code_of(signal),
                     kept ? fmt::format("continue with: cadenza train EXPERIMENT --from {}", folder)
                          : "no checkpoint to continue from (run.checkpoint.every is 0)");
}

}  // namespace

template <typename Real>
Training<Real>::Training(comm::Communicator& world, config::Experiment experiment,
                         const std::string& from, const std::string& output, Evaluation* evaluation)
    : world_(world),
      experiment_(std::move(experiment)),
      kept_(experiment_.run.checkpoint.keep),
      evaluation_(evaluation) {
  collectively(world_, [&] {
    const bool held_out = evaluation_ != nullptr && !experiment_.data.validation.empty();
    corpus_ = open_corpus(experiment_, world_.rank() == 0,
                          held_out ? data::Part::validation : data::Part::training);
    if (held_out && world_.rank() == 0) {
      spdlog::info("documents those of data.validation, which training does not see");
    }
    contents_ = file_contents(experiment_, *corpus_);
    if (held_out) {  // no checkpoint knows these documents
      std::erase_if(contents_, [](const auto& one) { return one.first.starts_with("data."); });
    }
    if (evaluation_) {
      experiment_.run.steps = std::min(experiment_.run.steps, steps_of_pass(experiment_, *corpus_));
    }
    machine_ = load_machine(experiment_.cluster);
    const Choice choice = search_layout(experiment_, *corpus_, machine_, world_.rank() == 0);
    experiment_ = choice.experiment;
    packer_.emplace(*corpus_, experiment_);
    const bool chosen = !choice.explanation.empty();
    if (world_.rank() != 0) return;
    if (chosen) spdlog::info("{}", choice.explanation);
    for (const std::string& decision : choice.decisions) spdlog::info("{}", decision);
  });
  const std::string kernel = announce_kernels<Real>(
      world_, config::attention_shape(experiment_.model), experiment_.attention.kernel);
  const std::string remark = never_sparse(experiment_);
  if (world_.rank() == 0 && !remark.empty()) spdlog::warn("attention {}", remark);
  const config::Transport transport = announce_devices(world_, experiment_.run);
  warm_up<Real>(config::attention_shape(experiment_.model), experiment_.attention.kernel);
  rank_info_ = describe_rank(world_, experiment_);
  rank_info_.attention_kernel = kernel;
  rank_info_.peak_flops = matmul_rate<Real>(world_);
  peak_flops_ = rank_info_.peak_flops;
  world_.all_reduce(std::span(&peak_flops_, 1), comm::Reduction::sum);
  require_least_memory();
  if (experiment_.run.validate.every > 0) {
    collectively(world_, [&] {
      validation_.emplace(experiment_, machine_, memory_limit_, world_.rank() == 0);
    });
  }
  recorder_.emplace(event_capacity(experiment_));
  tracer_.emplace(*recorder_, ledger_, experiment_.trace.events, experiment_.trace.memory);
  config::Experiment settled = experiment_;
  settled.run.transport = transport;
  executor_.emplace(settled, world_, *corpus_, *tracer_, ledger_);
  read_start(from);  // before the run that wrote it is renamed, if this one takes its folder
  open_outputs(output);
  totals_.resize(static_cast<std::size_t>(world_.size()));
}

/// Checks the memory that any plan needs, before anything large is allocated; what plans add is
/// known a step ahead.
template <typename Real>
void Training<Real>::require_least_memory() {
  memory_limit_ = exec::memory_limit(experiment_.run, device_memory(world_));
  collectively(world_, [&] {
    const program::StepShape step_shape(experiment_);
    if (!step_shape.layout.trains(world_.rank())) return;
    exec::require_memory(memory_limit_, world_.rank(),
                         exec::least_memory(experiment_, step_shape, world_.rank()));
  });
}

template <typename Real>
void Training<Real>::read_start(const std::string& from) {
  const Start start = find_start(world_, from, experiment_, contents_, [&](const Start& found) {
    if (found.is_folder) {
      executor_->read_parameters(model::HuggingFaceFolder(found.path));
      return;
    }
    const model::CheckpointReader checkpoint(found.path);
    executor_->read_checkpoint(checkpoint);
    estimates_ = estimates_in(checkpoint, experiment_);
  });
  if (evaluation_) {
    evaluation_->set_weights(start.path, start.step);
  } else {
    first_step_ = start.step;
  }
  if (world_.rank() != 0) return;
  if (!start.path.empty()) spdlog::info("from      {}", describe(start));
  const std::string weights = describe_weights(experiment_, start, estimates_);
  if (!weights.empty()) spdlog::info("{}", weights);
}

template <typename Real>
void Training<Real>::open_outputs(const std::string& output) {
  const std::string path = output.empty() ? "runs/" + experiment_.name : output;
  collectively(world_, [&] {
    if (world_.rank() == 0) folder_ = RunFolder::create(path, experiment_);
  });
  if (world_.rank() != 0) folder_.emplace(path);
  run_info_ = run_info(experiment_, comm::broadcast(world_, utc_now(), 0));
  collectively(world_, [&] {
    writer_.emplace(folder_->trace() + "/" + trace::rank_file_name(world_.rank()), run_info_,
                    rank_info_, usual_events(experiment_));
  });
  std::vector<trace::RankInfo> ranks = gather_ranks(world_, rank_info_);
  collectively(world_, [&] {
    if (world_.rank() == 0) trace::write_run_index(folder_->trace(), run_info_, ranks);
  });
}

template <typename Real>
int Training<Real>::run() {
  tracer_->begin_step(first_step_);
  measure_clock(trace::ClockPhase::start);
  progress_.emplace(world_.rank() == 0, experiment_.run.steps, Progress::kStep, first_step_,
                    evaluation_ && evaluation_->json() ? stderr : stdout);
  if (experiment_.run.checkpoint.every > 0) save_checkpoint(first_step_);
  Planned next = plan_ahead(first_step_, estimates_.next);
  int signal = 0;
  std::int64_t step = first_step_;
  for (; step < experiment_.run.steps && signal == 0; ++step) {
    const std::int64_t begin = trace::now_ns();
    std::optional<program::StepPlan> plan;
    tracer_->time(OtherEvent::wait_for_plan, {}, [&] { plan = take_plan(next); });
    if (plan->keeps_patterns) pattern_choice_.chose(plan->batch);
    tracer_->time_if_long(OtherEvent::start_planner, [&] {
      if (step + 1 < experiment_.run.steps) next = plan_ahead(step + 1, estimates_.after);
    });
    ending_the_job(world_, [&] { signal = run_step(*plan, begin); });
    const std::int64_t every = experiment_.run.checkpoint.every;
    const bool due = every > 0 && ((step + 1) % every == 0 || signal != 0);
    if (due) save_checkpoint(step + 1);
    if (clock_due_) measure_clock(trace::ClockPhase::periodic);
  }
  if (step == experiment_.run.steps) signal = 0;  // no step is left to continue with
  finish(signal, step);
  return signal;
}

template <typename Real>
typename Training<Real>::Planned Training<Real>::plan_ahead(std::int64_t step,
                                                            const SparseEstimate& estimate) const {
  return std::async(std::launch::async, [this, step, estimate, choice = pattern_choice_] {
    program::StepPlan plan = program::plan_step(experiment_, *packer_, world_.rank(), step,
                                                machine_, estimate, choice.reused(step));
    plan.keeps_patterns = choice.chooses(step);
    return plan;
  });
}

template <typename Real>
program::StepPlan Training<Real>::take_plan(Planned& planned) {
  program::StepPlan plan;
  collectively(world_, [&] {
    plan = planned.get();
    exec::require_memory(memory_limit_, world_.rank(), experiment_, plan);
  });
  return plan;
}

template <typename Real>
int Training<Real>::run_step(program::StepPlan& plan, std::int64_t begin_ns) {
  if (evaluation_) scored_.mark(plan.batch, experiment_.batch.packing);
  ledger_.reset_peaks();
  tracer_->sample_memory();
  const exec::StepResult result = executor_->run(plan);
  estimates_.add(result.sparse);
  const std::int64_t end_ns = trace::now_ns();
  if (evaluation_) {
    evaluation_->end_step(world_, experiment_, plan.batch, *corpus_,
                          {executor_->position_losses(), executor_->answer_losses(),
                           executor_->document_losses(plan.batch.documents())});
  }
  const std::vector<RankStep> ranks = gather(end_ns - begin_ns);
  clock_due_ = ranks.front().clock_due != 0;
  collectively(world_, [&] {
    folder_->require();
    tracer_->time_host(OtherEvent::write_step, [&] {
      write_trace(plan, result, begin_ns, end_ns);
      tracer_->begin_step(plan.batch.step + 1);  // later events go with the next step
    });
  });
  const std::optional<double> validation = validate(plan.batch.step + 1);
  collectively(world_, [&] {
    if (world_.rank() == 0) report_step(plan, result, ranks, validation);
  });
  if (!std::isfinite(result.loss)) {
    progress_->finish();
    throw CollectiveError(
        ExitCode::numerics,
        fmt::format(
            "the loss of step {} is {} (gradient norm {}, learning rate {}): the run stops; "
            "a lower optimizer.lr, more optimizer.warmup or optimizer.clip may help",
            plan.batch.step, result.loss, result.gradient_norm, result.learning_rate));
  }
  const auto asked = std::ranges::find_if(ranks, [](const RankStep& r) { return r.signal != 0; });
  return asked == ranks.end() ? 0 : static_cast<int>(asked->signal);
}

/// Measures the loss of data.validation where that is due. Collective.
/// @param updates  done so far
template <typename Real>
std::optional<double> Training<Real>::validate(std::int64_t updates) {
  if (!validation_ || !validation_->is_due(updates)) return std::nullopt;
  std::optional<double> loss;
  tracer_->time_host(OtherEvent::validate, [&] {
    const exec::Tracer::Unrecorded unrecorded(*tracer_);
    loss = validation_->measure(world_, *executor_, estimates_.next);
  });
  return loss;
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
  mine.slowest_attention_ns = slowest_attention_ns();
  mine.flops = totals.flops;
  mine.attention_flops = totals.attention_flops;
  mine.bytes_sent = totals.bytes_sent;
  mine.peak_bytes = ledger_.peak_total();
  mine.step_ns = step_ns;
  mine.signal = StopSignals::caught();
  mine.clock_due = clock_is_due() ? 1 : 0;
  std::vector<RankStep> all(static_cast<std::size_t>(world_.size()));
  world_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// Returns the sum over layers and passes of the slowest rank's attention. Collective.
template <typename Real>
std::int64_t Training<Real>::slowest_attention_ns() {
  const program::StepShape step_shape(experiment_);
  std::vector<std::int64_t> slowest(step_shape.layer_passes());
  if (step_shape.layout.serves(world_.rank())) {
    for (const auto& [pass, ns] : tracer_->totals().attention_ns) {
      slowest[step_shape.number_of(pass, world_.rank())] = ns;
    }
  }
  world_.all_reduce(std::span(slowest), comm::Reduction::max);
  return std::accumulate(slowest.begin(), slowest.end(), std::int64_t{0});
}

template <typename Real>
void Training<Real>::write_trace(const program::StepPlan& plan, const exec::StepResult& result,
                                 std::int64_t begin_ns, std::int64_t end_ns) {
  trace::StepRecord step = step_record(experiment_, plan.batch);
  step.begin_ns = begin_ns;
  step.end_ns = end_ns;
  step.executed_flops = tracer_->totals().flops;
  step.loss = result.loss;
  step.gradient_norm = result.gradient_norm;
  step.learning_rate = result.learning_rate;
  step.bytes_sent = tracer_->totals().bytes_sent;
  step.bytes_received = tracer_->totals().bytes_received;
  trace::MemoryHighwater memory;
  memory.step = step.step;
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    memory.peak_bytes[at(kind)] = ledger_.peak(static_cast<MemoryKind>(kind));
  }
  memory.peak_total_bytes = ledger_.peak_total();
  const program::StepShape step_shape(experiment_);
  const program::Layout& layout = step_shape.layout;
  const Rank mine = world_.rank();
  auto tasks = planned_tasks(plan.batch.step, step_shape, plan.tick_plans);
  writer_->write_plan(
      in_world(std::move(tasks[at(layout.in_pool(mine))]), layout, layout.pool_of(mine)),
      planned_stages(plan.batch.step, step_shape, plan.tick_plans, mine,
                     program::planning_pool(experiment_, machine_, layout)));
  writer_->write_losses(executor_->position_losses(), executor_->answer_losses());
  if (mine == 0 && result.recall) {
    writer_->write_recall(recall_rows(plan.batch.step, *result.recall));
  }
  writer_->write_step(step, memory, *recorder_);
}

template <typename Real>
void Training<Real>::report_step(const program::StepPlan& plan, const exec::StepResult& result,
                                 const std::vector<RankStep>& ranks,
                                 std::optional<double> validation) {
  StepMetrics metrics = step_metrics(experiment_, plan.batch, ranks, peak_flops_);
  metrics.result = result;
  metrics.validation_loss = validation;
  if (experiment_.attention.sparse_rule().block > 0) {
    metrics.sparsity = result.sparse.sparsity();
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) totals_[rank] += ranks[rank];
  folder_->append(metrics);
  progress_->show(metrics.step + 1, fmt::format("loss {:.4f}  {}", result.loss, describe(metrics)),
                  validation.has_value());
}

template <typename Real>
void Training<Real>::save_checkpoint(std::int64_t step) {
  tracer_->time_host(OtherEvent::save_checkpoint, [&] {
    const std::string path = folder_->checkpoints() + "/" + model::checkpoint_name(step);
    collectively(world_, [&] { executor_->write_checkpoint(path, step, estimates_, contents_); });
    if (world_.rank() == 0) kept_.add(path);
  });
}

template <typename Real>
void Training<Real>::measure_clock(trace::ClockPhase phase) {
  comm::ClockOffset offset;
  tracer_->time_host(OtherEvent::measure_clock,
                     [&] { offset = comm::measure_clock(world_, kClockPings, trace::now_ns); });
  last_clock_ns_ = trace::now_ns();
  if (phase == trace::ClockPhase::start) first_clock_ns_ = last_clock_ns_;
  trace::ClockSync sync;
  sync.time_ns = offset.time_ns;
  sync.offset_ns = offset.offset_ns;
  sync.rtt_min_ns = offset.rtt_min_ns;
  sync.pings = kClockPings;
  sync.phase = phase;
  collectively(world_, [&] { writer_->write_clock(sync); });
}

/// Whether to compare clocks: every minute; at first after one, two, four, ... seconds, as short
/// runs drift too.
template <typename Real>
bool Training<Real>::clock_is_due() const {
  const std::int64_t interval = std::clamp(last_clock_ns_ - first_clock_ns_, kSecond, 60 * kSecond);
  return trace::now_ns() - last_clock_ns_ >= interval;
}

template <typename Real>
void Training<Real>::finish(int signal, std::int64_t steps) {
  measure_clock(trace::ClockPhase::end);
  collectively(world_, [&] {
    folder_->require();
    writer_->finish(signal);
    if (evaluation_ && world_.rank() == 0) {
      folder_->write_evaluation(evaluation_->to_json(experiment_));
    }
  });
  if (world_.rank() != 0) return;
  progress_->finish();
  evaluation_ ? print_evaluation() : print_times();
  spdlog::info("next      cadenza-analyze {} {}", evaluation_ ? "positions" : "report",
               folder_->path());
  if (signal == 0) return;
  const std::string stop = describe_stop(signal, steps, experiment_, folder_->path());
  evaluation_ ? spdlog::warn("{}", stop) : print(stop + "\n");
}

template <typename Real>
void Training<Real>::print_times() const {
  std::vector<std::string> roles;
  for (Rank rank = 0; rank < world_.size(); ++rank) roles.push_back(role_name(experiment_, rank));
  print(fmt::format("\n{}\nmetrics   {}\ntraces    {}/run.h5\n", summary_table(roles, totals_),
                    folder_->metrics(), folder_->trace()));
  if (experiment_.run.checkpoint.every > 0) {
    print(fmt::format("weights   {}\n", folder_->checkpoints()));
  }
}

template <typename Real>
void Training<Real>::print_evaluation() const {
  evaluation_->json()
      ? print(evaluation_->to_json(experiment_) + "\n")
      : print(fmt::format("\n{}\nresults   {}\ntraces    {}/run.h5\n", evaluation_->table(),
                          folder_->evaluation(), folder_->trace()));
}

template class Training<bfloat16>;
template class Training<float>;
template class Training<double>;

}  // namespace cadenza::app
