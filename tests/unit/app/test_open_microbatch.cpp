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
#include "app/planner/search/typical_step.hpp"
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

/// Seconds of the first steps, mean.
double seconds_of(const Candidate& candidate, const config::Experiment& given,
                  const config::Machine& m, std::int64_t& bytes) {
  constexpr int kSteps = 3;
  const config::Experiment e = candidate.of(given);
  const data::Packer packer(*data::open_corpus(e.data, e.model.vocab, e.seed), e);
  double seconds = 0;
  for (int step = 0; step < kSteps; ++step) {
    const Forecast found = forecast(e, packer.batch(step), m);
    seconds += found.result.seconds / kSteps;
    bytes = std::max(bytes, found.peak_bytes());
  }
  return seconds;
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
    for (const std::int64_t memory : {std::int64_t{0}, std::int64_t{60} << 20}) {
      SCOPED_TRACE(fmt::format("launch {} s, {} bytes", launch_seconds, memory));
      config::Machine m = machine(launch_seconds);
      m.memory = memory;
      const Choice choice = choose(e, m);
      const Candidate& best = choice.considered.front().candidate;
      chosen.insert(best.microbatch);
      EXPECT_EQ(choice.experiment.batch.microbatch, best.microbatch);
      EXPECT_FALSE(choice.experiment.batch.microbatch_open);
      std::int64_t bytes = 0;
      const double seconds = seconds_of(best, e, m, bytes);
      EXPECT_TRUE(memory == 0 || bytes <= memory);
      for (const Candidate& other : all_candidates(e)) {
        std::int64_t needed = 0;
        const double others = seconds_of(other, e, m, needed);
        if (memory == 0 || needed <= memory) {
          EXPECT_GE(others, 0.98 * seconds)
              << layout_text(other) << ", " << placement_text(other.attention);
        }
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
TEST(TypicalStep, IsTheSameInMicrobatchesOfAnySize) {
  const config::Experiment e = experiment({"data.max_document=4096", "data.lengths.values=[700]"});
  const config::Machine m = machine(1e-5);
  const auto corpus = data::open_corpus(e.data, e.model.vocab, e.seed);
  config::Experiment small = arrangements(e).front().of(e), large = small;
  small.batch.microbatch = 512;
  large.batch.microbatch = 2048;
  TypicalStep step(small, *corpus, m);
  const PackedStep& of_small = step.in_microbatches_of(small);
  const PackedStep& of_large = step.in_microbatches_of(large);
  EXPECT_EQ(of_small.batch.step, of_large.batch.step);
  EXPECT_EQ(of_small.batch.microbatches.size(), 64u);
  EXPECT_EQ(of_large.batch.microbatches.size(), 16u);
  EXPECT_LT(of_small.model_flops, of_large.model_flops);
  EXPECT_EQ(&step.in_microbatches_of(small), &of_small);
}

}  // namespace
}  // namespace cadenza::app::test_open_microbatch
