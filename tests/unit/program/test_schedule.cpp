// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/schedule.hpp"

#include <gmock/gmock.h>

#include <map>
#include <string>

namespace cadenza::program::test_schedule {
namespace {

/// "F0 F1 B0": passes with their microbatch, and their chunk where there are several.
std::string text(const std::vector<ScheduleEntry>& turns, bool chunks = false) {
  std::string text;
  for (const ScheduleEntry& turn : turns) {
    text += turn.pass == Pass::forward ? 'F' : 'B';
    text += std::to_string(turn.microbatch);
    if (chunks) text += static_cast<char>('a' + turn.chunk);
    text += ' ';
  }
  return text.substr(0, text.empty() ? 0 : text.size() - 1);
}

TEST(OneFOneB, OfThreeStagesAndFourMicrobatches) {
  const PipelineShape shape{3, 1, 4};
  EXPECT_EQ(text(one_f_one_b(shape, 0)), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(text(one_f_one_b(shape, 1)), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(text(one_f_one_b(shape, 2)), "F0 B0 F1 B1 F2 B2 F3 B3");
}

TEST(OneFOneB, WithFewerMicrobatchesThanStages) {
  EXPECT_EQ(text(one_f_one_b({4, 1, 1}, 0)), "F0 B0");
  EXPECT_EQ(text(one_f_one_b({4, 1, 2}, 0)), "F0 F1 B0 B1");
}

TEST(Interleaved, OfTwoStagesAndTwoChunks) {
  const PipelineShape shape{2, 2, 4};
  EXPECT_EQ(text(one_f_one_b(shape, 0), true),
            "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a");
  EXPECT_EQ(text(one_f_one_b(shape, 1), true),
            "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a");
}

TEST(Interleaved, RunsEveryPassOfEveryChunkOnceForwardFirst) {
  for (int stages = 1; stages <= 4; ++stages) {
    for (int chunks = 1; chunks <= 3; ++chunks) {
      for (int rounds = 1; rounds <= 3; ++rounds) {
        const PipelineShape shape{stages, chunks, rounds * stages};
        for (int stage = 0; stage < stages; ++stage) {
          std::map<std::pair<int, int>, int> passes;
          for (const ScheduleEntry& turn : one_f_one_b(shape, stage)) {
            int& done = passes[{turn.microbatch, turn.chunk}];
            EXPECT_EQ(done, turn.pass == Pass::forward ? 0 : 1);
            ++done;
          }
          EXPECT_EQ(passes.size(), static_cast<std::size_t>(shape.microbatches * chunks));
          for (const auto& [unit, done] : passes) EXPECT_EQ(done, 2);
        }
      }
    }
  }
}

// DistCA, arXiv 2510.18121, figure 8: three stages, four microbatches.
TEST(PhaseAligned, OfThreeStagesAndFourMicrobatches) {
  std::string phases;
  std::vector<std::vector<int>> microbatches;
  for (const Tick& tick : phase_aligned({3, 1, 4})) {
    phases += tick.phase == Pass::forward ? 'F' : 'B';
    microbatches.push_back(tick.microbatch);
  }
  EXPECT_EQ(phases, "FFFBFBFBFBBB");
  EXPECT_THAT(
      microbatches,
      ::testing::ElementsAre(::testing::ElementsAre(0, -1, -1), ::testing::ElementsAre(1, 0, -1),
                             ::testing::ElementsAre(2, 1, 0), ::testing::ElementsAre(-1, -1, 0),
                             ::testing::ElementsAre(3, 2, 1), ::testing::ElementsAre(-1, 0, 1),
                             ::testing::ElementsAre(-1, 3, 2), ::testing::ElementsAre(0, 1, 2),
                             ::testing::ElementsAre(-1, -1, 3), ::testing::ElementsAre(1, 2, 3),
                             ::testing::ElementsAre(2, 3, -1), ::testing::ElementsAre(3, -1, -1)));
}

TEST(PhaseAligned, HasAsManyTicksAsOneFOneB) {
  for (int stages = 1; stages <= 5; ++stages) {
    for (int microbatches = 1; microbatches <= 6; ++microbatches) {
      const auto ticks = phase_aligned({stages, 1, microbatches});
      EXPECT_EQ(ticks.size(), static_cast<std::size_t>(2 * (microbatches + stages - 1)));
      for (int stage = 0; stage < stages; ++stage) {
        int forward = 0, backward = 0;  // in order, each once, forward first
        for (const Tick& tick : ticks) {
          const int microbatch = tick.microbatch[static_cast<std::size_t>(stage)];
          if (microbatch < 0) continue;
          int& next = tick.phase == Pass::forward ? forward : backward;
          EXPECT_EQ(microbatch, next++);
          EXPECT_LE(backward, forward);
        }
        EXPECT_EQ(forward, microbatches);
        EXPECT_EQ(backward, microbatches);
      }
    }
  }
}

}  // namespace
}  // namespace cadenza::program::test_schedule
