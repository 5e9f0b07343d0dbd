// SPDX-License-Identifier: Apache-2.0
// Steps estimated on a part: what the part is, and how near the estimates of many candidates come
// to their simulation in full.
#include "app/planner/predict/sample.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "app/planner/predict/forecast.hpp"
#include "app/planner/search/candidates.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/simulate/least_time.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::app::test_sample {
namespace {

config::Experiment experiment(const std::vector<std::string>& overrides = {}) {
  return config::parse_experiment(
      "model: {layers: 8, d_model: 1024, heads: 16, kv_heads: 8, ffn: 2816, vocab: 4096}\n"
      "data:\n"
      "  source: synthetic\n"
      "  lengths: {distribution: list, values: [16384, 1024, 512, 8192, 512, 3584, 3072, 1024]}\n"
      "batch: {tokens: 262144, microbatch: 16384}\n"
      "parallel: {data: 8, tensor: 8}\n"
      "attention: {placement: auto}\n",
      "e.yaml", overrides);
}

config::Machine machine() {
  config::Machine m;
  m.ranks_per_node = 8;
  m.element_wise.bytes_per_second = 1e12;
  m.attention.launch_seconds = 1e-5;
  m.links.inside = {2e-6, 2e11, 0, 0};
  m.links.between = {5e-6, 2e10, 0, 0};
  return m;
}

data::Batch batch_of(const config::Experiment& e) {
  return data::Packer(*data::open_corpus(e.data, e.model.vocab, e.seed), e).batch(0);
}

/// One of how many layouts and placements is looked at.
constexpr std::size_t kEvery = cadenza::testing::kSanitized ? 4 : 1;

struct Pair {
  std::string name;
  double estimated = 0;
  double simulated = 0;
  double error() const { return estimated / simulated - 1; }
};

/// Of the layouts and placements of 64 ranks.
std::vector<Pair> all_pairs(SampleSize size) {
  const config::Experiment given = experiment();
  const data::Batch batch = batch_of(given);
  const config::Machine m = machine();
  const simulate::LeastTime least(batch, given, m);
  const std::vector<double> attention = least.attention();
  std::vector<Pair> pairs;
  std::size_t number = 0;
  std::vector<Candidate> all = arrangements(given);
  std::ranges::copy(served_arrangements(given), std::back_inserter(all));
  for (const Candidate& arrangement : all) {
    if (number++ % kEvery != 0) continue;
    const config::Experiment e = arrangement.of(given);
    const Sample sample = sample_of(e, batch, attention, size);
    const auto tick_plans = program::plan_ticks(sample.experiment, sample.batch);
    pairs.push_back({layout_text(arrangement) + ", " + placement_text(arrangement.attention),
                     estimate(sample, tick_plans, least.seconds(e), m).seconds,
                     forecast(e, batch, m).result.seconds});
  }
  return pairs;
}

TEST(Sample, KeepsTheSlowestOrTheMiddle) {
  const config::Experiment given = experiment();
  const data::Batch batch = batch_of(given);
  std::vector<double> attention(batch.microbatches.size(), 1.0);
  attention[5] = 9;  // of data rank 5 of 8
  for (const Candidate& one : arrangements(given)) {
    if (one.parallel.data != 8) continue;
    const Sample sample = sample_of(one.of(given), batch, attention, {4, 1});
    const bool pooled = disaggregates(one);
    ASSERT_EQ(sample.experiment.parallel.data, pooled ? 4 : 1);
    EXPECT_EQ(sample.batch.microbatches.size(), pooled ? 4u : 1u);
    EXPECT_EQ(sample.parts, pooled ? 4 : 16);
    EXPECT_EQ(sample.turns, 2);
    EXPECT_EQ(sample.batch.tokens(), sample.experiment.batch.tokens);
    if (pooled) continue;
    const auto is_slowest = [&](const data::Microbatch& m) {
      return m.documents == batch.microbatches[5].documents ||
             m.documents == batch.microbatches[13].documents;
    };
    EXPECT_TRUE(std::ranges::any_of(sample.batch.microbatches, is_slowest));
  }
}

TEST(Sample, KeepsTheShareOfDedicatedServers) {
  const config::Experiment given = experiment({"parallel.data=12"});
  const std::vector<double> attention(16, 1.0);
  for (const Candidate& one : served_arrangements(given)) {
    const config::Experiment e = one.of(given);
    const config::Experiment sample = sample_of(e, batch_of(given), attention, {1, 1}).experiment;
    EXPECT_EQ(sample.attention.servers * e.parallel.data,
              e.attention.servers * sample.parallel.data);
    EXPECT_EQ(sample.attention.servers % e.parallel.tensor, 0);
    if (e.parallel.data == 8 && e.attention.servers == 32) {
      EXPECT_EQ(sample.parallel.data, 2);
    }
  }
}

TEST(Sample, AllOfAStepIsTheStep) {
  const config::Experiment given = experiment();
  const data::Batch batch = batch_of(given);
  const std::vector<double> attention(batch.microbatches.size(), 1.0);
  for (const Candidate& one : arrangements(given)) {
    const Sample sample = sample_of(one.of(given), batch, attention, {1024, 1024});
    EXPECT_EQ(sample.parts, 1);
    EXPECT_EQ(sample.turns, 1);
    EXPECT_EQ(sample.experiment.parallel.data, one.parallel.data);
  }
}

TEST(Sample, EstimatesRankAsSimulationsDo) {
  std::vector<Pair> pairs = all_pairs({64, 1});
  ASSERT_GT(pairs.size(), 30u / kEvery);
  double most = 0, sum = 0;
  for (const Pair& pair : pairs) {
    most = std::max(most, std::abs(pair.error()));
    sum += std::abs(pair.error());
    EXPECT_LT(std::abs(pair.error()), 0.2)
        << pair.name << ": " << pair.estimated << " estimated, " << pair.simulated << " simulated";
  }
  RecordProperty("largest_error", std::to_string(most));
  RecordProperty("mean_error", std::to_string(sum / static_cast<double>(pairs.size())));
  EXPECT_LT(sum / static_cast<double>(pairs.size()), 0.05);
  const Pair fastest = *std::ranges::min_element(pairs, {}, &Pair::simulated);
  EXPECT_LT(fastest.error(), 0.05) << "a search would not simulate it";
  std::ranges::sort(pairs, {}, &Pair::estimated);
  const auto place = std::ranges::find(pairs, fastest.name, &Pair::name) - pairs.begin();
  EXPECT_LT(place, 5) << fastest.name;
  RecordProperty("place_of_the_best", static_cast<int>(place + 1));
}

}  // namespace
}  // namespace cadenza::app::test_sample
