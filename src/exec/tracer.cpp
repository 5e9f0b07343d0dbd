// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/tracer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "cadenza/base/at.hpp"

namespace cadenza::exec {
namespace {

using program::EventKind;

std::int64_t resident_bytes() {
  long total = 0;
  long resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &total, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return static_cast<std::int64_t>(resident) * sysconf(_SC_PAGESIZE);
}

}  // namespace

Tracer::Tracer(trace::Recorder& recorder, const MemoryLedger& ledger, bool events, bool memory)
    : recorder_(recorder), ledger_(ledger), events_(events), memory_(memory) {
  for (std::uint16_t kind = 0; kind < program::kEventKinds; ++kind) {
    names_[kind] = recorder.intern(program::name(EventKind::of(kind)));
  }
}

void Tracer::begin_step(std::int64_t step) {
  step_ = static_cast<std::uint32_t>(step);
  totals_ = {};
  set_context({});
  for (auto& [key, count] : instances_) count = 0;  // keeps the map's memory
}

void Tracer::finish_step() {
  fence();
  for (Unresolved& each : unresolved_) {
    each.event.enqueued_ns = each.event.begin_ns;
    each.event.begin_ns = stream_.at(each.begin);
    each.event.end_ns = stream_.at(each.end);
    each.event.flags |= trace::flag::kDeviceTimed;
    add(each.event);
  }
  unresolved_.clear();
  stream_.clear();
}

std::string Tracer::activity() const {
  std::string text = doing_ ? std::string(program::name(*doing_)) + " " : "";
  text += fmt::format("(step {}", step_);
  if (context_.phase != Phase::other) {
    text += fmt::format(", {}", kPhaseNames[at(context_.phase)]);
  }
  if (context_.microbatch >= 0) text += fmt::format(", microbatch {}", context_.microbatch);
  if (context_.layer >= 0) text += fmt::format(", layer {}", context_.layer);
  return text + ")";
}

std::uint32_t Tracer::flow(const Hasher& key) const {
  return static_cast<std::uint32_t>(Hasher(key).add(step_).value()) | 1u;  // 0 means "no flow"
}

std::uint32_t Tracer::next_flow(const Hasher& key) {
  return flow(Hasher(key).add(instances_[key.value()]++));
}

std::uint32_t Tracer::next_flow(const comm::Communicator& group, EventKind kind) {
  return next_flow(Hasher()
                       .add(program::name(kind))
                       .add(static_cast<std::uint64_t>(group.leader()))
                       .add(static_cast<std::uint64_t>(group.size())));
}

trace::Event Tracer::event(Category category, EventKind kind, trace::Lane lane, std::int64_t begin,
                           std::int64_t end, const Work& work) const {
  trace::Event event;
  event.begin_ns = begin;
  event.end_ns = end;
  event.bytes = work.bytes;
  event.flops = work.flops;
  event.step = step_;
  event.peer = work.peer;
  event.flow = work.flow;
  event.name_id = names_[kind.number()];
  event.category = category;
  event.lane = lane;
  if (work.sends) event.flags |= trace::flag::kSends;
  event.set_context(context_);
  return event;
}

void Tracer::add(const trace::Event& event) {
  const std::int64_t busy = event.end_ns - event.begin_ns;
  totals_.busy_ns[at(event.category)] += busy;
  totals_.flops += event.flops;
  if (event.category == Category::compute_attention) {
    totals_.attention_ns[{event.tick, event.layer, event.phase}] += busy;
    totals_.attention_flops += event.flops;
  }
  if (events_) recorder_.record(event);
}

void Tracer::message(EventKind kind, std::int64_t begin, std::int64_t end, const Work& work,
                     std::int64_t still) {
  if (!events_) return;
  trace::Event message =
      event(program::category(kind), kind, trace::Lane::communication, begin, end, work);
  message.flags |= trace::flag::kNonBlocking;
  message.still_ns = still;
  recorder_.record(message);
}

void Tracer::sample_memory() {
  if (!memory_) return;
  time_host(program::OtherEvent::sample_memory, [&] {
    trace::MemorySample sample;
    sample.time_ns = trace::now_ns();
    sample.step = step_;
    for (int kind = 0; kind < kMemoryKinds; ++kind) {
      sample.bytes[at(kind)] = ledger_.current(static_cast<MemoryKind>(kind));
    }
    sample.host_rss_bytes = resident_bytes();
    recorder_.sample(sample);
  });
}

}  // namespace cadenza::exec
