// SPDX-License-Identifier: Apache-2.0
// The best candidates of a search over several steps: the ratio's interval, and that the answer
// does not hang on one step.
#include "app/planner/search/finals.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <set>

#include "app/planner/predict/forecast.hpp"
#include "app/planner/search/search.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/cost/flops.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::app::test_finals {
namespace {

using ::testing::HasSubstr;

constexpr const char* kExperiment =
    "model: {layers: 4, d_model: 256, heads: 8, kv_heads: 4, ffn: 704, vocab: 512}\n"
    "data:\n"
    "  source: synthetic\n"
    "  documents: 5000\n"
    "  max_document: 4096\n"
    "  lengths: {distribution: lognormal, median: 512, sigma: 1.2}\n"
    "batch: {tokens: 32768, microbatch: 4096}\n"
    "parallel: {data: 4, pipeline: 1, tensor: 1, context: 1, shard: none}\n"
    "run: {recompute: none}\n"
    "attention: {placement: auto, servers: in_place}\n";

config::Experiment experiment(int seed) {
  return config::parse_experiment(kExperiment, "e.yaml", {"seed=" + std::to_string(seed)});
}

config::Machine machine() {
  config::Machine m;
  m.name = "of the test";
  m.element_wise.bytes_per_second = 1e11;
  m.links.inside.bytes_per_second = m.links.between.bytes_per_second = 1e10;
  return m;
}

std::unique_ptr<data::Corpus> corpus(const config::Experiment& e) {
  return data::open_corpus(e.data, e.model.vocab, e.seed);
}

data::Packer packer(const config::Experiment& e) {
  return {*corpus(e), e};
}

Judged judged(const config::Experiment& e, config::PlacementKind placement, double seconds) {
  Judged one;
  one.candidate = {e.parallel, e.attention, e.run.recompute, e.batch.microbatch};
  one.candidate.attention.placement = placement;
  one.candidate.attention.overlap = config::Overlap::none;
  one.first = one.seconds = seconds;
  one.work = 1;
  one.outcome = Outcome::simulated;
  one.fixed = std::numeric_limits<std::int64_t>::max();  // no more in a longer run
  return one;
}

Finals finals(const config::Experiment& e, const std::vector<Judged>& ranked,
              std::int64_t limit = 0, const std::vector<Judged>& leaner = {}) {
  return compare_over_steps(e, ranked, leaner, *corpus(e), machine(), Room(e, limit),
                            [](const std::string&) {});
}

TEST(StepRatio, IsThatOfTheSums) {
  const StepRatio ratio =
      ratio_of(std::vector{2.0, 4.0, 3.0, 3.0}, std::vector{1.0, 3.0, 2.0, 2.0});
  EXPECT_DOUBLE_EQ(ratio.value, 1.5);
  EXPECT_EQ(ratio.steps, 4);
  EXPECT_LT(ratio.low, 1.5);
  EXPECT_NEAR(ratio.low + ratio.high, 3, 1e-12);
  const StepRatio even = ratio_of(std::vector{2.0, 4.0, 6.0, 3.0}, std::vector{1.0, 2.0, 3.0, 1.5});
  EXPECT_EQ(even.low, 2);
  EXPECT_EQ(even.high, 2);
}

TEST(StepRatio, OfFewStepsNothingIsSure) {
  const StepRatio ratio = ratio_of(std::vector{2.0, 2.1, 2.0}, std::vector{1.0, 1.0, 1.0});
  EXPECT_TRUE(std::isinf(ratio.high));
  EXPECT_EQ(ratio.low, 0);
}

/// Of steps that differ by a fifth, whose times go together for the most part.
TEST(StepRatio, TheIntervalHasTheTruthIn95Of100) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> step(0, 0.2), own(0, 0.05);
  for (const int steps : {8, 16, 64}) {
    int inside = 0;
    constexpr int kDraws = 2000;
    for (int draw = 0; draw < kDraws; ++draw) {
      std::vector<double> longer, shorter;
      for (int i = 0; i < steps; ++i) {
        const double common = std::exp(step(random));
        longer.push_back(1.1 * common * std::exp(own(random)));
        shorter.push_back(common * std::exp(own(random)));
      }
      const StepRatio ratio = ratio_of(longer, shorter);
      inside += ratio.low <= 1.1 && 1.1 <= ratio.high;
    }
    EXPECT_NEAR(inside / double{kDraws}, 0.95, 0.015) << steps << " steps";
  }
}

