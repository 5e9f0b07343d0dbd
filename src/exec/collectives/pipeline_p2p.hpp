// SPDX-License-Identifier: Apache-2.0
// Residual streams and their gradients between pipeline stages.
#pragma once

#include <span>
#include <vector>

#include "cadenza/exec/message_buffer.hpp"
#include "cadenza/exec/tracer.hpp"
#include "cadenza/program/program.hpp"
#include "pipeline_edges.hpp"

namespace cadenza::exec {

template <typename Sum>
class PipelineP2p {
 public:
  PipelineP2p(const PipelineEdges& edges, Rank rank, Tracer& tracer, MemoryLedger& ledger);

  /// Sends `elements` that fill(device pointer) writes; returns at once.
  template <typename Fill>
  void send(const program::Step& step, std::int64_t elements, Fill fill) {
    Buffer& buffer = free_buffer(elements);
    tracer_.time(program::OtherEvent::pack_stream, {bytes_of(elements)},
                 [&] { fill(buffer.elements()); });
    start(step, buffer, elements);
  }

  /// Waits for `elements` and lets take(device pointer) read them.
  template <typename Take>
  void receive(const program::Step& step, std::int64_t elements, Take take) {
    arrive(step, elements);
    tracer_.time(program::OtherEvent::unpack_stream, {bytes_of(elements)},
                 [&] { take(static_cast<const Sum*>(received_.elements())); });
  }

  /// Completes all sends.
  void finish();

 private:
  struct Buffer {
    MessageBuffer messages;
    int channel = 0;
    DeviceCommunicator* over = nullptr;  ///< of the last message
    Sum* elements() const { return reinterpret_cast<Sum*>(messages.memory()); }
  };
  static std::span<const Transfer> one(const Transfer& transfer) { return {&transfer, 1}; }
  /// The message of a step: a whole buffer's.
  Transfer transfer(const program::Step& step, std::int64_t elements) const;
  static std::int64_t bytes_of(std::int64_t elements) {
    return elements * static_cast<std::int64_t>(sizeof(Sum));
  }
  Buffer& free_buffer(std::int64_t elements);
  void start(const program::Step& step, Buffer& buffer, std::int64_t elements);
  void arrive(const program::Step& step, std::int64_t elements);
  std::uint32_t next_flow(Rank from, Rank to, const program::Step& step);

  const PipelineEdges& edges_;
  Rank rank_;
  Tracer& tracer_;
  MemoryLedger& ledger_;
  std::vector<Buffer> sent_;  ///< in flight or free
  Buffer received_;
};

}  // namespace cadenza::exec
