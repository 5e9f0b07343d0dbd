// SPDX-License-Identifier: Apache-2.0
// Attention's messages and the residual streams between pipeline stages.
#include <algorithm>

#include "cadenza/base/at.hpp"
#include "cadenza/base/hash.hpp"
#include "simulate/clock.hpp"

namespace cadenza::simulate {
namespace {

using program::Operation;

template <typename T>
std::uint64_t number(T value) {
  return static_cast<std::uint64_t>(value);
}

bool of_results(const program::Instruction& instruction) {
  return instruction.operation == Operation::post_results ||
         instruction.operation == Operation::wait_results;
}

bool of_index(const program::Instruction& instruction) {
  return instruction.operation == Operation::post_index ||
         instruction.operation == Operation::wait_index;
}

}  // namespace

StageMessages& Clock::stage_of(const RankState& runner) {
  const Instruction& instruction = runner.instruction();
  const StageKey key{runner.pool,           instruction.tick,     instruction.plan,
                     instruction.layer,     instruction.stage,    instruction.pass,
                     instruction.recompute, of_index(instruction)};
  const auto found = stages_.find(key);
  if (found != stages_.end()) return found->second;
  const program::Traffic& traffic =
      key.index ? work_.index_traffic(instruction) : work_.traffic(instruction);
  return stages_.try_emplace(key, traffic, key).first->second;
}

/// Appends the message ends of the rank's operation to `ends`.
void Clock::add_ends(std::size_t i, bool sent, bool received, std::vector<End>& ends) {
  const RankState& runner = runners_[i];
  const Instruction* instruction = &runner.instruction();
  StageMessages& stage = stage_of(runner);
  const program::Part part = stage.of(runner.in_pool);
  const auto add = [&](std::size_t number, bool sender) {
    if (stage.planned(number).results != of_results(*instruction)) return;
    ends.push_back({&stage, number, sender, instruction});
  };
  if (sent) {
    for (std::int64_t n = part.sends.begin; n < part.sends.end; ++n) {
      add(static_cast<std::size_t>(n), true);
    }
  }
  if (received) {
    for (const std::uint32_t number : part.receives) add(number, false);
  }
}

Clock::Copies Clock::copies_of(const std::vector<End>& ends, bool sent) const {
  Copies copies;
  for (const End& end : ends) {
    if (end.sender != sent) continue;
    const program::PlannedMessage& planned = end.stage->planned(end.message);
    // Inputs leave from home and results arrive there; elsewhere rows hold only the message's
    // heads.
    const bool slices = planned.slices && sent != planned.results;
    const cost::Copied what = slices ? cost::Copied::slices : cost::Copied::rows;
    const std::int64_t bytes = costs_.software().copies_rows ? planned.bytes
                               : sent                        ? planned.copied_out
                                                             : planned.copied_in;
    copies.sent += planned.bytes;
    copies.bytes += bytes;
    copies.seconds += sent ? costs_.pack(bytes, what) : costs_.unpack(bytes, what);
  }
  return copies;
}

/// Posts receives and sends together, as a group, when the rows to send are packed.
void Clock::post(std::size_t i) {
  RankState& runner = runners_[i];
  std::vector<End>& ends = runner.awaited;
  ends.clear();
  add_ends(i, true, true, ends);
  if (std::ranges::none_of(ends, &End::sender)) {
    for (const End& end : ends) post_end(end, runner.now);
    return next_operation(i);
  }
  const Copies copies = copies_of(ends, true);
  const double seconds = taken(runner, copies.seconds);
  runner.times.copies += seconds;
  runner.times.bytes_sent += copies.sent;
  emit(runner, Activity::pack, runner.now, runner.now + seconds, copies.bytes);
  run_for(i, copies.seconds);
}

void Clock::post_sends(std::size_t i) {
  RankState& runner = runners_[i];
  bool receives = false;
  for (const End& end : runner.awaited) {
    post_end(end, runner.now);
    receives = receives || !end.sender;
  }
  if (!receives) {  // no work of this rank waits for these sends
    std::vector<End>& sent = runner.sent[runner.instruction().half];
    sent.insert(sent.end(), runner.awaited.begin(), runner.awaited.end());
  }
  runner.awaited.clear();
}

void Clock::post_end(const End& end, double now) {
  Message& message = end.stage->message(end.message);
  (end.sender ? message.sender_posted : message.receiver_posted) = true;
  if (!message.under_way()) return;
  const program::PlannedMessage& planned = end.stage->planned(end.message);
  const Rank from = layout_.world_rank(end.stage->key().pool, planned.from);
  const Rank to = layout_.world_rank(end.stage->key().pool, planned.to);
  message.ready = now;
  message.there = network_.transfer(from, to, planned.bytes, now);
  ++operations_;
  if (message.sender_waits) tell(from, message.there);
  if (message.receiver_waits) tell(to, message.there);
}

/// Tells a rank that a message it waits for is under way, with its arrival time.
void Clock::tell(Rank rank, double there) {
  const auto i = static_cast<std::size_t>(runner_of_[at(rank)]);
  RankState& runner = runners_[i];
  runner.latest = std::max(runner.latest, there);
  if (--runner.missing == 0) wake(i, runner.latest);
}

/// Waits for the ends in `awaited`.
void Clock::wait_for(std::size_t i, State state) {
  RankState& runner = runners_[i];
  runner.state = state;
  runner.missing = 0;
  runner.latest = runner.now;
  for (const End& end : runner.awaited) {
    Message& message = end.stage->message(end.message);
    if (message.under_way()) {
      runner.latest = std::max(runner.latest, message.there);
    } else {
      (end.sender ? message.sender_waits : message.receiver_waits) = true;
      ++runner.missing;
    }
  }
  if (runner.missing == 0) wake(i, runner.latest);
}

/// Whether the rank must first wait for its sends; it then continues with its next operation.
bool Clock::drains(std::size_t i, std::vector<End>& sent) {
  if (sent.empty()) return false;
  runners_[i].awaited = std::move(sent);
  sent.clear();
  wait_for(i, State::draining);
  return true;
}

void Clock::start_wait(std::size_t i) {
  RankState& runner = runners_[i];
  runner.awaited.clear();
  add_ends(i, false, true, runner.awaited);
  // Operations that only send are awaited later: see post_sends.
  if (!runner.awaited.empty()) add_ends(i, true, false, runner.awaited);
  wait_for(i, State::waiting);
}

/// Adds the wait that ends now.
/// @param ready   when the last awaited message got under way
/// @param reason  cause of the time until then
void Clock::count_wait(RankState& runner, double ready, double RankTimes::*reason) const {
  const double opens = std::clamp(ready, runner.began, runner.now);
  runner.times.waiting += runner.now - runner.began;
  runner.times.*reason += opens - runner.began;
  runner.times.communication += runner.now - opens;
}

/// Whether the pipeline fills or drains on the rank, even if it serves attention meanwhile.
bool Clock::has_no_microbatch(const RankState& runner) const {
  return layout_.pipeline() > 1 && layout_.trains(runner.rank()) &&
         runner.instruction().microbatch < 0;
}

void Clock::end_wait(std::size_t i) {
  RankState& runner = runners_[i];
  double ready = runner.began;
  for (const End& end : runner.awaited) {
    if (!end.sender) ready = std::max(ready, end.stage->message(end.message).ready);
  }
  count_wait(runner, ready,
             has_no_microbatch(runner) ? &RankTimes::pipeline_bubble : &RankTimes::attention_wait);
  emit(runner, Activity::wait, runner.began, runner.now);
  const Copies copies = copies_of(runner.awaited, false);
  close_awaited(i);
  const double seconds = taken(runner, copies.seconds);
  runner.times.copies += seconds;
  emit(runner, Activity::unpack, runner.now, runner.now + seconds, copies.bytes);
  run_for(i, copies.seconds);
}

void Clock::close_awaited(std::size_t i) {
  RankState& runner = runners_[i];
  for (const End& end : runner.awaited) emit_message(runner, end);
  for (const End& end : runner.awaited) {
    if (end.stage->close_end()) stages_.erase(StageKey(end.stage->key()));
  }
  runner.awaited.clear();
}

void Clock::emit_message(const RankState& runner, const End& end) const {
  if (!observer_) return;
  const program::PlannedMessage& planned = end.stage->planned(end.message);
  const Message& message = end.stage->message(end.message);
  const Instruction& instruction = *end.instruction;
  Span span;
  span.rank = runner.rank();
  span.instruction = end.instruction;
  span.what = end.sender ? Activity::message_out : Activity::message_in;
  span.begin = message.ready;
  span.end = message.there;
  span.bytes = planned.bytes;
  span.peer = layout_.world_rank(end.stage->key().pool, end.sender ? planned.to : planned.from);
  span.flow = static_cast<std::uint32_t>(Hasher()
                                             .add(number(planned.from))
                                             .add(number(planned.to))
                                             .add(number(end.stage->key().pool))
                                             .add(number(instruction.plan))
                                             .add(number(instruction.layer))
                                             .add(number(instruction.stage))
                                             .add(number(instruction.pass))
                                             .add(number(instruction.recompute))
                                             .add(number(planned.results))
                                             .add(number(end.stage->key().index))
                                             .value()) |
              1u;
  observer_(span);
}

std::int64_t Clock::stream_bytes(const RankState& runner) const {
  return dense_.shapes().stream_bytes(work_.all_rows(runner.instruction(), runner.in_pool));
}

void Clock::start_receive(std::size_t i) {
  RankState& runner = runners_[i];
  const Instruction& instruction = runner.instruction();
  runner.state = State::receiving;
  runner.sent_at = runner.now;
  Stream& stream = streams_[{instruction.peer, runner.rank(), instruction.pass}];
  if (stream.sent == stream.received) {
    stream.awaited = true;
    return;
  }
  wake(i, network_.transfer(instruction.peer, runner.rank(), stream_bytes(runner), runner.now));
}

void Clock::send(std::size_t i) {
  const RankState& runner = runners_[i];
  const Instruction& instruction = runner.instruction();
  const std::int64_t bytes = stream_bytes(runner);
  runners_[i].times.copies += runner.now - runner.began;
  emit(runner, Activity::pack, runner.began, runner.now, bytes);
  runners_[i].times.bytes_sent += bytes;
  Stream& stream = streams_[{runner.rank(), instruction.peer, instruction.pass}];
  emit(runner, Activity::message_out, runner.now, runner.now, bytes, 0,
       stream_flow(runner.rank(), instruction.peer, instruction.pass, stream.sent++));
  if (!stream.awaited) return;
  stream.awaited = false;
  const auto receiver = static_cast<std::size_t>(runner_of_[at(instruction.peer)]);
  runners_[receiver].sent_at = runner.now;
  wake(receiver, network_.transfer(runner.rank(), instruction.peer, bytes, runner.now));
}

/// @param number  number of the message in its pair and pass
std::uint32_t Clock::stream_flow(Rank from, Rank to, program::Pass pass, std::size_t number) {
  return static_cast<std::uint32_t>(Hasher()
                                        .add(simulate::number(from))
                                        .add(simulate::number(to))
                                        .add(simulate::number(pass))
                                        .add(number)
                                        .value()) |
         1u;
}

void Clock::end_receive(std::size_t i) {
  RankState& runner = runners_[i];
  const Instruction& instruction = runner.instruction();
  Stream& stream = streams_[{instruction.peer, runner.rank(), instruction.pass}];
  const std::int64_t bytes = stream_bytes(runner);
  count_wait(runner, runner.sent_at, &RankTimes::pipeline_bubble);
  emit(runner, Activity::wait, runner.began, runner.now);
  emit(runner, Activity::message_in, runner.began, runner.now, bytes, 0,
       stream_flow(instruction.peer, runner.rank(), instruction.pass, stream.received++));
  const double seconds = costs_.unpack(bytes, cost::Copied::streams);
  const double unpacking = taken(runner, seconds);
  runner.times.copies += unpacking;
  emit(runner, Activity::unpack, runner.now, runner.now + unpacking, bytes);
  run_for(i, seconds);
}

}  // namespace cadenza::simulate