TEST(Finals, TheMeanOfTheStepsDecidesWhateverOneStepSays) {
  const config::Experiment e = experiment(3);
  using config::PlacementKind;
  const Finals found =
      finals(e, {judged(e, PlacementKind::colocated, 1.0), judged(e, PlacementKind::cad, 1.2)});
  ASSERT_EQ(found.ranked.size(), 2u);
  EXPECT_EQ(found.ranked[0].candidate.attention.placement, PlacementKind::cad);
  EXPECT_GE(found.ranked[0].steps, 32) << "of less, intervals promise too much";
  std::array<double, 2> sums{};
  for (int step = 0; step < found.ranked[0].steps; ++step) {
    for (std::size_t i = 0; i < 2; ++i) {
      sums[i] += forecast(found.ranked[i].candidate.of(e), packer(e).batch(step), machine())
                     .result.seconds;
    }
  }
  EXPECT_NEAR(found.ranked[0].seconds * found.ranked[0].steps, sums[0], 1e-9 * sums[0]);
  EXPECT_NEAR(found.cad.value().value, sums[1] / sums[0], 1e-9);
}

/// The FLOPs of one step over the time of others were up to a seventh off.
TEST(Finals, CountTheModelFlopsOfTheirSteps) {
  const config::Experiment e = experiment(3);
  using config::PlacementKind;
  std::vector<Judged> ranked = {judged(e, PlacementKind::cad, 1.0),
                                judged(e, PlacementKind::colocated, 1.1)};
  for (Judged& one : ranked) one.model_flops = 1;  // of another step
  const Judged best = finals(e, ranked).ranked.front();
  double flops = 0;
  for (int step = 0; step < best.steps; ++step) {
    flops += cost::model_flops(e.model, e.attention, packer(e).batch(step).lengths());
  }
  EXPECT_NEAR(best.model_flops * best.steps, flops, 1e-9 * flops);
}

/// One step says nothing of which of two is faster; all rows are of the same steps.
TEST(Finals, WhoWasNoFinalistStandsAtTheScaleOfTheOthers) {
  const config::Experiment e = experiment(3);
  using config::PlacementKind;
  std::vector<Judged> ranked = {judged(e, PlacementKind::cad, 1.0),
                                judged(e, PlacementKind::cad, 1.0),  // has the plans of the first
                                judged(e, PlacementKind::colocated, 1.1),
                                judged(e, PlacementKind::colocated, 2.0)};  // too slow to enter
  const Finals found = finals(e, ranked);
  ASSERT_EQ(found.ranked.size(), 4u);
  EXPECT_GT(found.ranked[1].steps, 1) << "one step says too little to stand before others";
  EXPECT_EQ(found.ranked[2].steps, 1);
  EXPECT_NEAR(found.ranked[2].seconds, found.ranked.front().seconds, 1e-12);
  EXPECT_EQ(found.ranked[3].steps, 1);
  EXPECT_NEAR(found.ranked[3].seconds, 2 * found.ranked.front().seconds, 1e-12);
}

TEST(Finals, TheMeanHasAnInterval) {
  EXPECT_EQ(half_of_mean(std::vector{1.0, 2.0, 3.0}), 0) << "of few steps";
  const std::vector<double> seconds = {1, 3, 2, 2, 4, 0, 2, 2};
  EXPECT_NEAR(half_of_mean(seconds), 2.3646 * std::sqrt(10.0 / 7 / 8), 0.01);
}

TEST(Finals, WhatDoesNotFitInALaterStepDoesNotWin) {
  const config::Experiment e = experiment(3);
  using config::PlacementKind;
  const std::vector<Judged> ranked = {judged(e, PlacementKind::cad, 1.0),
                                      judged(e, PlacementKind::colocated, 1.1)};
  const std::int64_t most = finals(e, ranked).ranked[0].bytes;
  const std::int64_t first =
      forecast(ranked[0].candidate.of(e), packer(e).batch(0), machine()).peak_bytes();
  ASSERT_LT(first, most);
  const Finals found = finals(e, ranked, most - 1);
  ASSERT_EQ(found.too_large.size(), 1u);
  EXPECT_THAT(found.too_large[0].fullest, HasSubstr(", in step "));
  for (const Judged& one : found.ranked) {
    EXPECT_NE(one.candidate.attention.placement, PlacementKind::cad);
  }
}

/// With the most recomputation, which needs least memory.
Judged leaner_than(const Judged& one, double seconds) {
  Judged leaner = one;
  leaner.candidate.recompute = config::Recompute::layer;
  leaner.seconds = seconds;
  return leaner;
}

