// SPDX-License-Identifier: Apache-2.0
// Placement auto: that it honours memory, that its bound is one, and what it says.
#include "app/planner/search/group.hpp"
#include "app/planner/search/room.hpp"
#include "app/planner/search/search.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <set>
#include <sstream>

#include "app/planner/predict/forecast.hpp"
#include "app/planner/search/candidates.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/simulate/least_time.hpp"
#include "unit/app/search_cases.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::app::test_search {
namespace {

using search_cases::choose;
using search_cases::corpus;
using search_cases::experiment;
using search_cases::kExperiment;
using search_cases::machine;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// With less left open where sanitizers watch.
config::Experiment experiment_of_all() {
  if (!cadenza::testing::kSanitized) return experiment();
  return experiment({"run.recompute=mlp", "parallel.shard=optimizer"});
}

data::Packer packer(const config::Experiment& e) {
  return {*corpus(e), e};
}

/// Those with dedicated servers too, with any number of them.
std::vector<Candidate> all_arrangements(const config::Experiment& e) {
  std::vector<Candidate> all = arrangements(e);
  std::ranges::copy(served_arrangements(e), std::back_inserter(all));
  return all;
}

std::int64_t bytes_of(const config::Experiment& e, const config::Machine& m) {
  return forecast(e, packer(e).batch(0), m).peak_bytes();
}

std::string refusal(const config::Experiment& e, const config::Machine& m) {
  try {
    choose(e, m);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "nothing was refused";
}

/// Largest bound over a simulated step, of every so many-th candidate.
double tightest_bound(const config::Experiment& e, const config::Machine& m = machine(),
                      std::size_t every = 1) {
  const data::Batch batch = packer(e).batch(0);
  simulate::LeastTime least(batch, e, m);
  double tightest = 0;
  std::size_t number = 0;
  for (const Candidate& arrangement : all_arrangements(e)) {
    for (const Candidate& one : variants(e, arrangement)) {
      if (number++ % every != 0) continue;
      const config::Experiment candidate = one.of(e);
      const double seconds = forecast(candidate, batch, m).result.seconds;
      const double bound = least.seconds(candidate);
      EXPECT_GT(bound, 0);
      EXPECT_LE(bound, seconds * (1 + 1e-9))
          << layout_text(one) << ", " << placement_text(one.attention) << ", recompute "
          << config::word_of(one.recompute);
      tightest = std::max(tightest, bound / seconds);
    }
  }
  return tightest;
}

TEST(LeastTime, NoCandidateIsFaster) {
  EXPECT_GT(tightest_bound(experiment_of_all()), 0.9);
}

TEST(LeastTime, NoSparseCandidateIsFaster) {
  const config::Experiment e =
      experiment({"run.recompute=mlp", "parallel.shard=optimizer", "attention.kind=vertical_slash",
                  "attention.sparse.columns=64", "attention.sparse.slashes=36",
                  "attention.sparse.block=32", "attention.sparse.dense_below=1000"});
  EXPECT_GT(tightest_bound(e), 0.5);
}

TEST(LeastTime, NoCandidateWithParameterShardsIsFaster) {
  const config::Experiment e = experiment({"run.recompute=mlp", "parallel.shard=parameters"});
  EXPECT_GT(tightest_bound(e), 0.9);
  config::Machine slow = machine();  // such that collectives take longest
  slow.links.inside.bytes_per_second = slow.links.between.bytes_per_second = 1e7;
  EXPECT_GT(tightest_bound(e, slow), 0.95);
}

// Rings pass on the keys that are seen and no others.
TEST(LeastTime, NoCandidateOverSlowLinksIsFaster) {
  config::Machine m = machine();
  m.links.between.bytes_per_second = 1e7;
  for (const std::string kind :
       {"{kind: full}", "{kind: window, window: 100}", "{kind: window, window: 2000, sinks: 10}",
        "{kind: prefix, prefix: 300}"}) {
    if (cadenza::testing::kSanitized && kind.starts_with("{kind: window")) continue;
    SCOPED_TRACE(kind);
    const config::Experiment e = experiment(
        {"run.recompute=mlp", "parallel.shard=optimizer",
         "attention=" + kind.substr(0, kind.size() - 1) + ", placement: auto, tolerance: 0.1}"});
    EXPECT_GT(tightest_bound(e, m), 0.3);
  }
}

/// Draws what a search may be given.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  config::Experiment experiment() {
    const std::int64_t heads = of({2, 4, 8});
    const std::int64_t microbatch = of({96, 512, 2048});
    const std::int64_t microbatches = of({2, 4, 8});
    const std::int64_t tokens = microbatch * microbatches;
    const std::int64_t longest = of({5, 60, microbatch / 2, microbatch});
    std::vector<std::string> settings = {
        fmt::format("model.layers={}", of({2, 3, 4})),
        fmt::format("model.heads={}", heads),
        fmt::format("model.kv_heads={}", std::min(heads, of({1, 2, 8}))),
        fmt::format("model.d_model={}", heads * of({8, 64})),
        fmt::format("data.lengths={{distribution: uniform, min: {}, max: {}}}", of({2, longest}),
                    longest),
        fmt::format("batch.tokens={}", tokens),
        fmt::format("batch.microbatch={}", microbatch),
        fmt::format("batch.packing={}", word({"fixed", "fixed", "balanced", "pooled"})),
        fmt::format("parallel.data={}", of({2, 4, 6, 8})),
        fmt::format("parallel.shard={}", word({"auto", "auto", "parameters"})),
        fmt::format("attention.tolerance={}", word({"0.02", "0.1", "0.3"})),
        fmt::format("attention.block={}", of({16, 128})),
        fmt::format("attention.sharding={}", word({"zigzag", "contiguous"})),
        fmt::format("attention.shard_unit={}", word({"document", "sequence", "predicted"})),
        fmt::format("attention.overlap={}", word({"auto", "none"})),
        fmt::format("cluster.slow_ranks={}", word({"[]", "[]", "[[1, 0.5]]"})),
        fmt::format("cluster.slow_links={}", word({"[]", "[]", "[[0, 1, 0.2]]"}))};
    add_kind(settings);
    return config::parse_experiment(kExperiment, "e.yaml", settings);
  }

