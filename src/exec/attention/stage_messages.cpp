// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/stage_messages.hpp"

#include <algorithm>

#include "cadenza/base/at.hpp"
#include "cadenza/base/hash.hpp"

namespace cadenza::exec {

using program::OtherEvent;

namespace {

/// Calls each(peer, bytes) for every message of a list of parts.
template <typename Part, typename Each>
void for_each_message(const std::vector<Part>& parts, int Part::*peer, const Each& each) {
  for (std::size_t first = 0; first < parts.size();) {
    const int of = parts[first].*peer;
    std::int64_t bytes = 0;
    for (; first < parts.size() && parts[first].*peer == of; ++first) {
      bytes += std::ssize(parts[first].data);
    }
    each(of, bytes);
  }
}

}  // namespace

void StageMessages::post(const StageCall& call, std::span<const comm::Receive> receives,
                         std::span<const comm::Send> sends) {
  const auto channel = static_cast<std::size_t>(call.channel);
  if (posted_.size() <= channel) posted_.resize(channel + 1);
  Posted& posted = posted_[channel];
  posted.receives.assign(receives.begin(), receives.end());
  posted.sends.assign(sends.begin(), sends.end());
  posted.since_ns = trace::now_ns();
  call.over.post(receives, sends, call.channel);
  if (sends.empty() || !receives.empty()) return;
  // No wait follows.
  sending_.push_back({&call.over, call.channel});
  record_sends(call, posted);
}

void StageMessages::record_sends(const StageCall& call, const Posted& posted) {
  for_each_message(posted.sends, &comm::Send::to, [&](int peer, std::int64_t bytes) {
    record(call, peer, bytes, true, posted.since_ns);
  });
}

std::span<const comm::Receive> StageMessages::wait(const StageCall& call) {
  const Posted& posted = posted_[at(call.channel)];
  tracer_.time(*program::describe(call.operation).wait, {}, [&] { call.over.wait(call.channel); });
  record_sends(call, posted);
  for_each_message(posted.receives, &comm::Receive::from, [&](int peer, std::int64_t bytes) {
    record(call, peer, bytes, false, posted.since_ns);
  });
  return posted.receives;
}

/// Records a message. Both ends hash the same numbers, so the trace can join them without an
/// exchange. `recompute` distinguishes the repeated forward pass from the first one, whose other
/// numbers are the same.
void StageMessages::record(const StageCall& call, int peer, std::int64_t bytes, bool sends,
                           std::int64_t since_ns) {
  const Rank other = members_[at(peer)];
  const Rank self = members_[at(call.over.rank())];
  const std::uint32_t flow = tracer_.flow(Hasher()
                                              .add(static_cast<std::uint64_t>(sends ? self : other))
                                              .add(static_cast<std::uint64_t>(sends ? other : self))
                                              .add(static_cast<std::uint64_t>(call.plan))
                                              .add(static_cast<std::uint64_t>(call.layer))
                                              .add(static_cast<std::uint64_t>(call.recompute))
                                              .add(static_cast<std::uint64_t>(call.tag)));
  tracer_.message(*program::describe(call.operation).message, since_ns, trace::now_ns(),
                  {bytes, 0, other, flow, sends});
}

void StageMessages::finish_channel(const StageCall& call) {
  const bool is_open =
      std::ranges::find(sending_, Open{&call.over, call.channel}) != sending_.end();
  if (is_open) finish();
}

void StageMessages::finish() {
  if (sending_.empty()) return;
  tracer_.time(OtherEvent::wait_for_sends, {}, [&] {
    for (const Open& each : sending_) each.over->wait(each.channel);
  });
  sending_.clear();
}

}  // namespace cadenza::exec
