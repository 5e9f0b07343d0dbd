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

template <typename Sum>
std::span<Sum> elements_of(const HostArray<Sum>& host, std::int64_t elements) {
  return {host.data(), static_cast<std::size_t>(elements)};
}

}  // namespace

template <typename Sum>
PipelineP2p<Sum>::PipelineP2p(comm::Communicator& world, Tracer& tracer, MemoryLedger& ledger)
    : world_(world), tracer_(tracer), ledger_(ledger) {
  received_.channel = kReceiveChannel;
}

template <typename Sum>
void PipelineP2p<Sum>::grow(Buffer& buffer, std::int64_t elements) {
  const auto present = static_cast<std::int64_t>(buffer.device.extent(0));
  if (elements <= present) return;
  ledger_.remove(MemoryKind::communication, present * static_cast<std::int64_t>(sizeof(Sum)));
  buffer.device = allocate<Sum>(ledger_, MemoryKind::communication, "stream", elements);
  buffer.host = Kokkos::create_mirror_view(buffer.device);
}

template <typename Sum>
typename PipelineP2p<Sum>::Buffer& PipelineP2p<Sum>::free_buffer(std::int64_t elements) {
  for (Buffer& buffer : sent_) {
    if (!world_.test(buffer.channel)) continue;
    world_.wait(buffer.channel);
    grow(buffer, elements);
    return buffer;
  }
  Buffer& buffer = sent_.emplace_back();
  buffer.channel = kFirstSendChannel + static_cast<int>(sent_.size());
  grow(buffer, elements);
  return buffer;
}

template <typename Sum>
void PipelineP2p<Sum>::start(const program::Step& step, Buffer& buffer, std::int64_t elements) {
  const auto bytes = std::as_bytes(elements_of<Sum>(buffer.host, elements));
  const std::int64_t begin = trace::now_ns();
  world_.post_send(bytes, step.peer, tag_of(step), buffer.channel);
  const auto count = static_cast<std::int64_t>(bytes.size());
  tracer_.message(program::Operation::send, begin, trace::now_ns(),
                  {count, 0, step.peer, next_flow(world_.rank(), step.peer, step), true});
  tracer_.count_sent(count);
}

template <typename Sum>
void PipelineP2p<Sum>::arrive(const program::Step& step, std::int64_t elements) {
  grow(received_, elements);
  const auto bytes = std::as_writable_bytes(elements_of<Sum>(received_.host, elements));
  const std::int64_t begin = trace::now_ns();
  world_.post_receive(bytes, step.peer, tag_of(step), received_.channel);
  tracer_.time(program::OtherEvent::wait_for_stage, {}, [&] { world_.wait(received_.channel); });
  const auto count = static_cast<std::int64_t>(bytes.size());
  tracer_.message(program::Operation::receive, begin, trace::now_ns(),
                  {count, 0, step.peer, next_flow(step.peer, world_.rank(), step)});
  tracer_.count_received(count);
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
  for (const Buffer& buffer : sent_) world_.wait(buffer.channel);
}

template class PipelineP2p<float>;
template class PipelineP2p<double>;

}  // namespace cadenza::exec
