// SPDX-License-Identifier: Apache-2.0
#include "pipeline_p2p.hpp"

namespace cadenza::exec {
namespace {

constexpr int kTag = 2000;
constexpr int kReceiveChannel = 0;
constexpr int kFirstSendChannel = 1;

int tag_of(const program::Step& step) {
  return kTag + (step.pass == program::Pass::backward ? 1 : 0);
}

}  // namespace

template <typename Sum>
PipelineP2p<Sum>::PipelineP2p(const PipelineEdges& edges, Rank rank, Tracer& tracer,
                              MemoryLedger& ledger)
    : edges_(edges),
      rank_(rank),
      tracer_(tracer),
      ledger_(ledger),
      received_{MessageBuffer(ledger, "stream"), kReceiveChannel} {}

template <typename Sum>
Transfer PipelineP2p<Sum>::transfer(const program::Step& step, std::int64_t elements) const {
  return {1 - edges_.of(step).rank(), tag_of(step), 0, bytes_of(elements)};
}

template <typename Sum>
typename PipelineP2p<Sum>::Buffer& PipelineP2p<Sum>::free_buffer(std::int64_t elements) {
  for (Buffer& buffer : sent_) {
    if (!buffer.over->test(buffer.channel)) continue;
    buffer.over->wait(buffer.channel);
    buffer.messages.grow(bytes_of(elements));
    return buffer;
  }
  const int channel = kFirstSendChannel + static_cast<int>(sent_.size()) + 1;
  Buffer& buffer = sent_.emplace_back(Buffer{MessageBuffer(ledger_, "stream"), channel});
  buffer.messages.grow(bytes_of(elements));
  return buffer;
}

template <typename Sum>
void PipelineP2p<Sum>::start(const program::Step& step, Buffer& buffer, std::int64_t elements) {
  const Transfer message = transfer(step, elements);
  const std::int64_t begin = trace::now_ns();
  buffer.over = &edges_.of(step);
  buffer.messages.post(*buffer.over, {}, one(message), buffer.channel);
  tracer_.message(program::Operation::send, begin, trace::now_ns(),
                  {message.bytes, 0, step.peer, next_flow(rank_, step.peer, step), true});
  tracer_.count_sent(message.bytes);
}

template <typename Sum>
void PipelineP2p<Sum>::arrive(const program::Step& step, std::int64_t elements) {
  const Transfer message = transfer(step, elements);
  MessageBuffer& messages = received_.messages;
  messages.grow(message.bytes);
  const std::int64_t begin = trace::now_ns();
  DeviceCommunicator& over = edges_.of(step);
  messages.post(over, one(message), {}, received_.channel);
  tracer_.time(program::OtherEvent::wait_for_stage, {}, [&] { over.wait(received_.channel); });
  tracer_.message(program::Operation::receive, begin, trace::now_ns(),
                  {message.bytes, 0, step.peer, next_flow(step.peer, rank_, step)});
  tracer_.count_received(message.bytes);
}

/// Messages of a pair and a pass arrive in the order in which they were sent.
template <typename Sum>
std::uint32_t PipelineP2p<Sum>::next_flow(Rank from, Rank to, const program::Step& step) {
  return tracer_.next_flow(Hasher()
                               .add(static_cast<std::uint64_t>(from))
                               .add(static_cast<std::uint64_t>(to))
                               .add(static_cast<std::uint64_t>(tag_of(step))));
}

template <typename Sum>
void PipelineP2p<Sum>::finish() {
  for (Buffer& buffer : sent_) buffer.over->wait(buffer.channel);
}

template class PipelineP2p<float>;
template class PipelineP2p<double>;

}  // namespace cadenza::exec