  config::Machine machine() {
    config::Machine m;
    m.ranks_per_node = of({0, 2, 3, 4});
    m.element_wise.bytes_per_second = real(1e9, 1e11);
    m.links.inside = {real(1e-7, 1e-4), real(1e8, 1e11), 0, 0};
    m.links.between = {real(1e-7, 1e-4), real(1e8, 1e11), 0, 0};
    config::AttentionTimes& a = m.attention;
    a.launch_seconds = std::array{0.0, 1e-6, 1e-4, 1e-2}[random_() % 4];
    a.tile = of({1, 16, 128});
    a.tile_overhead = real(0.01, 2);
    a.heads = of({1, 4});
    if (coin()) {
      for (const double queries : {64, 256, 1024}) {
        for (const double keys : {64, 256, 1024, 4096}) {
          if (queries > keys) continue;
          const double seconds = 1e-9 * queries * keys * static_cast<double>(a.heads);
          a.forward.push_back({queries, keys, a.launch_seconds + seconds * real(0.5, 2)});
          a.backward.push_back({queries, keys, a.launch_seconds + 2 * seconds * real(0.5, 2)});
        }
      }
    }
    for (const double rows : {64, 256, 1024, 4096}) {
      if (coin()) m.products.table.push_back({rows, 256, 256, real(1e9, 1e11)});
    }
    return m;
  }

