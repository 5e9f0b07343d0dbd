// SPDX-License-Identifier: Apache-2.0
// Placement auto where batch.microbatch is auto too: which sizes it tries, and that it finds the
// best of all.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "app/planner/predict/forecast.hpp"
#include "app/planner/search/candidates.hpp"
#include "app/planner/search/search.hpp"
#include "app/planner/search/typical_steps.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/simulate/least_time.hpp"

namespace cadenza::app::test_open_microbatch {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Short documents, so that launches and small matrices count.
config::Experiment experiment(const std::vector<std::string>& overrides = {}) {
  return config::parse_experiment(
      "model: {layers: 4, d_model: 256, heads: 8, kv_heads: 4, ffn: 704, vocab: 512}\n"
      "data:\n"
      "  source: synthetic\n"
      "  max_document: 512\n"
      "  lengths: {distribution: list, values: [512, 256, 64, 192, 384, 640]}\n"
      "batch: {tokens: 32768, microbatch: auto}\n"
      "parallel: {data: 4, chunks: 1, shard: none}\n"
      "run: {recompute: none}\n"
      "attention: {placement: auto, tolerance: 0.1, servers: in_place}\n",
      "e.yaml", overrides);
}

/// A larger microbatch has fewer launches; a smaller one fills a pipeline faster.
config::Machine machine(double launch_seconds) {
  config::Machine m;
  m.ranks_per_node = 2;
  m.element_wise.bytes_per_second = 1e10;
  m.attention.launch_seconds = launch_seconds;
  return m;
}

Choice choose(const config::Experiment& e, const config::Machine& m) {
  return search_layout(e, *data::open_corpus(e.data, e.model.vocab, e.seed), m);
}

/// Of every layout and placement, with every microbatch.
std::vector<Candidate> all_candidates(const config::Experiment& e) {
  std::vector<Candidate> all;
  for (const Candidate& least : arrangements(e)) {
    for (std::optional<Candidate> one = least; one; one = with_larger_microbatch(e, *one)) {
      const std::vector<Candidate> mine = variants(e, *one);
      all.insert(all.end(), mine.begin(), mine.end());
    }
  }
  return all;
}

/// A candidate, simulated.
struct Measured {
  Candidate candidate;
  double seconds = 0;  ///< of the first steps, mean
  std::int64_t bytes = 0;
};

Measured measured(const Candidate& candidate, const config::Experiment& given,
                  const config::Machine& m) {
  constexpr int kSteps = 2;
  Measured found{candidate};
  const config::Experiment e = candidate.of(given);
  const data::Packer packer(*data::open_corpus(e.data, e.model.vocab, e.seed), e);
  for (int step = 0; step < kSteps; ++step) {
    const Forecast one = forecast(e, packer.batch(step), m);
    found.seconds += one.result.seconds / kSteps;
    found.bytes = std::max(found.bytes, one.peak_bytes());
  }
  return found;
}

TEST(OpenMicrobatch, TriesSequencesInPowersOfTwo) {
  std::map<std::int64_t, std::set<std::int64_t>> sizes;  // by data-parallel ranks
  for (const Candidate& one : all_candidates(experiment({"parallel.pipeline=1"}))) {
    sizes[one.parallel.data].insert(one.microbatch);
  }
  EXPECT_THAT(sizes[4], ElementsAre(512, 1024, 2048, 4096, 8192));
  EXPECT_THAT(sizes[1], ElementsAre(512, 1024, 2048, 4096, 8192, 16384, 32768));
  sizes.clear();  // 12 sequences: 4 ranks have 3 each, and 2 have 6
  for (const Candidate& one : all_candidates(experiment({"batch.tokens=6144"}))) {
    sizes[one.parallel.data].insert(one.microbatch);
  }
  EXPECT_THAT(sizes[4], ElementsAre(512));
  EXPECT_THAT(sizes[2], ElementsAre(512, 1024));
}

TEST(OpenMicrobatch, OneThatIsGivenIsKept) {
  const config::Experiment e = experiment({"batch.microbatch=1024"});
  for (const Candidate& one : all_candidates(e)) EXPECT_EQ(one.microbatch, 1024);
  EXPECT_EQ(choose(e, machine(1e-5)).experiment.batch.microbatch, 1024);
}

TEST(OpenMicrobatch, NoCandidateThatFitsIsFaster) {
  const config::Experiment e = experiment();
  std::set<std::int64_t> chosen;
  for (const double launch_seconds : {0.0, 1e-4}) {
    config::Machine m = machine(launch_seconds);
    std::vector<Measured> all;
    for (const Candidate& one : all_candidates(e)) all.push_back(measured(one, e, m));
    for (const std::int64_t memory : {std::int64_t{0}, std::int64_t{60} << 20}) {
      SCOPED_TRACE(fmt::format("launch {} s, {} bytes", launch_seconds, memory));
      m.memory = memory;
      const Choice choice = choose(e, m);
      const Measured best = measured(choice.considered.front().candidate, e, m);
      chosen.insert(best.candidate.microbatch);
      EXPECT_EQ(choice.experiment.batch.microbatch, best.candidate.microbatch);
      EXPECT_FALSE(choice.experiment.batch.microbatch_open);
      EXPECT_TRUE(memory == 0 || best.bytes <= memory);
      for (const Measured& other : all) {
        if (memory > 0 && other.bytes > memory) continue;
        EXPECT_GE(other.seconds, 0.98 * best.seconds)
            << layout_text(other.candidate) << ", " << placement_text(other.candidate.attention);
      }
    }
  }
  EXPECT_GT(chosen.size(), 1u) << "one size is the best everywhere";
}

TEST(OpenMicrobatch, WhatCannotFitIsNotListed) {
  const config::Experiment e = experiment();
  config::Machine m = machine(1e-4);
  const Considered best = choose(e, m).considered.front();
  ASSERT_GT(best.candidate.microbatch, 512);
  m.memory = exec::least_memory(best.candidate.of(e)).total() - 1;
  int larger = 0;
  for (const Considered& one : choose(e, m).considered) {
    if (one.candidate.microbatch == 512) continue;
    EXPECT_LE(exec::least_memory(one.candidate.of(e)).total(), m.memory);
    ++larger;
  }
  EXPECT_GT(larger, 0);
}

TEST(OpenMicrobatch, IsSaidInEveryRow) {
  const Choice choice = choose(experiment(), machine(1e-4));
  const std::int64_t size = choice.experiment.batch.microbatch;
  ASSERT_EQ(size % 1024, 0);
  EXPECT_THAT(choice.explanation, HasSubstr(fmt::format(", microbatch {}K,", size / 1024)));
  EXPECT_THAT(settings(choice.considered.front().candidate),
              Contains(fmt::format("--set batch.microbatch={}", size)));
  std::istringstream lines(choice.explanation);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

// Larger microbatches cut fewer documents: they compute more pairs, which the bound must know.
TEST(TypicalSteps, AreTheSameInMicrobatchesOfAnySize) {
  const config::Experiment e = experiment({"data.max_document=4096", "data.lengths.values=[700]"});
  const config::Machine m = machine(1e-5);
  const auto corpus = data::open_corpus(e.data, e.model.vocab, e.seed);
  config::Experiment small = arrangements(e).front().of(e), large = small;
  small.batch.microbatch = 512;
  large.batch.microbatch = 2048;
  TypicalSteps steps(small, *corpus, m);
  const std::vector<PackedStep>& of_small = steps.in_microbatches_of(small);
  const std::vector<PackedStep>& of_large = steps.in_microbatches_of(large);
  ASSERT_EQ(of_small.size(), 1u);
  ASSERT_EQ(of_large.size(), 1u);
  EXPECT_EQ(of_small[0].batch.step, of_large[0].batch.step);
  EXPECT_EQ(of_small[0].batch.microbatches.size(), 64u);
  EXPECT_EQ(of_large[0].batch.microbatches.size(), 16u);
  EXPECT_LT(of_small[0].model_flops, of_large[0].model_flops);
  EXPECT_EQ(&steps.in_microbatches_of(small), &of_small);
}

// A document of 4096 tokens every few steps, which few of the steps have.
TEST(TypicalSteps, AreALightAndAHeavyOneWhereFewHaveALongDocument) {
  std::string lengths = "data.lengths.values=[4096";
  for (int i = 0; i < 600; ++i) lengths += ", 256";
  const config::Experiment e =
      experiment({"data.max_document=4096", lengths + "]", "batch.microbatch=4096", "seed=3"});
  const config::Machine m = machine(1e-5);
  const auto corpus = data::open_corpus(e.data, e.model.vocab, e.seed);
  const config::Experiment any = arrangements(e).front().of(e);
  TypicalSteps steps(any, *corpus, m);
  std::vector<PackedStep>& both = steps.in_microbatches_of(any);
  ASSERT_EQ(both.size(), 2u);
  EXPECT_DOUBLE_EQ(both[0].share + both[1].share, 1);
  EXPECT_GT(both[0].share, both[1].share);
  const auto is_heavy = [](const data::Batch& batch) {  // the long one may be in two microbatches
    return std::ranges::max(batch.lengths()) >= 2048;
  };
  EXPECT_FALSE(is_heavy(both[0].batch));
  EXPECT_TRUE(is_heavy(both[1].batch));
  int heavy = 0;
  for (int step = 0; step < 15; ++step) {
    heavy += is_heavy(data::Packer(*corpus, any).batch(step)) ? 1 : 0;
  }
  EXPECT_LE(both[1].share, heavy / 15.0);  // those with a part of it may be of the light kind
  EXPECT_DOUBLE_EQ(mean_of(both, [](auto& step) { return step.model_flops; }),
                   both[0].share * both[0].model_flops + both[1].share * both[1].model_flops);
}

}  // namespace
}  // namespace cadenza::app::test_open_microbatch
