// SPDX-License-Identifier: Apache-2.0
// The layers of pipeline stages: given, even, or dealt so that the slowest stage is fast.
#include "cadenza/program/stages.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "cadenza/cost/flops.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::program::test_stages {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;

config::Experiment experiment_of(std::int64_t layers, std::int64_t stages, std::int64_t chunks = 1,
                                 std::int64_t vocab = 1) {
  config::Experiment e;
  e.model.layers = layers;
  e.model.d_model = e.model.ffn = 8;
  e.model.heads = e.model.kv_heads = 1;
  e.model.vocab = vocab;
  e.parallel.pipeline = stages;
  e.parallel.chunks = chunks;
  e.attention.placement = config::PlacementKind::colocated;
  e.batch.microbatch = e.batch.tokens = 8;
  return e;
}

std::vector<std::int64_t> sizes(const config::Experiment& e) {
  std::vector<std::int64_t> all;
  for (const Range& part : stage_layers(e)) all.push_back(part.size());
  return all;
}

/// Weights that a token meets on the slowest stage.
std::int64_t slowest(const config::Experiment& e, const std::vector<std::int64_t>& of_stages) {
  std::int64_t most = 0;
  for (std::size_t s = 0; s < of_stages.size(); ++s) {
    const bool last = s + 1 == of_stages.size();
    most = std::max(most, of_stages[s] * cost::layer_parameters(e.model) +
                              (last ? e.model.d_model * e.model.vocab : 0));
  }
  return most;
}

/// The least of slowest() over all ways to split layers, each stage with `chunks` or more.
std::int64_t least_of_all(const config::Experiment& e, std::vector<std::int64_t> before,
                          std::int64_t left) {
  const std::int64_t behind = e.parallel.pipeline - std::ssize(before) - 1;
  if (behind == 0) {
    before.push_back(left);
    return slowest(e, before);
  }
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t n = e.parallel.chunks; n <= left - behind * e.parallel.chunks; ++n) {
    std::vector<std::int64_t> next = before;
    next.push_back(n);
    least = std::min(least, least_of_all(e, next, left - n));
  }
  return least;
}

TEST(StageLayers, AreEvenWherePartsDivideThem) {
  EXPECT_THAT(sizes(experiment_of(6, 3, 1, 100000)), ElementsAre(2, 2, 2));
  EXPECT_THAT(sizes(experiment_of(8, 2, 2, 100000)), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(sizes(experiment_of(5, 1)), ElementsAre(5));
}

TEST(StageLayers, AreThoseGiven) {
  config::Experiment e = experiment_of(6, 3);
  e.parallel.stages = {3, 1, 2};
  EXPECT_THAT(stage_layers(e), ElementsAre(Range{0, 3}, Range{3, 4}, Range{4, 6}));
}

TEST(StageLayers, TheSlowestStageIsAsFastAsAnySplitMakesIt) {
  const std::int64_t layer = cost::layer_parameters(experiment_of(1, 1).model);
  for (std::int64_t stages = 2; stages <= 4; ++stages) {
    for (std::int64_t chunks = 1; chunks <= 2; ++chunks) {
      for (std::int64_t layers = stages * chunks; layers <= 11; ++layers) {
        if (layers % (stages * chunks) == 0) continue;
        for (const std::int64_t quarters : {0, 1, 3, 4, 9, 40}) {  // of a layer: the head
          const config::Experiment e =
              experiment_of(layers, stages, chunks, 1 + quarters * layer / 32);
          const std::vector<std::int64_t> parts = sizes(e);
          EXPECT_THAT(parts, Each(Ge(1)));
          EXPECT_EQ(stage_layers(e).back().end, layers);
          std::vector<std::int64_t> of_stages(static_cast<std::size_t>(stages));
          for (std::size_t i = 0; i < parts.size(); ++i)
            of_stages[i % of_stages.size()] += parts[i];
          EXPECT_EQ(slowest(e, of_stages), least_of_all(e, {}, layers))
              << stages << " stages, " << chunks << " chunks, " << layers << " layers, "
              << quarters;
        }
      }
    }
  }
}

TEST(StageLayers, OfEqualSplitsEarlierStagesHaveFewer) {
  EXPECT_THAT(sizes(experiment_of(5, 4)), ElementsAre(1, 1, 2, 1));  // the last has the head, too
  EXPECT_THAT(sizes(experiment_of(5, 3)), ElementsAre(2, 2, 1));
  EXPECT_THAT(sizes(experiment_of(7, 2, 2)), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(sizes(experiment_of(11, 3, 2)), ElementsAre(2, 2, 2, 2, 2, 1));
}

// As its report says (arXiv 2407.21783, section 3.3.2).
TEST(StageLayers, OfLlama405BAreFewerOnTheFirstAndLastStage) {
  config::Experiment e = experiment_of(126, 16, 1, 128256);
  e.model.d_model = 16384;
  e.model.ffn = 53248;
  e.model.heads = 128;
  e.model.kv_heads = 8;
  std::vector<std::int64_t> expected(16, 8);
  expected.front() = expected.back() = 7;
  EXPECT_EQ(sizes(e), expected);
}

TEST(StageLayers, AreCountedThroughTheChunksOfAStage) {
  config::Experiment e = experiment_of(7, 2, 2);
  e.parallel.stages = {1, 3, 2, 1};
  const StepShape step_shape(e);
  EXPECT_EQ(step_shape.layers_of_stage(0), 3);
  EXPECT_EQ(step_shape.layers_of_rank(1), 4);
  EXPECT_EQ(step_shape.most_layers, 4);
  const auto of_model = [&](int stage) {
    std::vector<int> all;
    for (int layer = 0; layer < step_shape.layers_of_stage(stage); ++layer) {
      all.push_back(step_shape.model_layer(stage, layer));
    }
    return all;
  };
  EXPECT_THAT(of_model(0), ElementsAre(0, 4, 5));
  EXPECT_THAT(of_model(1), ElementsAre(1, 2, 3, 6));
}

}  // namespace
}  // namespace cadenza::program::test_stages
