// SPDX-License-Identifier: Apache-2.0
// Packs, posts, awaits and records the messages of attention: the rows of a stage and the rounds of
// a sparse index alike.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/exec/tracer.hpp"
#include "cadenza/program/operation.hpp"

namespace cadenza::exec {

/// One stage in one direction, as the ranks that exchange its messages agree on it.
struct StageCall {
  comm::MessagePassing& over;
  program::Operation operation;  ///< posts or waits; names the events
  int channel = 0;
  /// Names stage, direction, half and pass. It need not name tick and layer: both ends of a pair
  /// of ranks run the same ticks and layers in the same order, and messages of one tag between two
  /// ranks arrive in the order in which they were sent.
  int tag = 0;
  int plan = 0;  ///< as AttentionContext::plan
  int layer = 0;
  bool recompute = false;
};

/// Returns the call of a stage's messages of inputs or results in a context, whose plan, layer,
/// pass and recompute it takes.
/// @param half  half of the microbatch; where there is one, 0 for attention and 1 for its index,
///              which ping-pong excludes
template <typename Context>
StageCall stage_call(comm::MessagePassing& over, program::Operation operation, int stage,
                     bool results, int half, const Context& context) {
  const int channel = 4 * stage + (results ? 2 : 0) + half;
  return {.over = over,
          .operation = operation,
          .channel = channel,
          .tag = 4 * channel + (context.pass == Pass::backward ? 2 : 0),
          .plan = context.plan,
          .layer = context.layer,
          .recompute = context.recompute};
}

class StageMessages {
 public:
  /// @param members  world ranks of the group, which traces name
  StageMessages(std::vector<Rank> members, Tracer& tracer)
      : members_(std::move(members)), tracer_(tracer) {}

  /// Packs and posts messages, each of which may have several parts, one after another. Their
  /// memory is in use until complete() or, where this rank only sends, until finish().
  /// @param receives, sends  peers as ranks of the group
  /// @param copied  bytes that pack() copies
  template <typename Pack>
  void start(const StageCall& call, std::span<const comm::Receive> receives,
             std::span<const comm::Send> sends, std::int64_t copied, Pack&& pack) {
    const auto& info = program::describe(call.operation);
    if (!sends.empty()) tracer_.time(*info.pack, {copied}, pack);
    post(call, receives, sends);
    tracer_.count_sent(bytes_of(sends));
  }

  /// Waits for the messages started on the call's channel, and unpacks those received.
  /// @param copied  bytes that unpack() copies
  template <typename Unpack>
  void complete(const StageCall& call, std::int64_t copied, Unpack&& unpack) {
    const auto& info = program::describe(call.operation);
    const std::span<const comm::Receive> receives = wait(call);
    if (receives.empty()) return;
    tracer_.time(*info.unpack, {copied}, unpack);
    tracer_.count_received(bytes_of(receives));
  }

  /// Completes the channels on which this rank only sends. No operation waits for these, because
  /// nothing on this rank depends on them.
  void finish();
  /// Does so if the call's channel is one of them. Call it before reusing the memory of its
  /// messages.
  void finish_channel(const StageCall& call);

 private:
  /// Messages under way on a channel; the vectors are kept to reuse memory.
  struct Posted {
    std::vector<comm::Receive> receives;
    std::vector<comm::Send> sends;
    std::int64_t since_ns = 0;
  };
  struct Open {
    comm::MessagePassing* over = nullptr;
    int channel = 0;
    friend bool operator==(const Open&, const Open&) = default;
  };

  void record_sends(const StageCall& call, const Posted& posted);
  template <typename Messages>
  static std::int64_t bytes_of(const Messages& messages) {
    std::int64_t bytes = 0;
    for (const auto& each : messages) bytes += std::ssize(each.data);
    return bytes;
  }
  void post(const StageCall& call, std::span<const comm::Receive> receives,
            std::span<const comm::Send> sends);
  std::span<const comm::Receive> wait(const StageCall& call);
  void record(const StageCall& call, int peer, std::int64_t bytes, bool sends,
              std::int64_t since_ns);

  std::vector<Rank> members_;
  Tracer& tracer_;
  std::vector<Posted> posted_;  ///< by channel
  std::vector<Open> sending_;   ///< channels on which this rank only sends
};

}  // namespace cadenza::exec
