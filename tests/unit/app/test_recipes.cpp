// SPDX-License-Identifier: Apache-2.0
// Layouts in the words of other stacks: the same degrees, only words that the stacks know, and what
// they do not have is said.
#include "app/planner/advise/recipes.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "app/planner/search/candidates.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app::test_recipes {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::int64_t kSequence = 4096;

config::Experiment experiment(const std::vector<std::string>& overrides = {}) {
  return config::parse_experiment(
      "model: {layers: 8, d_model: 256, heads: 8, kv_heads: 4, ffn: 704, vocab: 512}\n"
      "data: {source: synthetic, max_document: 4096}\n"
      "batch: {tokens: 65536, microbatch: 4096}\n"
      "parallel: {data: 16, tensor: auto}\n"
      "run: {dtype: bfloat16}\n"
      "attention: {placement: auto}\n",
      "e.yaml", overrides);
}

/// Every candidate of the experiment, with all ways to save memory.
std::vector<config::Experiment> all_candidates(const std::string& software) {
  const config::Experiment given =
      experiment({"cluster.software=" + software, "batch.microbatch=auto"});
  std::vector<config::Experiment> all;
  std::vector<Candidate> layouts = arrangements(given);
  std::ranges::move(served_arrangements(given), std::back_inserter(layouts));
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const Candidate layout = layouts[i];
    if (const auto larger = with_larger_microbatch(given, layout)) layouts.push_back(*larger);
    for (const Candidate& variant : variants(given, layout)) all.push_back(variant.of(given));
  }
  return all;
}

/// The names in a file of tests/end_to_end/data.
std::set<std::string> names_in(const char* file) {
  const auto tests = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
  std::ifstream stream(tests / "end_to_end/data" / file);
  std::set<std::string> names;
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) names.insert(word);
  }
  EXPECT_GT(names.size(), 50u);
  return names;
}

/// The number behind a word of a text; 0 where it is not there.
std::int64_t number(const std::string& text, const std::string& word) {
  const std::size_t place = text.find(word + ' ');
  if (place == std::string::npos) return 0;
  const std::size_t digit = text.find_first_of("0123456789", place + word.size());
  return std::stoll(text.substr(digit));
}

TEST(Recipes, MegatronHasArgumentsThatItKnowsAndTheSameDegrees) {
  const std::set<std::string> known = names_in("megatron_arguments.txt");
  int same = 0;
  for (const config::Experiment& e : all_candidates("megatron")) {
    const Recipe recipe = megatron_recipe(e, kSequence, 4);
    std::istringstream words(recipe.text.substr(recipe.text.find('\n')));
    for (std::string word; words >> word;) {
      if (!word.starts_with("--")) continue;
      ASSERT_TRUE(known.contains(word.substr(2))) << word;
    }
    const config::Parallel& p = e.parallel;
    EXPECT_EQ(number(recipe.text, "--tensor-model-parallel-size"), p.tensor);
    EXPECT_EQ(number(recipe.text, "--pipeline-model-parallel-size"), p.pipeline);
    EXPECT_EQ(number(recipe.text, "--context-parallel-size"), p.context);
    EXPECT_EQ(number(recipe.text, "--nnodes") * number(recipe.text, "--nproc-per-node"),
              p.trainers());
    EXPECT_EQ(number(recipe.text, "--global-batch-size"), 16);
    const bool one_by_one = recipe.text.find("--hybrid-context-parallel") != std::string::npos;
    EXPECT_EQ(number(recipe.text, "--micro-batch-size"),
              one_by_one ? 1 : e.batch.microbatch / kSequence);
    same += recipe.same() ? 1 : 0;
    const bool cad = config::disaggregates(e.attention.placement);
    EXPECT_TRUE(!cad || !recipe.same()) << recipe.text;
  }
  EXPECT_GT(same, 20);
}

