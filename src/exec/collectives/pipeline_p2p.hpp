// SPDX-License-Identifier: Apache-2.0
// Sends residual streams and their gradients between pipeline stages.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "cadenza/exec/device_communicator.hpp"
#include "cadenza/exec/tracer.hpp"
#include "cadenza/exec/workspace.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::exec {

/// Communicators of a pipeline. An edge leads from a stage to the next one, and from the last to
/// the first if the model is in chunks. Each edge has a two-rank communicator for each pass: with
/// NCCL, a message blocks the later ones of its communicator until it is received, so one for the
/// whole pipeline would hold up a stage by a neighbour from which it needs nothing yet.
class PipelineEdges {
 public:
  /// Collective.
  PipelineEdges(comm::Communicator& world, const program::StepShape& shape,
                config::Transport transport);

  /// Returns the communicator of a send or a receive; the other rank is number 1 - rank().
  DeviceCommunicator& of(const program::Instruction& instruction) const;

 private:
  struct Edge {
    std::unique_ptr<comm::Communicator> group;
    std::unique_ptr<DeviceCommunicator> devices;
  };
  struct Neighbours {
    Edge sends, receives;
  };
  std::array<Neighbours, 2> passes_;  ///< by program::Pass
};

// --- Messages over these edges ---

class PipelineP2p {
 public:
  PipelineP2p(const PipelineEdges& edges, const program::StreamBuffers& buffers, Rank rank,
              Tracer& tracer, MemoryLedger& ledger);

  /// Makes room for streams of at most `bytes`; none may be under way.
  void reserve(std::int64_t bytes);

  /// Sends `bytes` that fill(device pointer) writes. Waits for an earlier send only if all
  /// buffers are under way.
  template <typename Fill>
  void send(const program::Instruction& instruction, std::int64_t bytes, Fill fill) {
    Buffer& buffer = free_buffer(instruction);
    tracer_.time(program::OtherEvent::pack_stream, {bytes},
                 [&] { fill(buffer.messages.memory()); });
    start(instruction, buffer, bytes);
  }

  /// Starts the receive() of the same pass, microbatch and chunk.
  void post_receive(const program::Instruction& instruction, std::int64_t bytes);
  /// Waits for `bytes` and calls take(device pointer) to read them.
  template <typename Take>
  void receive(const program::Instruction& instruction, std::int64_t bytes, Take take) {
    Buffer& buffer = arrive(instruction, bytes);
    tracer_.time(program::OtherEvent::unpack_stream, {bytes},
                 [&] { take(static_cast<const std::byte*>(buffer.messages.memory())); });
  }

  /// Completes all sends.
  void finish();

 private:
  struct Buffer {
    MessageBuffer messages;
    int channel = 0;
    DeviceCommunicator* over = nullptr;  ///< communicator of the message in it; null: free
  };
  /// Buffers used in turn.
  struct Sends {
    std::vector<Buffer> buffers;
    std::size_t next = 0;
  };
  static int other_rank(const Buffer& buffer) { return 1 - buffer.over->rank(); }
  template <typename Action>
  void for_each_buffer(Action action);
  Buffer& free_buffer(const program::Instruction& instruction);
  void complete(Buffer& buffer);
  void finish(Buffer& buffer);
  void start(const program::Instruction& instruction, Buffer& buffer, std::int64_t bytes);
  Buffer& arrive(const program::Instruction& instruction, std::int64_t bytes);
  std::uint32_t next_flow(Rank from, Rank to, const program::Instruction& instruction);

  const PipelineEdges& edges_;
  Rank rank_;
  Tracer& tracer_;
  std::array<Sends, 2> sends_;  ///< by program::Pass
  std::vector<Buffer> receives_;
  std::array<std::deque<Buffer*>, 2> posted_;  ///< by program::Pass, in order of arrival
};

}  // namespace cadenza::exec
