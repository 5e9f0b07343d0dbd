// SPDX-License-Identifier: Apache-2.0
#include "pipeline_p2p.hpp"

namespace cadenza::exec {
namespace {

// On the world's communicator: clear of the clock's tag and channels.
constexpr int kTag = 2000;
constexpr int kReceiveChannel = 2000;
constexpr int kFirstSendChannel = 2001;

int tag_of(const program::Step& step) {
  return kTag + (step.pass == program::Pass::backward ? 1 : 0);
}

}  // namespace

template <typename Sum>
PipelineP2p<Sum>::PipelineP2p(DeviceCommunicator& world, Tracer& tracer, MemoryLedger& ledger)
    : world_(world),
      tracer_(tracer),
      ledger_(ledger),
      received_{MessageBuffer(world, ledger, "stream"), kReceiveChannel} {}

template <typename Sum>
Transfer PipelineP2p<Sum>::transfer(const program::Step& step, std::int64_t elements) {
  return {step.peer, tag_of(step), 0, bytes_of(elements)};
}

template <typename Sum>
typename PipelineP2p<Sum>::Buffer& PipelineP2p<Sum>::free_buffer(std::int64_t elements) {
  for (Buffer& buffer : sent_) {
    if (!buffer.messages.test(buffer.channel)) continue;
    buffer.messages.wait(buffer.channel);
    buffer.messages.grow(bytes_of(elements));
    return buffer;
  }
  const int channel = kFirstSendChannel + static_cast<int>(sent_.size()) + 1;
  Buffer& buffer = sent_.emplace_back(Buffer{MessageBuffer(world_, ledger_, "stream"), channel});
  buffer.messages.grow(bytes_of(elements));
  return buffer;
}

template <typename Sum>
void PipelineP2p<Sum>::start(const program::Step& step, Buffer& buffer, std::int64_t elements) {
  const Transfer message = transfer(step, elements);
  const std::int64_t begin = trace::now_ns();
  buffer.messages.post({}, one(message), buffer.channel);
  tracer_.message(program::Operation::send, begin, trace::now_ns(),
                  {message.bytes, 0, step.peer, next_flow(world_.rank(), step.peer, step), true});
  tracer_.count_sent(message.bytes);
}

template <typename Sum>
void PipelineP2p<Sum>::arrive(const program::Step& step, std::int64_t elements) {
  const Transfer message = transfer(step, elements);
  MessageBuffer& messages = received_.messages;
  messages.grow(message.bytes);
  const std::int64_t begin = trace::now_ns();
  messages.post(one(message), {}, received_.channel);
  tracer_.time(program::OtherEvent::wait_for_stage, {}, [&] { messages.wait(received_.channel); });
  tracer_.message(program::Operation::receive, begin, trace::now_ns(),
                  {message.bytes, 0, step.peer, next_flow(step.peer, world_.rank(), step)});
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
  for (Buffer& buffer : sent_) buffer.messages.wait(buffer.channel);
}

template class PipelineP2p<float>;
template class PipelineP2p<double>;

}  // namespace cadenza::exec