 private:
  void add_kind(std::vector<std::string>& settings) {
    switch (of({0, 0, 1, 2, 3, 4, 5})) {
      case 1:
        settings.insert(settings.end(), {"attention.kind=window", "attention.window=40"});
        if (coin()) settings.push_back("attention.layers=[window, full]");
        break;
      case 2:
        settings.insert(settings.end(), {"attention.kind=prefix", "attention.prefix=50"});
        break;
      case 3:
        settings.insert(settings.end(),
                        {"attention.kind=dual_chunk", "attention.chunk=64", "attention.local=16"});
        break;
      case 4:
        settings.insert(settings.end(),
                        {"attention.kind=vertical_slash", "attention.sparse.columns=20",
                         "attention.sparse.slashes=36", "attention.sparse.block=16",
                         "attention.sparse.dense_below=100"});
        if (coin()) settings.push_back("attention.layers=[vertical_slash, full]");
        break;
      case 5:
        settings.insert(settings.end(),
                        {"attention.kind=xattention", "attention.sparse.dense_below=100"});
        if (coin()) settings.push_back("attention.sparse.dense_steps=1");
        break;
    }
  }
  std::int64_t of(std::initializer_list<std::int64_t> all) {
    return all.begin()[random_() % all.size()];
  }
  const char* word(std::initializer_list<const char*> all) {
    return all.begin()[random_() % all.size()];
  }
  bool coin() { return random_() % 2 == 0; }
  /// Any order of magnitude is as likely.
  double real(double low, double high) {
    const double part = static_cast<double>(random_() >> 11) * 0x1.0p-53;
    return low * std::pow(high / low, part);
  }
  std::mt19937_64 random_;
};

TEST(LeastTime, NoCandidateIsFasterWhateverTheExperiment) {
  const std::size_t every = cadenza::testing::kSanitized ? 97 : 19;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Draw draw(seed);
    const config::Experiment e = draw.experiment();
    EXPECT_GE(tightest_bound(e, draw.machine(), every), 0);
  }
}

// The slowest stage may be any; cad has a pool for each.
TEST(LeastTime, NoListOfStagesIsFaster) {
  const config::Machine m = machine();
  for (const std::string placement : {"colocated", "cad"}) {
    for (const std::string stages : {"[]", "[4, 2, 1]", "[1, 5, 1]", "[1, 1, 5]"}) {
      for (const std::string chunks : {"1f1b", "interleaved"}) {
        std::vector<std::string> settings = {
            "model.layers=7", "batch.tokens=24576", "parallel={data: 1, pipeline: 3}",
            "parallel.schedule=" + chunks, "attention.placement=" + placement};
        if (chunks == "interleaved") settings.emplace_back("parallel.chunks=2");
        if (chunks == "1f1b") settings.push_back("parallel.stages=" + stages);
        if (chunks == "interleaved" && stages != "[]") {
          settings.emplace_back("parallel.stages=[1, 1, 1, 2, 1, 1]");
        }
        const config::Experiment e = experiment(settings);
        const data::Batch batch = packer(e).batch(0);
        const double seconds = forecast(e, batch, m).result.seconds;
        const double bound = simulate::LeastTime(batch, e, m).seconds(e);
        EXPECT_LE(bound, seconds * (1 + 1e-9)) << placement << " " << chunks << " " << stages;
        EXPECT_GT(bound, 0.7 * seconds) << placement << " " << chunks << " " << stages;
      }
    }
  }
}

/// Bytes that a long run may need, by what 32 of these steps do, which differ little.
std::int64_t need_of(const config::Experiment& e, const config::Machine& m) {
  Judged judged;
  judged.steps = 32;
  judged.bytes = bytes_of(e, m);
  judged.fixed = exec::least_memory(e).total();
  return need_of_run(judged);
}