TEST(Recipes, TorchtitanHasKeysThatItKnowsAndTheSameDegrees) {
  const std::set<std::string> known = names_in("torchtitan_keys.txt");
  int same = 0;
  for (const config::Experiment& e : all_candidates("torchtitan")) {
    const Recipe recipe = torchtitan_recipe(e, kSequence);
    std::istringstream lines(recipe.text);
    std::string section;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with('[')) section = line.substr(1, line.size() - 2);
      const std::size_t equals = line.find(" =");
      if (equals == std::string::npos) continue;
      ASSERT_TRUE(known.contains(section + "." + line.substr(0, equals))) << line;
    }
    const config::Parallel& p = e.parallel;
    EXPECT_EQ(number(recipe.text, "tensor_parallel_degree"), p.tensor);
    EXPECT_EQ(number(recipe.text, "\npipeline_parallel_degree"), p.pipeline);
    EXPECT_EQ(number(recipe.text, "context_parallel_degree"), p.context);
    EXPECT_EQ(number(recipe.text, "data_parallel_replicate_degree") *
                  number(recipe.text, "data_parallel_shard_degree"),
              p.data);
    // A pipeline takes all sequences of a rank and cuts them itself.
    const bool cuts = p.pipeline > 1;
    EXPECT_EQ(kSequence * number(recipe.text,
                                 cuts ? "pipeline_parallel_microbatch_size" : "local_batch_size"),
              e.batch.microbatch);
    EXPECT_TRUE(!cuts || number(recipe.text, "local_batch_size") * p.data == 16);
    same += recipe.same() ? 1 : 0;
  }
  EXPECT_GT(same, 5);
}

TEST(Recipes, SayPlacementsRecomputationAndStages) {
  const auto megatron = [](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"parallel.data=1", "parallel.tensor=1", "parallel.context=4",
                                    "attention.placement=zigzag"};
    all.insert(all.end(), more.begin(), more.end());
    return megatron_recipe(experiment(all), kSequence, 8);
  };
  EXPECT_THAT(megatron({}).text, HasSubstr("--cp-comm-type p2p"));
  EXPECT_THAT(megatron({"attention.placement=all_gather"}).text,
              HasSubstr("--cp-comm-type all_gather"));
  EXPECT_THAT(megatron({"attention.placement=ulysses"}).text, HasSubstr("--cp-comm-type a2a "));
  EXPECT_THAT(megatron({"attention.placement=ulysses_ring", "attention.head_parallel=2"}).text,
              HasSubstr("--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2"));
  EXPECT_THAT(megatron({"attention.placement=striped"}).missing, ElementsAre("placement striped"));
  EXPECT_THAT(megatron({"attention.placement=cad", "attention.servers=2"}).missing,
              ElementsAre("placement cad", "2 attention servers"));
  EXPECT_THAT(megatron({"run.recompute=layer"}).text, HasSubstr("--recompute-granularity full"));
  EXPECT_THAT(megatron({"parallel.shard=optimizer"}).text,
              HasSubstr("--use-distributed-optimizer"));
  EXPECT_THAT(megatron({"parallel.pipeline=3", "parallel.stages=[2,4,2]"}).text,
              HasSubstr("--pipeline-model-parallel-layout 'Et*2|t*4|t*2L'"));
  EXPECT_THAT(megatron({"parallel.pipeline=2", "parallel.chunks=2"}).text,
              HasSubstr("--num-virtual-stages-per-pipeline-rank 2"));
}

/// What Megatron-LM's arguments.py, initialize.py and data sets demand of hybrid context
/// parallelism.
TEST(Recipes, MegatronFindsADegreeForEachDocumentByItself) {
  const auto dynamic = [](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"parallel.data=2",
                                    "parallel.tensor=2",
                                    "parallel.context=4",
                                    "batch.microbatch=8192",
                                    "batch.packing=pooled",
                                    "batch.longest=1.25",
                                    "attention.placement=dynamic"};
    all.insert(all.end(), more.begin(), more.end());
    return megatron_recipe(experiment(all), kSequence, 8);
  };
  const Recipe recipe = dynamic({});
  EXPECT_THAT(recipe.missing, IsEmpty());
  EXPECT_THAT(recipe.text,
              HasSubstr("--hybrid-context-parallel --max-seqlen-per-dp-cp-rank 2560 "));
  for (const char* needed : {"--calculate-per-token-loss", "--micro-batch-size 1 ", "--sft ",
                             "--no-create-attention-mask-in-dataloader"}) {
    EXPECT_THAT(recipe.text, HasSubstr(needed));
  }
  for (const char* forbidden : {"--tp-comm-overlap", "--reset-position-ids", "--use-megatron-fsdp",
                                "--reset-attention-mask", "--cp-comm-type"}) {
    EXPECT_THAT(recipe.text, Not(HasSubstr(forbidden)));
  }
  EXPECT_THAT(recipe.notes, Contains(HasSubstr("by its length, not by its cost")));
  EXPECT_THAT(recipe.notes, Contains(HasSubstr("--tp-comm-overlap is left out")));
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"parallel.pipeline=2"},
        {"parallel.shard=parameters", "cluster.software=megatron"},
        {"parallel.data=3", "batch.tokens=24576"}}) {
    const Recipe other = dynamic(more);
    EXPECT_THAT(other.missing, ElementsAre(HasSubstr("placement dynamic with"))) << more.front();
    EXPECT_THAT(other.text, Not(HasSubstr("--hybrid-context-parallel")));
    EXPECT_THAT(other.text, HasSubstr("--micro-batch-size 2 "));
  }
}