/// What all cad candidates but the leaner one need in a later step, and not in the first.
std::int64_t limit_of_first_step(const config::Experiment& e, const Judged& cad) {
  const std::int64_t most = finals(e, {cad}).ranked[0].bytes;
  EXPECT_LT(forecast(cad.candidate.of(e), packer(e).batch(0), machine()).peak_bytes(), most);
  EXPECT_LT(finals(e, {leaner_than(cad, 1)}).ranked[0].bytes, most);
  return most - 1;
}

/// The one with cad over more steps than one, against the one without over the same.
void expect_compared(const config::Experiment& e, const Finals& found) {
  const auto cad = std::ranges::find_if(
      found.ranked, [](const Judged& one) { return disaggregates(one.candidate); });
  ASSERT_NE(cad, found.ranked.end()) << "no cad is left";
  EXPECT_EQ(cad->candidate.recompute, config::Recompute::layer);
  EXPECT_EQ(cad->outcome, Outcome::simulated);
  ASSERT_TRUE(found.cad.has_value());
  ASSERT_GE(found.cad->steps, 8);
  EXPECT_EQ(cad->steps, found.cad->steps);
  double with = 0, without = 0;
  for (int step = 0; step < cad->steps; ++step) {
    const auto seconds = [&](const Candidate& one) {
      return forecast(one.of(e), packer(e).batch(step), machine()).result.seconds;
    };
    with += seconds(cad->candidate);
    without += seconds(judged(e, config::PlacementKind::colocated, 1).candidate);
  }
  EXPECT_NEAR(found.cad->value, without / with, 1e-9);
}

TEST(Finals, TheNextOfItsKindTakesThePlaceOfOneThatIsTooLarge) {
  const config::Experiment e = experiment(3);
  const Judged cad = judged(e, config::PlacementKind::cad, 1.0);
  std::vector<Judged> ranked(32, cad);  // as many as are finalists
  for (std::size_t i = 0; i < ranked.size(); ++i) ranked[i].plans = 2 + i;
  ranked.push_back(judged(e, config::PlacementKind::colocated, 1.1));
  ranked.push_back(leaner_than(cad, 1.2));
  const Finals found = finals(e, ranked, limit_of_first_step(e, cad));
  EXPECT_EQ(found.too_large.size(), 32u);
  expect_compared(e, found);
}

TEST(Finals, WhatNeedsLessWithTheSamePlansDoesToo) {
  const config::Experiment e = experiment(3);
  Judged cad = judged(e, config::PlacementKind::cad, 1.0);
  cad.plans = 1;
  Judged leaner = leaner_than(cad, 1.2), other = leaner;
  leaner.outcome = Outcome::bound;  // nobody simulated it
  other.plans = 2;                  // of a layout that is not ranked
  other.candidate.recompute = config::Recompute::mlp;
  const std::vector<Judged> ranked = {cad, judged(e, config::PlacementKind::colocated, 1.1)};
  const Finals found = finals(e, ranked, limit_of_first_step(e, cad), {other, leaner});
  EXPECT_EQ(found.too_large.size(), 1u);
  EXPECT_EQ(found.ranked.size(), 2u);
  expect_compared(e, found);
  EXPECT_EQ(finals(e, ranked, 0, {leaner}).ranked.size(), 2u) << "there was room for both";
}

/// One sample of documents said 0.82 to 1.07 in ten seeds.
TEST(Finals, TheAnswerIsThatOfOtherSeeds) {
  double least = 0, most = std::numeric_limits<double>::infinity();
  std::set<std::string> chosen;
  for (int seed = 1; seed <= (cadenza::testing::kSanitized ? 2 : 6); ++seed) {
    const config::Experiment e = experiment(seed);
    const Choice choice = search_layout(e, *corpus(e), machine());
    chosen.insert(std::string(config::word_of(choice.experiment.attention.placement)));
    const Finals found = finals(e, {judged(e, config::PlacementKind::cad, 1.0),
                                    judged(e, config::PlacementKind::colocated, 1.1)});
    const StepRatio& ratio = found.cad.value();
    EXPECT_LE(ratio.high - ratio.value, 0.02 * 1.5) << "seed " << seed;
    least = std::max(least, ratio.low);
    most = std::min(most, ratio.high);
  }
  EXPECT_EQ(chosen.size(), 1u);
  EXPECT_LT(least, most + 0.02) << "intervals of seeds are apart";
}

}  // namespace
}  // namespace cadenza::app::test_finals
