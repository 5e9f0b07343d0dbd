// SPDX-License-Identifier: Apache-2.0
// Events whose every field follows from their index, so that readers can tell a right one.
#pragma once

#include "cadenza/trace/writer.hpp"

namespace cadenza::trace {

/// A step may have more microbatches, layers and stages than 16 bits hold.
inline constexpr std::int32_t kWide = 40'000;

inline Event numbered_event(std::int64_t i) {
  Event event;
  event.begin_ns = i * 1000;
  event.end_ns = i * 1000 + 700;
  event.bytes = i * 3;
  event.flops = static_cast<double>(i) * 1.5;
  event.enqueued_ns = i + 1;
  event.still_ns = i - 1;
  event.step = static_cast<std::uint32_t>(i / 100);
  event.peer = static_cast<std::int32_t>(i % 5) - 1;
  event.flow = static_cast<std::uint32_t>(i * 7);
  event.name_id = static_cast<std::uint16_t>(i % 3);
  event.microbatch = static_cast<std::int32_t>(i % 4) - 1 + kWide;
  event.layer = static_cast<std::int32_t>(i % 32) + kWide;
  event.category = static_cast<Category>(i % std::ssize(kCategoryNames));
  event.phase = static_cast<Phase>(i % std::ssize(kPhaseNames));
  event.lane = i % 2 == 0 ? Lane::compute : Lane::host;
  event.flags = static_cast<std::uint8_t>(i % 16);
  event.tick = static_cast<std::int32_t>(i % 9) - 1;
  event.stage = static_cast<std::int32_t>(i % 6) - 1 + kWide;
  event.half = static_cast<std::int32_t>(i % 3) - 1;
  return event;
}

inline RunInfo sample_run() {
  return {.run_id = "run-7",
          .producer = "trainer",
          .code_version = "0.1.0+abc",
          .code_revision = "v0.1-3-gabc-dirty",
          .build = "a compiler, Release",
          .config_yaml = "name: test\nseed: 3\n",
          .machine_yaml = "name: sample\n",
          .seed = 18446744073709551557ULL,
          .created_utc = "2025-01-01T00:00:00Z"};
}

inline RankInfo sample_rank(int rank, int world) {
  RankInfo info;
  info.host = "node" + std::to_string(rank);
  info.rank = rank;
  info.world = world;
  info.local_rank = rank % 2;
  info.role = rank == 0 ? Role::both : Role::attention_server;
  info.data = rank - 1;
  info.pipeline = 2;
  info.tensor = 3;
  info.context = 4;
  info.server = 5;
  info.threads = 6;
  info.device = "a device";
  info.peak_flops = 1.25e12;
  info.attention_kernel = "avx512";
  info.started_ns = 4711;
  return info;
}

/// Writes step `step` with `count` numbered events that follow those already written.
inline void write_numbered_step(Writer& writer, Recorder& recorder, std::uint32_t step,
                                std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) recorder.record(numbered_event(step * count + i));
  MemorySample sample;
  sample.step = step;
  recorder.sample(sample);
  StepRecord record;
  record.step = step;
  record.loss = 10.0 - step;
  writer.write_step(record, {.step = step}, recorder);
}

}  // namespace cadenza::trace