TEST(Recipes, TorchtitanSaysWhatItLacks) {
  const auto missing = [](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"parallel.tensor=1", "attention.placement=colocated"};
    all.insert(all.end(), more.begin(), more.end());
    return torchtitan_recipe(experiment(all), kSequence).missing;
  };
  EXPECT_THAT(missing({}), IsEmpty());
  EXPECT_THAT(missing({"parallel.shard=parameters"}), IsEmpty());
  EXPECT_THAT(missing({"parallel.shard=optimizer"}), ElementsAre(HasSubstr("ZeRO stage 1")));
  EXPECT_THAT(missing({"run.recompute=mlp"}), ElementsAre(HasSubstr("recompute mlp")));
  EXPECT_THAT(missing({"attention.placement=cad"}), ElementsAre("placement cad"));
  EXPECT_THAT(missing({"parallel.tensor=2"}), ElementsAre(HasSubstr("whole replicas")));
  EXPECT_THAT(missing({"parallel.tensor=2", "parallel.data=1"}), IsEmpty());
  EXPECT_THAT(missing({"parallel.context=2", "attention.placement=all_gather"}),
              ElementsAre(HasSubstr("whole parameters")));
  EXPECT_THAT(missing({"parallel.context=2", "attention.placement=all_gather",
                       "parallel.shard=parameters"}),
              IsEmpty());
}

TEST(Recipes, SayWhatQwenHasBesideLlama) {
  const std::vector<std::string> plain = {"parallel.tensor=1", "attention.placement=colocated"};
  EXPECT_THAT(megatron_recipe(experiment(plain), kSequence, 4).text, Not(HasSubstr("qkv")));
  std::vector<std::string> biased = plain;
  biased.emplace_back("model.qkv_bias=true");
  std::vector<std::string> normed = plain;
  normed.emplace_back("model.qk_norm=true");
  const Recipe megatron = megatron_recipe(experiment(biased), kSequence, 4);
  EXPECT_THAT(megatron.text, HasSubstr(" --disable-bias-linear --add-qkv-bias"));
  EXPECT_THAT(megatron_recipe(experiment(normed), kSequence, 4).text,
              HasSubstr(" --disable-bias-linear --qk-layernorm"));
  const std::set<std::string> known = names_in("megatron_arguments.txt");
  EXPECT_TRUE(known.contains("add-qkv-bias") && known.contains("qk-layernorm"));
  EXPECT_THAT(torchtitan_recipe(experiment(normed), kSequence).missing,
              ElementsAre("norms of Q and K"));
  EXPECT_THAT(torchtitan_recipe(experiment(biased), kSequence).missing,
              ElementsAre("biases of Q, K and V"));
}

TEST(Recipes, CadenzaRunsItsOwnProgram) {
  const std::vector<std::string> layout = {"parallel.tensor=1", "attention.placement=colocated",
                                           "cluster.software=megatron"};
  const Recipe recipe = cadenza_recipe(experiment(layout));
  EXPECT_TRUE(recipe.same());
  EXPECT_TRUE(config::parse_experiment(recipe.text, "e.yaml", {}).cluster.software.is_own());
  std::vector<std::string> sharded = layout;
  sharded.emplace_back("parallel.shard=parameters");
  EXPECT_FALSE(cadenza_recipe(experiment(sharded)).same());
}

}  // namespace
}  // namespace cadenza::app::test_recipes