/// Not only that of a few steps.
TEST(Choose, TheMachinesMemoryIsHonoured) {
  config::Machine m = machine();
  const Choice rich = choose(experiment(), m);
  EXPECT_THAT(rich.explanation, HasSubstr("memory limit unknown"));
  ASSERT_GT(need_of(rich.experiment, m), bytes_of(rich.experiment, m));
  m.memory = need_of(rich.experiment, m) - 1;
  const Choice poor = choose(experiment(), m);
  EXPECT_LE(need_of(poor.experiment, m), m.memory);
  EXPECT_THAT(poor.explanation, HasSubstr("do not fit into"));
  EXPECT_THAT(poor.explanation, HasSubstr("does not fit: "));
  EXPECT_THAT(poor.explanation, HasSubstr("(the machine's)"));
  // run.memory says less than the machine has: it is what counts.
  const Choice told = choose(experiment({fmt::format("run.memory={}", m.memory)}), machine());
  EXPECT_EQ(bytes_of(told.experiment, m), bytes_of(poor.experiment, m));
}

TEST(Choose, WhereNoneFitsItSaysWhichNeedsLeast) {
  config::Machine m = machine();
  m.memory = 1 << 20;
  EXPECT_THAT(
      refusal(experiment(), m),
      StartsWith("cluster.machine: found of the test with 1 MiB of memory per rank, but all "));
  EXPECT_THAT(refusal(experiment(), m), HasSubstr("the least is "));
  EXPECT_THAT(refusal(experiment(), m), HasSubstr("run.recompute layer, parallel.shard optimizer"));
  EXPECT_THAT(refusal(experiment({"run.memory=1000"}), m), StartsWith("run.memory: found 1000 B"));
}

TEST(Choose, WhereLittleFitsItIsFound) {
  config::Machine m = machine();
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  const config::Experiment e = experiment_of_all();
  for (const Candidate& arrangement : all_arrangements(e)) {
    for (const Candidate& one : variants(e, arrangement)) {
      least = std::min(least, need_of(one.of(e), m));
    }
  }
  m.memory = least;
  EXPECT_EQ(need_of(choose(e, m).experiment, m), least);
  m.memory = least - 1;
  EXPECT_THAT(refusal(e, m), AllOf(HasSubstr("the least is "), HasSubstr("a smaller batch")));
  m.memory = 1;
  EXPECT_THAT(refusal(e, m), HasSubstr("valid: more ranks: weights, gradients"));
}

// The best of all, found without looking at all.
TEST(Choose, NoCandidateThatFitsIsFaster) {
  const config::Experiment e = experiment_of_all();
  const config::Machine m = machine();
  const Choice choice = choose(e, m);
  const data::Batch batch = packer(e).batch(0);
  const double chosen = forecast(choice.experiment, batch, m).result.seconds;
  std::size_t all = 0;
  for (const Candidate& arrangement : all_arrangements(e)) {
    for (const Candidate& one : variants(e, arrangement)) {
      EXPECT_GE(forecast(one.of(e), batch, m).result.seconds, chosen * (1 - 1e-9));
      ++all;
    }
  }
  if (cadenza::testing::kSanitized) return;  // fewer are left out
  EXPECT_LT(static_cast<std::size_t>(choice.simulated), all / 4);
}

// Three microbatches on four devices that may not share one: a pipeline of four stages is idle half
// of the time, three trainers with a server are not.
TEST(Choose, ServersWhereTheyAreBest) {
  for (const std::string mixed : {"auto", "false"}) {
    const config::Experiment e =
        experiment({"batch.tokens=12288", "data.lengths.values=[1024]",
                    "parallel={data: 4, tensor: 1, context: 1}", "attention.mixed=" + mixed});
    const Choice choice = choose(e, machine());
    EXPECT_EQ(choice.experiment.parallel.data, 3);
    EXPECT_EQ(choice.experiment.attention.servers, 1);
    EXPECT_EQ(choice.experiment.attention.mixed, mixed == "auto");
    EXPECT_THAT(choice.explanation, HasSubstr("auto: 4 devices"));
    EXPECT_THAT(choice.explanation,
                HasSubstr(mixed == "auto" ? "context 1 + 1 mixed server, microbatch 4K,\n"
                                          : "context 1 + 1 server, microbatch 4K,\n"));
    EXPECT_THAT(choice.explanation, HasSubstr("--set attention.servers=1"));
    const auto in_place = [](const Considered& one) {
      return one.candidate.attention.servers == 0;
    };
    EXPECT_TRUE(std::ranges::any_of(choice.considered, in_place));
  }
}

