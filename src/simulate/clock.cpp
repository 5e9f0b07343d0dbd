// SPDX-License-Identifier: Apache-2.0
#include "simulate/clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cadenza/base/at.hpp"

namespace cadenza::simulate {

using program::Operation;
using program::Pass;

Clock::Clock(const config::Experiment& experiment, const program::StepShape& step_shape,
             std::span<const program::Program> programs,
             std::span<const program::TickPlans> tick_plans, const Costs& costs,
             const Observer& observer, std::int64_t step)
    : step_shape_(step_shape),
      layout_(step_shape.layout),
      costs_(costs),
      observer_(observer),
      work_(step_shape, tick_plans, costs),
      dense_(experiment, step_shape, costs),
      network_(costs, step_shape.layout.ranks()),
      variation_(experiment, step),
      runners_(programs.size()),
      runner_of_(static_cast<std::size_t>(step_shape.layout.ranks()), -1) {
  const std::vector<double> begin = begins(experiment, step);
  const auto [first, last] = std::ranges::minmax(begin);
  bool all_lead = layout_.tensor() > 1;
  for (std::size_t i = 0; i < programs.size(); ++i) {
    RankState& runner = runners_[i];
    runner.program = &programs[i];
    runner.pool = layout_.pool_of(runner.rank());
    runner.in_pool = layout_.in_pool(runner.rank());
    if (layout_.serves(runner.rank())) runner.attention.resize(step_shape.layer_passes());
    runner_of_[at(runner.rank())] = static_cast<int>(i);
    all_lead = all_lead && layout_.tensor_of(runner.rank()) == 0;
    place_pauses(runner);
    // All ranks agree on the plan before any begins its program.
    runner.times.begin = begin[at(runner.rank())] - first;
    runner.times.data_parallel_wait = last - begin[at(runner.rank())];
    wake(i, last - first);
  }
  one_for_all_ = all_lead;
}

void Clock::place_pauses(const RankState& runner) {
  variation_.place_pauses(*runner.program, [&](const Instruction& instruction) {
    if (instruction.operation == Operation::optimize) return true;
    if (instruction.operation == Operation::attend) {
      return work_.attention(instruction, runner.in_pool).seconds > 0;
    }
    return program::is_of_rows(instruction.operation) &&
           work_.rows(instruction, runner.in_pool) > 0;
  });
}

void Clock::run() {
  while (!events_.empty()) {
    const auto [time, runner] = events_.top();
    events_.pop();
    ++operations_;
    resume(runner, time);
  }
}

void Clock::wake(std::size_t runner, double time) {
  events_.emplace(time, runner);
}

void Clock::resume(std::size_t i, double time) {
  RankState& runner = runners_[i];
  runner.now = time;
  switch (runner.state) {
    case State::ready:
      return start(i);
    case State::running:
    case State::meeting:
      return finish(i);
    case State::draining:
      count_wait(runner, runner.began, &RankTimes::communication);
      emit(runner, Activity::drain, runner.began, time);
      close_awaited(i);
      return start_operation(i);
    case State::waiting:
      return end_wait(i);
    case State::receiving:
      return end_receive(i);
  }
}

void Clock::start(std::size_t i) {
  RankState& runner = runners_[i];
  runner.began = runner.now;
  if (runner.ended()) {
    if (drains(i, runner.sent[0]) || drains(i, runner.sent[1])) return;
    return start_operation(i);
  }
  const Instruction& instruction = runner.instruction();
  if (program::is_attention(instruction.operation)) {
    Place& place = runner.place[instruction.half];
    const Place next{instruction.plan, instruction.layer, instruction.pass, instruction.recompute};
    const bool moves = place != next;
    place = next;
    if (moves && drains(i, runner.sent[instruction.half])) return;
  } else {
    for (int half = 0; half < 2; ++half) {
      if (program::writes_sent_rows(instruction, half) && drains(i, runner.sent[half])) return;
    }
  }
  start_operation(i);
}

void Clock::start_operation(std::size_t i) {
  RankState& runner = runners_[i];
  runner.began = runner.now;
  if (runner.ended()) {
    if (!runner.sent[0].empty() || !runner.sent[1].empty()) return start(i);
    runner.times.end = runner.now;
    return;
  }
  switch (runner.instruction().operation) {
    case Operation::post_index:
    case Operation::post:
    case Operation::post_results:
      return post(i);
    case Operation::wait_index:
    case Operation::wait:
    case Operation::wait_results:
      return start_wait(i);
    case Operation::estimate:
      return estimate(i);
    case Operation::attend:
      return attend(i);
    case Operation::post_receive:  // the sender does not wait for it
      return next_operation(i);
    case Operation::receive:
      return start_receive(i);
    case Operation::send:
      return run_for(i, costs_.pack(stream_bytes(runner), cost::Copied::streams));
    case Operation::offload:
    case Operation::fetch:
      return start_copy(i);
    case Operation::wait_for_copy:
      return wait_for_copy(i);
    case Operation::gather_layer:
      return post_gather(i);
    case Operation::wait_layer:
      return wait_for_gather(i);
    case Operation::reduce_layer:
      return post_sum(i);
    case Operation::reduce_gradients:
    case Operation::gather_parameters:
      runner.compute = dense_.time(runner.instruction(), runner.rank(), 0).collective_seconds();
      return meet(i);
    case Operation::load:
    case Operation::embed:
    case Operation::attention_inputs:
    case Operation::begin_attention:
    case Operation::attention_outputs:
    case Operation::loss:
    case Operation::embed_gradient:
    case Operation::gradient_norm:
    case Operation::optimize:
      return run_dense(i);
  }
}

void Clock::run_for(std::size_t i, double seconds) {
  RankState& runner = runners_[i];
  runner.state = State::running;
  runner.times.machine += seconds;
  wake(i, runner.now + taken(runner, seconds));
}

void Clock::finish(std::size_t i) {
  RankState& runner = runners_[i];
  const program::OperationInfo& operation = program::describe(runner.instruction().operation);
  if (operation.pack) program::is_attention(operation.operation) ? post_sends(i) : send(i);
  next_operation(i);
}

/// Copies between a rank's memory and the host's run one after another, beside everything else.
void Clock::start_copy(std::size_t i) {
  RankState& runner = runners_[i];
  const Instruction& instruction = runner.instruction();
  const std::int64_t bytes =
      dense_.shapes().kept_bytes(work_.all_rows(instruction, runner.in_pool));
  runner.copied = std::max(runner.copied, runner.now) + costs_.host_copy(bytes);
  runner.copies[instruction.slot] = runner.copied;
  emit(runner, Activity::compute, runner.now, runner.now, bytes);
  next_operation(i);
}

void Clock::wait_for_copy(std::size_t i) {
  RankState& runner = runners_[i];
  const double end = std::max(runner.now, runner.copies[runner.instruction().slot]);
  runner.times.collectives += end - runner.now;
  runner.times.communication += end - runner.now;
  emit(runner, Activity::compute, runner.now, end);
  runner.state = State::running;
  wake(i, end);
}

void Clock::next_operation(std::size_t i) {
  RankState& runner = runners_[i];
  ++runner.next;
  runner.state = State::ready;
  wake(i, runner.now);
}

/// Returns the time to which the operation's category counts.
double& Clock::computing(RankTimes& times, Operation operation) {
  const Category category = program::category(operation);
  if (category == Category::compute_dense) return times.dense;
  if (category == Category::optimizer) return times.optimizer;
  return times.other;
}

void Clock::attend(std::size_t i) {
  RankState& runner = runners_[i];
  const Attention& work = work_.attention(runner.instruction(), runner.in_pool);
  const double seconds = runner.compute = taken(runner, work.seconds);
  count_attention(runner, seconds);
  runner.times.flops += work.flops;
  runner.times.attention_flops += work.flops;
  emit(runner, Activity::compute, runner.now, runner.now + seconds, 0, work.flops);
  run_for(i, work.seconds);
}

void Clock::count_attention(RankState& runner, double seconds) {
  runner.times.attention += seconds;
  if (runner.attention.empty()) return;
  const Instruction& instruction = runner.instruction();
  runner.attention[step_shape_.number_of(
      {instruction.tick, instruction.layer, program::phase_of(instruction)}, runner.rank())] +=
      seconds;
}

void Clock::estimate(std::size_t i) {
  RankState& runner = runners_[i];
  const double machine = work_.estimate(runner.instruction(), runner.in_pool);
  const double seconds = runner.compute = taken(runner, machine);
  count_attention(runner, seconds);
  emit(runner, Activity::compute, runner.now, runner.now + seconds);
  run_for(i, machine);
}

void Clock::emit(const RankState& runner, Activity what, double begin, double end,
                 std::int64_t bytes, double flops, std::uint32_t flow) const {
  if (!observer_) return;
  Span span;
  span.rank = runner.rank();
  span.instruction = runner.ended() ? nullptr : &runner.instruction();
  span.what = what;
  span.begin = begin;
  span.end = end;
  span.bytes = bytes;
  span.flops = flops;
  span.flow = flow;
  const bool copies = what == Activity::pack || what == Activity::unpack;
  if (copies || what == Activity::compute) {
    span.still = variation_.still(runner.rank(), runner.next, runner.instruction(),
                                  copies ? end - begin : runner.compute);
  }
  observer_(span);
}

Result Clock::result() const {
  Result result;
  result.operations = operations_;
  result.ranks.resize(runner_of_.size());
  double computing = 0;
  for (std::size_t rank = 0; rank < runner_of_.size(); ++rank) {
    const std::size_t tensor = one_for_all_ ? rank % static_cast<std::size_t>(layout_.tensor()) : 0;
    const int runner = runner_of_[rank - tensor];
    if (runner < 0) continue;
    const RankTimes& times = runners_[at(runner)].times;
    result.ranks[rank] = times;
    result.seconds = std::max(result.seconds, times.end);
    computing += times.attention + times.dense + times.other + times.optimizer;
  }
  for (RankTimes& times : result.ranks) times.data_parallel_wait += result.seconds - times.end;
  std::vector<double> slowest(step_shape_.layer_passes());
  for (const RankState& runner : runners_) {
    for (std::size_t pass = 0; pass < runner.attention.size(); ++pass) {
      slowest[pass] = std::max(slowest[pass], runner.attention[pass]);
    }
  }
  result.slowest_attention = std::accumulate(slowest.begin(), slowest.end(), 0.0);
  result.lower_bound_seconds = computing / static_cast<double>(runner_of_.size());
  return result;
}

std::vector<std::string> Clock::faults() const {
  std::vector<std::string> lines;
  for (const RankState& runner : runners_) {
    if (runner.ended()) continue;
    lines.push_back(fmt::format("rank {} never gets past operation {}: {}", runner.rank(),
                                runner.next, to_string(runner.instruction())));
  }
  if (!lines.empty()) return lines;  // stuck ranks have also posted messages in vain
  for (const auto& [key, stage] : stages_) {
    for (std::size_t i = 0; i < stage.messages(); ++i) {
      const Message& message = stage.message(i);
      if (message.sender_posted == message.receiver_posted) continue;
      const program::PlannedMessage& planned = stage.planned(i);
      const Rank from = layout_.world_rank(key.pool, planned.from);
      const Rank to = layout_.world_rank(key.pool, planned.to);
      lines.push_back(
          fmt::format("rank {}: rank {} never {} what it posts: tick {} layer {} {} stage {}{}",
                      message.sender_posted ? from : to, message.sender_posted ? to : from,
                      message.sender_posted ? "receives" : "sends", key.tick, key.layer,
                      key.pass == Pass::forward ? "forward" : "backward", key.stage,
                      key.index         ? " of the index"
                      : planned.results ? " results"
                                        : ""));
    }
  }
  return lines;
}

}  // namespace cadenza::simulate
