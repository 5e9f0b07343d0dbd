// SPDX-License-Identifier: Apache-2.0
// Steps estimated on a part: what the part is, and how near the estimates of many candidates come
// to their simulation in full.
#include "app/planner/predict/sample.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>

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

Pair pair_of(const config::Experiment& given, const data::Batch& batch, const config::Machine& m,
             const Candidate& one, SampleSize size) {
  const config::Experiment e = one.of(given);
  simulate::LeastTime least(batch, given, m);
  const Sample sample = sample_of(e, batch, least.attention(), size);
  const auto tick_plans = program::plan_ticks(sample.experiment, sample.batch, m);
  return {layout_text(one) + ", " + placement_text(one.attention),
          estimate(sample, tick_plans, least.seconds(e), m).seconds,
          forecast(e, batch, m).result.seconds};
}

/// Layouts and placements of 64 ranks.
std::vector<Candidate> all_of(const config::Experiment& given) {
  std::vector<Candidate> all = arrangements(given);
  std::ranges::copy(served_arrangements(given), std::back_inserter(all));
  return all;
}

std::vector<Pair> all_pairs(SampleSize size) {
  const config::Experiment given = experiment();
  std::vector<Pair> pairs;
  std::size_t number = 0;
  for (const Candidate& arrangement : all_of(given)) {
    if (number++ % kEvery == 0) {
      pairs.push_back(pair_of(given, batch_of(given), machine(), arrangement, size));
    }
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

TEST(Sample, OfAPoolHasTheMeanAttention) {
  const config::Experiment given = experiment();
  const data::Batch batch = batch_of(given);
  std::vector<double> attention(batch.microbatches.size());
  std::ranges::generate(attention, [seconds = 1.0]() mutable { return seconds *= 1.1; });
  const double mean = std::accumulate(attention.begin(), attention.end(), 0.0) /
                      static_cast<double>(attention.size());
  int sampled = 0;
  for (const Candidate& one : arrangements(given)) {
    const Sample sample = sample_of(one.of(given), batch, attention, {4, 2});
    if (!disaggregates(one) || sample.parts < 2) continue;
    double sum = 0;
    for (const data::Microbatch& chosen : sample.batch.microbatches) {
      const auto at =
          std::ranges::find(batch.microbatches, chosen.documents, &data::Microbatch::documents);
      sum += attention[static_cast<std::size_t>(at - batch.microbatches.begin())];
    }
    EXPECT_NEAR(sum / static_cast<double>(sample.batch.microbatches.size()), mean, 0.08 * mean)
        << layout_text(one) << ": " << sample.text;
    ++sampled;
  }
  EXPECT_GT(sampled, 10);
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
    EXPECT_EQ(sample.turns, 1);
    if (!disaggregates(one)) {  // a replica is like the others
      EXPECT_LE(sample.experiment.parallel.data, 8);
      continue;
    }
    EXPECT_EQ(sample.parts, 1);
    EXPECT_EQ(sample.experiment.parallel.data, one.parallel.data);
  }
}

TEST(Sample, EstimatesRankAsSimulationsDo) {
  std::vector<Pair> pairs = all_pairs({64, 2});
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

config::Machine h100() {
  const auto path =
      std::filesystem::path(__FILE__).parent_path() / "../../../inputs/machines/h100.yaml";
  std::ifstream file(path);
  return config::parse_machine({std::istreambuf_iterator<char>(file), {}}, path.string());
}

/// Documents of many lengths, few of them long, on fast processors: no microbatch is like another,
/// and much of a step is messages.
TEST(Sample, EstimatesOfRandomLayoutsAreNear) {
  std::mt19937_64 random(5);
  int near = 0, cad = 0, all = 0;
  for (const int seed : {1, 2, 3}) {
    const config::Experiment given = experiment(
        {"model={layers: 8, d_model: 5120, heads: 40, ffn: 13824, vocab: 32000}",
         "data.lengths={distribution: lognormal, median: 1024, sigma: 2}", "data.documents=20000",
         "data.max_document=131072", "batch={tokens: 2097152, microbatch: 131072}",
         "parallel={data: 8, tensor: 8}", "seed=" + std::to_string(seed)});
    std::vector<Candidate> some = all_of(given);
    std::ranges::shuffle(some, random);
    some.resize(cadenza::testing::kSanitized ? 6 : 20);
    for (const Candidate& one : some) {
      const Pair pair = pair_of(given, batch_of(given), h100(), one, {64, 4});
      EXPECT_LT(std::abs(pair.error()), 0.25) << pair.name;
      near += std::abs(pair.error()) <= 0.1;
      cad += disaggregates(one);
      ++all;
    }
  }
  RecordProperty("near", near);
  EXPECT_GT(cad, all / 3);
  EXPECT_GE(near, 0.95 * all);
}

}  // namespace
}  // namespace cadenza::app::test_sample
