// SPDX-License-Identifier: Apache-2.0
#include "exec/collectives/pipeline_p2p.hpp"

#include <algorithm>

#include "cadenza/base/at.hpp"

namespace cadenza::exec {
namespace {

constexpr int kPipelineTag = 2000;

int tag_of(const program::Instruction& instruction) {
  return kPipelineTag + (instruction.pass == program::Pass::backward ? 1 : 0);
}

}  // namespace

PipelineP2p::PipelineP2p(const PipelineEdges& edges, const program::StreamBuffers& buffers,
                         Rank rank, Tracer& tracer, MemoryLedger& ledger)
    : edges_(edges), rank_(rank), tracer_(tracer) {
  int channel = 0;
  const auto add = [&](std::vector<Buffer>& list, int count) {
    for (int i = 0; i < count; ++i) list.push_back({MessageBuffer(ledger, "stream"), channel++});
  };
  for (const program::Pass pass : {program::Pass::forward, program::Pass::backward}) {
    add(sends_[at(pass)].buffers, buffers.sends[at(pass)]);
  }
  add(receives_, buffers.receives);
}

template <typename Action>
void PipelineP2p::for_each_buffer(Action action) {
  for (Sends& sends : sends_) std::ranges::for_each(sends.buffers, action);
  std::ranges::for_each(receives_, action);
}

void PipelineP2p::reserve(std::int64_t bytes) {
  for_each_buffer([&](Buffer& buffer) { buffer.messages.grow(bytes); });
}

PipelineP2p::Buffer& PipelineP2p::free_buffer(const program::Instruction& instruction) {
  Sends& sends = sends_[at(instruction.pass)];
  Buffer& buffer = sends.buffers[sends.next];
  sends.next = (sends.next + 1) % sends.buffers.size();
  finish(buffer);
  return buffer;
}

/// Completes a send; if that takes time, as a wait.
void PipelineP2p::finish(Buffer& buffer) {
  if (buffer.over != nullptr && !buffer.over->test(buffer.channel)) {
    tracer_.time(program::OtherEvent::wait_for_sends, {}, [&] { complete(buffer); });
  }
  complete(buffer);
}

void PipelineP2p::complete(Buffer& buffer) {
  if (buffer.over != nullptr) buffer.over->wait(buffer.channel);
  buffer.over = nullptr;
}

void PipelineP2p::start(const program::Instruction& instruction, Buffer& buffer,
                        std::int64_t bytes) {
  const std::int64_t begin = trace::now_ns();
  buffer.over = &edges_.of(instruction);
  const comm::Send message{buffer.messages.bytes(0, bytes), other_rank(buffer),
                           tag_of(instruction)};
  buffer.over->post({}, {&message, 1}, buffer.channel);
  tracer_.message(
      program::Operation::send, begin, trace::now_ns(),
      {bytes, 0, instruction.peer, next_flow(rank_, instruction.peer, instruction), true});
  tracer_.count_sent(bytes);
}

void PipelineP2p::post_receive(const program::Instruction& instruction, std::int64_t bytes) {
  Buffer& buffer = *std::ranges::find(receives_, nullptr, &Buffer::over);  // there are enough
  buffer.over = &edges_.of(instruction);
  const comm::Receive message{buffer.messages.bytes(0, bytes), other_rank(buffer),
                              tag_of(instruction)};
  buffer.over->post({&message, 1}, {}, buffer.channel);
  posted_[at(instruction.pass)].push_back(&buffer);
}

PipelineP2p::Buffer& PipelineP2p::arrive(const program::Instruction& instruction,
                                         std::int64_t bytes) {
  auto& posted = posted_[at(instruction.pass)];
  Buffer& buffer = *posted.front();
  posted.pop_front();
  const std::int64_t begin = trace::now_ns();
  tracer_.time(program::OtherEvent::wait_for_stage, {}, [&] { complete(buffer); });
  tracer_.message(program::Operation::receive, begin, trace::now_ns(),
                  {bytes, 0, instruction.peer, next_flow(instruction.peer, rank_, instruction)});
  tracer_.count_received(bytes);
  return buffer;
}

/// Returns the flow of the next stream. Messages of a pair and a pass arrive in the order of their
/// sends.
std::uint32_t PipelineP2p::next_flow(Rank from, Rank to, const program::Instruction& instruction) {
  return tracer_.next_flow(Hasher()
                               .add(static_cast<std::uint64_t>(from))
                               .add(static_cast<std::uint64_t>(to))
                               .add(static_cast<std::uint64_t>(tag_of(instruction))));
}

void PipelineP2p::finish() {
  for (Sends& sends : sends_) {
    for (Buffer& buffer : sends.buffers) finish(buffer);
  }
}

PipelineEdges::PipelineEdges(comm::Communicator& world, const program::StepShape& shape,
                             config::Transport transport) {
  using program::Pass;
  const program::Layout& layout = shape.layout;
  const Rank rank = world.rank();
  const bool trains = layout.trains(rank);
  program::Coordinates place = trains ? layout.coordinates(rank) : program::Coordinates{};
  const int stages = layout.pipeline();
  const int stage = trains ? place.pipeline : -1;
  place.pipeline = 0;
  const Rank pipeline = layout.rank(place);  // names the pipeline
  const int edges = shape.pipeline.chunks > 1 ? stages : stages - 1;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (int edge = 0; edge < edges; ++edge) {
      const bool begins = stage == edge;
      const bool ends = stage == (edge + 1) % stages;
      auto group = world.split(begins || ends ? pipeline : layout.trainers() + rank);
      if (!begins && !ends) continue;
      Neighbours& of_pass = passes_[at(pass)];
      const bool sends = begins == (pass == Pass::forward);
      auto devices = make_device_communicator(*group, transport, Purpose::streams);
      (sends ? of_pass.sends : of_pass.receives) = {std::move(group), std::move(devices)};
    }
  }
}

DeviceCommunicator& PipelineEdges::of(const program::Instruction& instruction) const {
  const Neighbours& of_pass = passes_[at(instruction.pass)];
  const bool sends = instruction.operation == program::Operation::send;
  return *(sends ? of_pass.sends : of_pass.receives).devices;
}

}  // namespace cadenza::exec
