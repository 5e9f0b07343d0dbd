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

bool of_results(const program::Step& step) {
  return step.operation == Operation::post_results || step.operation == Operation::wait_results;
}

bool of_index(const program::Step& step) {
  return step.operation == Operation::post_index || step.operation == Operation::wait_index;
}

}  // namespace

StageMessages& Clock::exchange_of(const RankState& runner) {
  const Step& step = runner.step();
  const StageKey key{runner.pool, step.tick, step.plan,      step.layer,
                     step.stage,  step.pass, step.recompute, of_index(step)};
  const auto found = exchanges_.find(key);
  if (found != exchanges_.end()) return found->second;
  const program::Traffic& traffic = key.index ? work_.index_traffic(step) : work_.traffic(step);
  return exchanges_.try_emplace(key, traffic, key).first->second;
}

/// Appends the message ends of the rank's operation to `ends`.
void Clock::add_ends(std::size_t i, bool sent, bool received, std::vector<End>& ends) {
  const RankState& runner = runners_[i];
  const Step* step = &runner.step();
  StageMessages& exchange = exchange_of(runner);
  const program::Part part = exchange.of(runner.in_pool);
  const auto add = [&](std::size_t number, bool sender) {
    if (exchange.flow(number).results != of_results(*step)) return;
    ends.push_back({&exchange, number, sender, step});
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
    const program::Flow& flow = end.exchange->flow(end.message);
    // Inputs leave from home and results arrive there; elsewhere rows hold only the message's
    // heads.
    const bool slices = flow.slices && sent != flow.results;
    copies.bytes += flow.bytes;
    copies.seconds += sent ? costs_.pack(flow.bytes, slices) : costs_.unpack(flow.bytes, slices);
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
  runner.times.bytes_sent += copies.bytes;
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
    std::vector<End>& sent = runner.sent[runner.step().half];
    sent.insert(sent.end(), runner.awaited.begin(), runner.awaited.end());
  }
  runner.awaited.clear();
}

void Clock::post_end(const End& end, double now) {
  Message& message = end.exchange->message(end.message);
  (end.sender ? message.sender_posted : message.receiver_posted) = true;
  if (!message.under_way()) return;
  const program::Flow& flow = end.exchange->flow(end.message);
  const Rank from = layout_.world_rank(end.exchange->key().pool, flow.from);
  const Rank to = layout_.world_rank(end.exchange->key().pool, flow.to);
  message.ready = now;
  message.there = network_.transfer(from, to, flow.bytes, now);
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
    Message& message = end.exchange->message(end.message);
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
  return layout_.pipeline() > 1 && layout_.trains(runner.rank()) && runner.step().microbatch < 0;
}

void Clock::end_wait(std::size_t i) {
  RankState& runner = runners_[i];
  double ready = runner.began;
  for (const End& end : runner.awaited) {
    if (!end.sender) ready = std::max(ready, end.exchange->message(end.message).ready);
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
    if (end.exchange->close_end()) exchanges_.erase(StageKey(end.exchange->key()));
  }
  runner.awaited.clear();
}

void Clock::emit_message(const RankState& runner, const End& end) const {
  if (!observer_) return;
  const program::Flow& flow = end.exchange->flow(end.message);
  const Message& message = end.exchange->message(end.message);
  const Step& step = *end.step;
  Span span;
  span.rank = runner.rank();
  span.step = end.step;
  span.what = end.sender ? Activity::message_out : Activity::message_in;
  span.begin = message.ready;
  span.end = message.there;
  span.bytes = flow.bytes;
  span.peer = layout_.world_rank(end.exchange->key().pool, end.sender ? flow.to : flow.from);
  span.flow = static_cast<std::uint32_t>(Hasher()
                                             .add(number(flow.from))
                                             .add(number(flow.to))
                                             .add(number(end.exchange->key().pool))
                                             .add(number(step.plan))
                                             .add(number(step.layer))
                                             .add(number(step.stage))
                                             .add(number(step.pass))
                                             .add(number(step.recompute))
                                             .add(number(flow.results))
                                             .add(number(end.exchange->key().index))
                                             .value()) |
              1u;
  observer_(span);
}

std::int64_t Clock::stream_bytes(const RankState& runner) const {
  return dense_.shapes().stream_bytes(work_.all_rows(runner.step(), runner.in_pool));
}

void Clock::start_receive(std::size_t i) {
  RankState& runner = runners_[i];
  const Step& step = runner.step();
  runner.state = State::receiving;
  runner.sent_at = runner.now;
  Stream& stream = streams_[{step.peer, runner.rank(), step.pass}];
  if (stream.sent == stream.received) {
    stream.awaited = true;
    return;
  }
  wake(i, network_.transfer(step.peer, runner.rank(), stream_bytes(runner), runner.now));
}

void Clock::send(std::size_t i) {
  const RankState& runner = runners_[i];
  const Step& step = runner.step();
  const std::int64_t bytes = stream_bytes(runner);
  runners_[i].times.copies += runner.now - runner.began;
  emit(runner, Activity::pack, runner.began, runner.now, bytes);
  runners_[i].times.bytes_sent += bytes;
  Stream& stream = streams_[{runner.rank(), step.peer, step.pass}];
  emit(runner, Activity::message_out, runner.now, runner.now, bytes, 0,
       stream_flow(runner.rank(), step.peer, step.pass, stream.sent++));
  if (!stream.awaited) return;
  stream.awaited = false;
  const auto receiver = static_cast<std::size_t>(runner_of_[at(step.peer)]);
  runners_[receiver].sent_at = runner.now;
  wake(receiver, network_.transfer(runner.rank(), step.peer, bytes, runner.now));
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
  const Step& step = runner.step();
  Stream& stream = streams_[{step.peer, runner.rank(), step.pass}];
  const std::int64_t bytes = stream_bytes(runner);
  count_wait(runner, runner.sent_at, &RankTimes::pipeline_bubble);
  emit(runner, Activity::wait, runner.began, runner.now);
  emit(runner, Activity::message_in, runner.began, runner.now, bytes, 0,
       stream_flow(step.peer, runner.rank(), step.pass, stream.received++));
  const double seconds = costs_.unpack(bytes);
  const double unpacking = taken(runner, seconds);
  runner.times.copies += unpacking;
  emit(runner, Activity::unpack, runner.now, runner.now + unpacking, bytes);
  run_for(i, seconds);
}

}  // namespace cadenza::simulate
