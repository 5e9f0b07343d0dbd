// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/tracer.hpp"

#include <unistd.h>

#include <cstdio>

#include "cadenza/base/hash.hpp"

namespace cadenza::exec {
namespace {

std::int64_t resident_bytes() {
  long total = 0;
  long resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &total, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return static_cast<std::int64_t>(resident) * sysconf(_SC_PAGESIZE);
}

/// Flows repeat from step to step: the step makes them unique. 0 means "no flow".
std::uint32_t flow_in_step(std::uint32_t flow, std::uint32_t step) {
  return static_cast<std::uint32_t>(Hasher().add(flow).add(step).value()) | 1u;
}

constexpr std::uint8_t kNonBlocking = 1u << 2;

}  // namespace

Tracer::Tracer(trace::Recorder& recorder, const MemoryLedger& ledger, bool events, bool memory)
    : recorder_(recorder), ledger_(ledger), events_(events), memory_(memory) {}

void Tracer::begin_step(std::int64_t step) {
  step_ = static_cast<std::uint32_t>(step);
  totals_ = {};
  set_place(-1, -1, trace::Phase::other);
}

void Tracer::set_place(int microbatch, int layer, trace::Phase phase) {
  microbatch_ = static_cast<std::int16_t>(microbatch);
  layer_ = static_cast<std::int16_t>(layer);
  phase_ = phase;
}

trace::Event Tracer::place(trace::Category category, std::uint16_t name, trace::Lane lane,
                           std::int64_t begin, std::int64_t end, const Work& work) const {
  trace::Event event;
  event.t_begin_ns = begin;
  event.t_end_ns = end;
  event.bytes = work.bytes;
  event.flops = work.flops;
  event.step = step_;
  event.peer = work.peer;
  event.flow = work.flow == 0 ? 0 : flow_in_step(work.flow, step_);
  event.name_id = name;
  event.microbatch = microbatch_;
  event.layer = layer_;
  event.category = category;
  event.phase = phase_;
  event.lane = lane;
  return event;
}

void Tracer::add(trace::Category category, std::uint16_t name, trace::Lane lane, std::int64_t begin,
                 std::int64_t end, const Work& work) {
  totals_.busy_ns[static_cast<std::size_t>(category)] += end - begin;
  totals_.flops += work.flops;
  if (events_) recorder_.record(place(category, name, lane, begin, end, work));
}

void Tracer::message(trace::Category category, std::uint16_t name, std::int64_t begin,
                     std::int64_t end, const Work& work) {
  if (!events_) return;
  trace::Event event = place(category, name, trace::Lane::communication, begin, end, work);
  event.flags = kNonBlocking;
  recorder_.record(event);
}

std::uint32_t Tracer::collective_flow(std::string_view name) {
  return static_cast<std::uint32_t>(Hasher().add(name).value()) | 1u;
}

void Tracer::sample_memory() {
  if (!memory_) return;
  trace::MemorySample sample;
  sample.t_ns = trace::now_ns();
  sample.step = step_;
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    sample.bytes[static_cast<std::size_t>(kind)] = ledger_.current(static_cast<MemoryKind>(kind));
  }
  sample.host_rss = resident_bytes();
  recorder_.sample(sample);
}

}  // namespace cadenza::exec
