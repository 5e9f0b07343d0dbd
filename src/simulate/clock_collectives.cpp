// SPDX-License-Identifier: Apache-2.0
// Collective parts of a step: dense operations of a tensor group, parameters, sums of gradients,
// the update.
#include <algorithm>
#include <limits>

#include "cadenza/base/hash.hpp"
#include "simulate/clock.hpp"

namespace cadenza::simulate {

using program::Group;
using program::Operation;

void Clock::run_dense(std::size_t i) {
  RankState& runner = runners_[i];
  const Instruction& instruction = runner.instruction();
  const bool in_tick = instruction.tick >= 0;
  const std::int64_t rows = !in_tick ? 0
                            : instruction.operation == Operation::load
                                ? work_.all_rows(instruction, runner.in_pool)
                                : work_.rows(instruction, runner.in_pool);
  if (rows == 0 && program::is_of_rows(instruction.operation)) return next_operation(i);
  const DenseTime& time = dense_.time(instruction, runner.rank(), rows);
  runner.compute = taken(runner, time.compute);
  runner.times.machine += time.compute;
  const double collectives = time.collective_seconds();
  const bool together = collectives > 0 && !one_for_all_;
  if (together || instruction.operation == Operation::gradient_norm) return meet(i);
  const double arrived = runner.now + runner.compute;
  const double end = arrived + collectives;
  computing(runner.times, instruction.operation) += runner.compute;
  runner.times.collectives += collectives;
  runner.times.communication += collectives;
  runner.times.flops += time.flops;
  emit_tensor(runner, time, arrived, arrived);
  emit(runner, Activity::compute, runner.now, end, 0, time.flops);
  runner.state = State::running;
  wake(i, end);
}

int Clock::replicas_of(Rank rank) const {
  const program::Coordinates at = layout_.coordinates(rank);
  return at.pipeline * layout_.tensor() + at.tensor;
}

/// Returns the group that a rank meets in its operation.
Clock::MeetingKey Clock::meeting_of(const RankState& runner) const {
  const Group group = program::describe(runner.instruction().operation).group;
  switch (group) {
    case Group::trainers:
      return {group, 0};
    case Group::replicas:
      return {group, replicas_of(runner.rank())};
    case Group::tensor:
    case Group::none:
      break;
  }
  return tensor_group_of(runner);
}

Clock::MeetingKey Clock::tensor_group_of(const RankState& runner) const {
  return {Group::tensor, runner.rank() / layout_.tensor()};
}

std::size_t Clock::expected(const RankState& runner) const {
  switch (program::describe(runner.instruction().operation).group) {
    case Group::trainers:
      return static_cast<std::size_t>(layout_.trainers() / (one_for_all_ ? layout_.tensor() : 1));
    case Group::replicas:
      return static_cast<std::size_t>(layout_.data() * layout_.context());
    case Group::tensor:
      return static_cast<std::size_t>(layout_.tensor());
    case Group::none:
      break;
  }
  return 1;
}

/// Waits for the other ranks of the group after its own computation.
void Clock::meet(std::size_t i) {
  RankState& runner = runners_[i];
  runner.state = State::meeting;
  const auto key = meeting_of(runner);
  Rendezvous& meeting = meetings_[key];
  meeting.runners.push_back(i);
  const double arrived = runner.now + runner.compute;
  meeting.latest = std::max(meeting.latest, arrived);
  if (ends_pipelines(runner)) {
    double& latest = meeting.latest_of_data[layout_.coordinates(runner.rank()).data];
    latest = std::max(latest, arrived);
  }
  if (meeting.runners.size() < expected(runner)) return;
  const Rendezvous done = std::move(meeting);
  meetings_.erase(key);
  const double end = end_of_meeting(done);
  for (const std::size_t other : done.runners) leave(other, done, end);
}

/// Returns the end of the collective.
double Clock::end_of_meeting(const Rendezvous& meeting) {
  const RankState& runner = runners_[meeting.runners.front()];
  const Instruction& instruction = runner.instruction();
  switch (program::describe(instruction.operation).group) {
    case Group::trainers:  // sums a single number: no time
      return meeting.latest;
    case Group::replicas:
      if (instruction.operation == Operation::reduce_gradients) return finish_sums(meeting);
      return meeting.latest + dense_.gather_parameters(runner.rank());
    case Group::tensor:
    case Group::none:
      break;
  }
  return meeting.latest +
         dense_.time(instruction, runner.rank(), work_.rows(instruction, runner.in_pool))
             .collective_seconds();
}

/// @param bucket  number of the gradient sum, or of the collective in its tensor group; -1: the
/// meeting itself
std::uint32_t Clock::collective_flow(const MeetingKey& meeting, Operation operation, int bucket) {
  const auto [group, number] = meeting;
  return static_cast<std::uint32_t>(Hasher()
                                        .add(static_cast<std::uint64_t>(group))
                                        .add(static_cast<std::uint64_t>(number))
                                        .add(static_cast<std::uint64_t>(operation))
                                        .add(static_cast<std::uint64_t>(bucket))
                                        .value()) |
         1u;
}

/// Whether the rank's operation is the one where all stages end their backward passes.
bool Clock::ends_pipelines(const RankState& runner) const {
  return layout_.pipeline() > 1 && runner.instruction().operation == Operation::gradient_norm;
}

/// Adds the wait for the other ranks. A stage first waits for the last one of its own pipeline:
/// that part is a bubble.
void Clock::wait_in(RankState& runner, const Rendezvous& meeting, double arrived) const {
  RankTimes& times = runner.times;
  if (runner.instruction().tick >= 0) {
    times.tensor_parallel_wait += meeting.latest - arrived;
    return;
  }
  const double own = ends_pipelines(runner)
                         ? meeting.latest_of_data.at(layout_.coordinates(runner.rank()).data)
                         : arrived;
  times.pipeline_bubble += own - arrived;
  times.data_parallel_wait += meeting.latest - own;
}

void Clock::leave(std::size_t i, const Rendezvous& meeting, double end) {
  RankState& runner = runners_[i];
  const Instruction& instruction = runner.instruction();
  RankTimes& times = runner.times;
  const double opens = meeting.latest;
  const double arrived = runner.began + runner.compute;
  wait_in(runner, meeting, arrived);
  times.collectives += end - arrived;
  times.communication += end - opens;
  if (instruction.tick >= 0) {  // a dense operation of the tensor group
    computing(times, instruction.operation) += runner.compute;
    const DenseTime& time =
        dense_.time(instruction, runner.rank(), work_.rows(instruction, runner.in_pool));
    times.flops += time.flops;
    emit_tensor(runner, time, arrived, opens);
    emit(runner, Activity::compute, runner.began, end, 0, time.flops);
  } else {
    if (instruction.operation == Operation::gradient_norm) {
      computing(times, instruction.operation) += runner.compute;
      emit(runner, Activity::compute, runner.began, arrived);
    } else {
      times.collectives += runner.compute;
      times.communication += runner.compute;
      emit_tensor(runner, dense_.time(instruction, runner.rank(), 0), runner.began, runner.began);
    }
    emit(runner, Activity::wait_ranks, arrived, opens);
    emit(runner, Activity::collective, opens, end, 0, 0,
         collective_flow(meeting_of(runner), instruction.operation, -1));
  }
  wake(i, end);
}

/// Emits the collectives of an operation one after another: the model runs them between its
/// products, the clock behind all of them.
/// @param arrived  end of the rank's computation
/// @param opens    end of the last rank's computation
void Clock::emit_tensor(RankState& runner, const DenseTime& time, double arrived,
                        double opens) const {
  if (!observer_) return;
  const Operation operation = runner.instruction().operation;
  for (const TimedCollective& timed : time.collectives) {
    opens += timed.seconds;
    Span span;
    span.rank = runner.rank();
    span.instruction = &runner.instruction();
    span.what = Activity::tensor;
    span.collective = timed.collective.what;
    span.begin = arrived;
    span.end = opens;
    span.bytes = timed.collective.bytes;
    span.flow = collective_flow(tensor_group_of(runner), operation, runner.tensor_collectives++);
    observer_(span);
    arrived = opens;
  }
}

/// Runs a collective whose last rank has posted it. @return its end
double Clock::Replicas::run(double ready, double seconds) {
  return free = std::max(ready, free) + seconds;
}

void Clock::post_sum(std::size_t i) {
  const RankState& runner = runners_[i];
  const Instruction& instruction = runner.instruction();
  Replicas& replicas = replicas_[replicas_of(runner.rank())];
  Replicas::Sum& sum = replicas.sums[{instruction.tick, instruction.layer}];
  if (++sum.posted == expected(runner)) {
    const double seconds = dense_.gradient_sum(runner.rank(), instruction.layer).seconds;
    sum.end = replicas.run(runner.now, seconds);
    sum.begin = sum.end - seconds;
  }
  next_operation(i);
}

void Clock::post_gather(std::size_t i) {
  RankState& runner = runners_[i];
  Replicas& replicas = replicas_[replicas_of(runner.rank())];
  Replicas::Gather& gather = replicas.gathers[runner.gathers.size()];
  runner.gathers.push_back(runner.now);
  if (++gather.posted == expected(runner)) {
    gather.ready = runner.now;
    gather.end = replicas.run(
        runner.now, dense_.gather_layer(runner.rank(), runner.instruction().layer).seconds);
    for (const std::size_t waiting : gather.waiting) leave_gather(waiting, gather);
  }
  next_operation(i);
}

void Clock::wait_for_gather(std::size_t i) {
  RankState& runner = runners_[i];
  runner.state = State::meeting;
  auto& gathers = replicas_[replicas_of(runner.rank())].gathers;
  const std::size_t number = runner.gathered;
  Replicas::Gather& gather = gathers[number];
  if (gather.posted < expected(runner)) return gather.waiting.push_back(i);
  leave_gather(i, gather);
  if (gather.left == expected(runner)) gathers.erase(number);
}

/// Ends a rank's wait: until the last rank has posted for that rank, from then on for the data.
void Clock::leave_gather(std::size_t i, Replicas::Gather& gather) {
  RankState& runner = runners_[i];
  const double posted = runner.gathers[runner.gathered++];
  ++gather.left;
  const Instruction& instruction = runner.instruction();
  const double end = std::max(runner.began, gather.end);
  const double ready = std::clamp(gather.ready, runner.began, end);
  runner.times.data_parallel_wait += ready - runner.began;
  runner.times.collectives += end - runner.began;
  runner.times.communication += end - ready;
  if (expected(runner) > 1) {
    emit(runner, Activity::gather, posted, gather.end,
         dense_.gather_layer(runner.rank(), instruction.layer).bytes, 0,
         collective_flow(meeting_of(runner), Operation::gather_layer, instruction.layer));
  }
  emit(runner, Activity::wait_layer, runner.began, end);
  wake(i, end);
}

/// Sums the gradients outside layers after those of the layers. @return the end
double Clock::finish_sums(const Rendezvous& meeting) {
  const Rank rank = runners_[meeting.runners.front()].rank();
  Replicas& replicas = replicas_[replicas_of(rank)];
  const Dense::Moved rest = dense_.gradient_sum(rank, -1);
  const double end = replicas.run(meeting.latest, rest.seconds);
  const auto show = [&](int layer, double from, double until, std::int64_t bytes) {
    if (!observer_ || meeting.runners.size() == 1) return;
    for (const std::size_t i : meeting.runners) {
      const RankState& runner = runners_[i];
      emit(runner, Activity::reduce, from, until, bytes, 0,
           collective_flow(meeting_of(runner), Operation::reduce_gradients, layer));
    }
  };
  constexpr int kRest = std::numeric_limits<int>::max();
  for (const auto& [place, sum] : replicas.sums) {
    show(place.second, sum.begin, sum.end, dense_.gradient_sum(rank, place.second).bytes);
  }
  show(kRest, end - rest.seconds, end, rest.bytes);
  replicas.sums.clear();
  return end;
}

}  // namespace cadenza::simulate