TEST(Choose, EveryArrangementIsAccountedFor) {
  const config::Experiment e = experiment();
  const Choice choice = choose(e, machine());
  std::set<std::pair<std::string, std::string>> seen;
  int simulated = 0;
  for (const Considered& one : choice.considered) {
    seen.insert({layout_text(one.candidate), placement_text(one.candidate.attention)});
    simulated += one.status == "simulated";
    EXPECT_EQ(one.why.empty(), &one == &choice.considered.front());
    EXPECT_EQ(one.seconds > 0, one.status == "simulated" || one.status == "estimated");
    if (one.status == "excluded") {
      EXPECT_THAT(one.why, HasSubstr("lower bound "));
    }
  }
  std::vector<Candidate> searched = arrangements(e);
  std::ranges::copy_if(served_arrangements(e), std::back_inserter(searched), [&](const auto& one) {
    return std::ranges::any_of(choice.considered, [&](const Considered& other) {
      const config::Attention& a = other.candidate.attention;
      return a.servers == one.attention.servers && a.mixed == one.attention.mixed;
    });
  });
  EXPECT_GT(searched.size(), arrangements(e).size());
  EXPECT_EQ(seen.size(), searched.size());
  EXPECT_EQ(simulated, choice.simulated);
  EXPECT_EQ(choice.considered.front().candidate.parallel.data, choice.experiment.parallel.data);
}

TEST(Choose, TheTableIsRankedAndNarrow) {
  const Choice choice = choose(experiment(), machine());
  EXPECT_THAT(choice.explanation,
              StartsWith("auto: 8 devices, predicted for assumed 50 GFLOP/s, 5 GB/s"));
  EXPECT_THAT(choice.explanation, HasSubstr("cad is "));
  EXPECT_THAT(choice.explanation, HasSubstr("; chosen\n"));
  std::istringstream lines(choice.explanation);
  std::size_t losers = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    losers += line.find("; +") != std::string::npos;
  }
  EXPECT_GT(losers, 1u);
  config::Experiment e = experiment();
  e.cluster.machine = "inputs/machines/x.yaml";
  EXPECT_THAT(choose(e, machine()).explanation,
              HasSubstr("predicted for machine of the test (inputs/machines/x.yaml)"));
}

TEST(Choose, WhereNoCadFitsItSaysSo) {
  const config::Experiment e =
      experiment({"run.recompute=none", "parallel={data: 8, pipeline: 1, tensor: 1, context: 1}",
                  "attention.servers=in_place", "data.lengths.values=[4096, 512, 512, 3072]"});
  config::Machine m = machine();
  std::int64_t others = std::numeric_limits<std::int64_t>::max();
  for (const Candidate& arrangement : arrangements(e)) {
    if (disaggregates(arrangement)) continue;
    for (const Candidate& one : variants(e, arrangement)) {
      others = std::min(others, need_of(one.of(e), m));
    }
  }
  m.memory = others;
  EXPECT_THAT(choose(e, m).explanation, HasSubstr("no cad was simulated or estimated:\n"));
}

TEST(Choose, TheSameEveryTime) {
  const Choice first = choose(experiment(), machine());
  const Choice second = search_layout(experiment(), *corpus(experiment()), machine(), false);
  EXPECT_EQ(first.explanation, second.explanation);
  EXPECT_EQ(config::to_yaml(first.experiment), config::to_yaml(second.experiment));
  EXPECT_EQ(config::to_yaml(first.experiment).find("auto"),
            config::to_yaml(first.experiment).find("schedule: auto") + 10);  // nothing else is open
}

TEST(Choose, WhatCannotBeLaidOutIsRefused) {
  EXPECT_THAT(refusal(experiment({"parallel.data=7", "parallel.pipeline=1", "parallel.tensor=1",
                                  "parallel.context=1", "attention.servers=in_place"}),
                      machine()),
              StartsWith("attention.placement: found auto, but no layout of 7 trainers"));
}

