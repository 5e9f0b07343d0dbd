// SPDX-License-Identifier: Apache-2.0
#include "program/stream_order.hpp"

#include <gmock/gmock.h>

#include <set>
#include <string>

namespace cadenza::program::test_stream_order {
namespace {

using ::testing::ElementsAre;

StepShape shape_of(int stages, int chunks, int microbatches,
                   config::PipelineSchedule schedule = config::PipelineSchedule::automatic) {
  config::Experiment e;
  e.model.layers = stages * chunks;
  e.parallel.pipeline = stages;
  e.parallel.chunks = chunks;
  e.parallel.schedule = schedule;
  e.batch.microbatch = 16;
  e.batch.tokens = 16 * microbatches;
  e.attention.placement = config::PlacementKind::colocated;
  return StepShape(e);
}

std::string name_of(const MicrobatchPass& unit) {
  std::string name = unit.pass == Pass::forward ? "F" : "B";
  return name + std::to_string(unit.microbatch);
}

/// "F1 at 2": what arrives for a forward pass leaves its sender after two units.
std::vector<std::string> arrivals(const StepShape& shape, int stage) {
  std::vector<std::string> found;
  for (const StreamArrival& each : order_streams(shape, stage).arrivals) {
    found.push_back(name_of(each.unit) + " at " + std::to_string(each.place.time));
  }
  return found;
}

// Stage 0: F0 F1 F2 .. .. B0 F3 ..    Stage 1: .. F0 F1 .. B0 F2 B1 ..    Stage 2: .. .. F0 B0 F1
TEST(StreamOrder, OfThreeStages) {
  const StepShape shape = shape_of(3, 1, 3);
  EXPECT_THAT(arrivals(shape, 0), ElementsAre("B0 at 5", "B1 at 7", "B2 at 9"));
  EXPECT_THAT(arrivals(shape, 1),
              ElementsAre("F0 at 1", "F1 at 2", "F2 at 3", "B0 at 4", "B1 at 6", "B2 at 8"));
  EXPECT_THAT(arrivals(shape, 2), ElementsAre("F0 at 2", "F1 at 3", "F2 at 6"));
  EXPECT_THAT(order_streams(shape, 1).begins, ElementsAre(1, 2, 4, 5, 6, 8));
}

TEST(StreamOrder, HasOnePlaceForEachMessageAndBothEndsAgree) {
  using config::PipelineSchedule;
  for (int stages = 2; stages <= 5; ++stages) {
    for (const auto& [chunks, schedule] : {std::pair(1, PipelineSchedule::one_f_one_b),
                                           std::pair(1, PipelineSchedule::phase_aligned),
                                           std::pair(2, PipelineSchedule::interleaved),
                                           std::pair(3, PipelineSchedule::interleaved)}) {
      for (int rounds = 1; rounds <= 3; ++rounds) {
        const StepShape shape = shape_of(stages, chunks, rounds * stages, schedule);
        std::set<StreamPlace> sent, received;
        for (int stage = 0; stage < stages; ++stage) {
          const StreamOrder order = order_streams(shape, stage);
          const std::vector<MicrobatchPass> units = microbatch_passes(shape, true, stage);
          for (std::size_t i = 0; i < units.size(); ++i) {
            const MicrobatchPass& unit = units[i];
            const bool first = stage == 0 && unit.chunk == 0;
            const bool last = stage + 1 == stages && unit.chunk + 1 == chunks;
            if (unit.microbatch < 0 || (unit.pass == Pass::forward ? last : first)) continue;
            EXPECT_TRUE(sent.insert(place_of_send(shape, stage, unit, order.begins[i])).second);
          }
          for (const StreamArrival& each : order.arrivals) {
            EXPECT_TRUE(received.insert(each.place).second);
          }
        }
        EXPECT_EQ(sent, received);
        EXPECT_EQ(sent.size(), static_cast<std::size_t>(2 * (stages * chunks - 1) *
                                                        shape.pipeline.microbatches));
      }
    }
  }
}

TEST(StreamOrder, SaysHowManyBuffersStagesNeed) {
  const auto buffers = [](const StepShape& shape, int stage) {
    const StreamBuffers found = stream_buffers_of_stage(shape, stage);
    return std::vector<int>{found.sends[0], found.sends[1], found.receives};
  };
  EXPECT_THAT(buffers(shape_of(1, 1, 4), 0), ElementsAre(0, 0, 0));
  EXPECT_THAT(buffers(shape_of(2, 1, 1), 0), ElementsAre(1, 0, 1));
  EXPECT_THAT(buffers(shape_of(3, 1, 3), 0), ElementsAre(2, 0, 1));
  // F2 leaves stage 0 before B0 leaves stage 2, and B0 is the first that stage 1 takes.
  EXPECT_THAT(buffers(shape_of(3, 1, 3), 1), ElementsAre(2, 2, 2));
  EXPECT_THAT(buffers(shape_of(3, 1, 3), 2), ElementsAre(0, 2, 1));
}

}  // namespace
}  // namespace cadenza::program::test_stream_order