TEST(Search, NamesTheScheduleOfStages) {
  using enum config::PipelineSchedule;
  const auto schedule = [](const std::string& placement, const std::string& stages) {
    const config::Experiment e =
        experiment({"parallel.data=2", "attention.placement=" + placement,
                    "parallel={data: 2, pipeline: " + stages + ", chunks: 1}"});
    return choose(e, machine()).experiment.parallel.schedule;
  };
  EXPECT_EQ(schedule("cad", "2"), phase_aligned);
  EXPECT_EQ(schedule("colocated", "2"), one_f_one_b);
  EXPECT_EQ(schedule("cad", "1"), automatic) << "all schedules are the same";
}

/// @param expected  0: it was not looked at yet
Group group_of(std::size_t family, config::PlacementKind placement, std::int64_t context,
               double bound, double expected = 0) {
  Group group;
  group.family = family;
  group.arrangement.attention.placement = placement;
  group.arrangement.parallel.context = context;
  group.variants.emplace_back();
  group.variants.front().bound = bound;
  group.variants.front().expected = expected;
  return group;
}

TEST(Ratios, OfAKnownLayoutAreItsLeastTimesWhatThePlacementTookElsewhere) {
  using enum config::PlacementKind;
  const std::vector<Group> known = {group_of(1, zigzag, 2, 1, 2), group_of(1, dynamic, 2, 2, 3),
                                    group_of(2, dynamic, 4, 1, 3), group_of(3, zigzag, 4, 1, 9)};
  const Ratios ratios(known);
  EXPECT_TRUE(ratios.knows_layout_of(group_of(2, zigzag, 4, 1)));
  EXPECT_DOUBLE_EQ(ratios.of(group_of(2, zigzag, 4, 1)), 3 * 2 / 1.5);  // as in layout 1
  EXPECT_DOUBLE_EQ(ratios.of(group_of(2, all_gather, 4, 1)), 3);        // never seen
  EXPECT_DOUBLE_EQ(ratios.of(group_of(3, dynamic, 4, 1)), 9);
  EXPECT_DOUBLE_EQ(ratios.least(), 2);
}

TEST(Ratios, OfAnUnknownLayoutAreThoseOfThePlacementInGroupsThatAreNotMuchSmaller) {
  using enum config::PlacementKind;
  const std::vector<Group> known = {group_of(1, dynamic, 2, 1, 1.25), group_of(2, dynamic, 8, 1, 2),
                                    group_of(3, dynamic, 32, 1, 3), group_of(4, cad, 2, 1, 4)};
  const Ratios ratios(known);
  EXPECT_FALSE(ratios.knows_layout_of(group_of(5, dynamic, 4, 1)));
  EXPECT_EQ(ratios.of(group_of(5, dynamic, 1, 1)), 1.25);
  EXPECT_EQ(ratios.of(group_of(5, dynamic, 4, 1)), 1.25);
  EXPECT_EQ(ratios.of(group_of(5, dynamic, 5, 1)), 2);
  EXPECT_EQ(ratios.of(group_of(5, dynamic, 64, 1)), 3);
  EXPECT_EQ(ratios.of(group_of(5, dynamic, 128, 1)), 3);  // the largest that was seen
  EXPECT_EQ(ratios.of(group_of(5, cad, 64, 1)), 4);
  EXPECT_EQ(ratios.of(group_of(5, zigzag, 2, 1)), 1);  // nothing like it was looked at
}

TEST(Ratios, AreOfWhatWasSimulatedWhereItWas) {
  std::vector<Group> known = {group_of(1, config::PlacementKind::dynamic, 2, 1, 5)};
  known.front().variants.front().outcome = Outcome::simulated;
  known.front().variants.front().first = 2;
  EXPECT_EQ(Ratios(known).of(known.front()), 2);
}

}  // namespace
}  // namespace cadenza::app::test_search
