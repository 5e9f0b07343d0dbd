// SPDX-License-Identifier: Apache-2.0
#include "cadenza/config/sweep.hpp"

#include "support.hpp"

namespace cadenza::config::test_sweep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kSweep =
    "name: grid\n"                                                      // 1
    "title: a grid\n"                                                   // 2
    "base: e.yaml\n"                                                    // 3
    "steps: 3\n"                                                        // 4
    "set: {data.source: synthetic}\n"                                   // 5
    "axes:\n"                                                           // 6
    "  system:\n"                                                       // 7
    "    cad: {attention.placement: cad, attention.tolerance: 0.05}\n"  // 8
    "    ring: {attention.placement: ring}\n"                           // 9
    "  parallel.context: [1, 2]\n"                                      // 10
    "rules:\n"                                                          // 11
    "  - {when: {system: ring, parallel.context: 1}, skip: true}\n"     // 12
    "  - {when: {parallel.context: [2]}, set: {run.steps: 5}}\n"        // 13
    "report: {anything: [1, 2]}\n";                                     // 14

std::string with(const std::string& from, const std::string& to) {
  std::string text = kSweep;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

template <typename Action>
std::string complaint(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

std::string complaint_about(const std::string& text) {
  return complaint([&] { parse_sweep(text, "s.yaml"); });
}

Experiment experiment_with(const Settings& settings, const Overrides& overrides = {}) {
  return experiment_of({{}, settings}, parse_base(kGood, "e.yaml"), overrides);
}

std::string complaint_of(const Settings& settings) {
  return complaint([&] { experiment_with(settings); });
}

TEST(Sweep, IsRead) {
  const Sweep sweep = parse_sweep(kSweep, "s.yaml");
  EXPECT_EQ(sweep.name, "grid");
  EXPECT_EQ(sweep.title, "a grid");
  EXPECT_EQ(sweep.base, "e.yaml");
  EXPECT_EQ(sweep.steps, 3);
  ASSERT_EQ(sweep.axes.size(), 2u);
  EXPECT_THAT(sweep.axes[0].values[0].settings,
              ElementsAre("attention.placement=cad", "attention.tolerance=0.05"));
  EXPECT_EQ(sweep.axes[1].name, "parallel.context");
  EXPECT_THAT(sweep.axes[1].values[1].settings, ElementsAre("parallel.context=2"));
}

TEST(Sweep, PointsAreAllCombinationsButSkippedOnes) {
  const auto points = points_of(parse_sweep(kSweep, "s.yaml"));
  ASSERT_EQ(points.size(), 3u);
  EXPECT_THAT(points[0].labels, ElementsAre("cad", "1"));
  EXPECT_THAT(points[1].labels, ElementsAre("cad", "2"));
  EXPECT_THAT(points[2].labels, ElementsAre("ring", "2"));
  EXPECT_THAT(points[0].settings, ElementsAre("data.source=synthetic", "attention.placement=cad",
                                              "attention.tolerance=0.05", "parallel.context=1"));
  EXPECT_EQ(points[2].settings.back(), "run.steps=5") << "rules come last";
  EXPECT_EQ(points_of(parse_sweep("base: e.yaml\n", "s.yaml")).size(), 1u);
}

TEST(Sweep, ValuesKeepTheirTypes) {
  const auto points = points_of(parse_sweep(
      "base: e.yaml\nset: {name: '2', optimizer.betas: [0.8, 0.9], data: {source: text, path: "
      "[\"it's\"]}}\n",
      "s.yaml"));
  const Experiment e = experiment_of(points[0], parse_base(kGood, "e.yaml"), {});
  EXPECT_EQ(e.name, "2");
  EXPECT_THAT(e.optimizer.betas, ElementsAre(0.8, 0.9));
  EXPECT_THAT(e.data.path, ElementsAre("it's"));
}

TEST(Sweep, SaysWhatIsWrongAndWhere) {
  EXPECT_THAT(complaint_about(with("steps", "stepz")),
              StartsWith("s.yaml:4: stepz: found an unknown key, nearest is 'steps'"));
  EXPECT_THAT(complaint_about(with("steps: 3", "steps: 0")),
              StartsWith("s.yaml:4: steps: found 0; valid: an integer in [1, "));
  EXPECT_THAT(complaint_about(with("base: e.yaml\n", "")), HasSubstr("base: found nothing"));
  EXPECT_THAT(complaint_about(with("name: grid", "name: a/b")),
              HasSubstr("characters without '/'"));
  EXPECT_THAT(complaint_about(with("[1, 2]", "3")),
              StartsWith("s.yaml:10: axes.parallel.context: found 3; valid: a list of values"));
  EXPECT_THAT(complaint_about(with("[1, 2]", "[]")), HasSubstr("found no value"));
  EXPECT_THAT(complaint_about(with("[1, 2]", "[1, 1]")), HasSubstr("found 1 a second time"));
  EXPECT_THAT(complaint_about(with("ring: {attention.placement: ring}", "ring: 3")),
              StartsWith("s.yaml:9: axes.system.ring: found 3; valid: a block"));
  EXPECT_THAT(complaint_about(with("{system: ring", "{sistem: ring")),
              HasSubstr("rules[0].when.sistem: found no such axis; valid: system, "));
  EXPECT_THAT(complaint_about(with("{system: ring", "{system: rang")),
              HasSubstr("found rang; valid: cad, ring"));
  EXPECT_THAT(complaint_about(with(", skip: true", "")),
              HasSubstr("rules[0]: found an incomplete or contradictory rule"));
  EXPECT_THAT(complaint_about(with("skip: true", "skip: true, set: {a: b}")),
              HasSubstr("rules[0]: found an incomplete or contradictory rule"));
  EXPECT_THAT(complaint_about(with("skip: true", "skip: perhaps")),
              HasSubstr("rules[0]: found an incomplete or contradictory rule"));
}

TEST(Sweep, HasABoundOnItsPoints) {
  std::string axes = "base: e.yaml\naxes:\n";
  for (int key = 0; key < 60; ++key) axes += fmt::format("  a{}: [1, 2, 3]\n", key);  // 3^60
  EXPECT_THAT(complaint([&] { points_of(parse_sweep(axes, "s.yaml")); }),
              HasSubstr("more than 100000 points"));
}

TEST(SweepExperiment, FollowsFromItsShape) {
  const Settings shape = {"parallel.context=2", "shape.ranks=8", "shape.sequence=1024",
                          "shape.sequences=8"};
  Experiment e = experiment_with(shape);
  EXPECT_EQ(e.parallel.data, 4);
  EXPECT_EQ(e.batch.tokens, 8192);
  EXPECT_EQ(e.batch.microbatch, 1024);
  EXPECT_EQ(e.data.max_document, 1024);
  e = experiment_with(shape, {"shape.microbatches=1"});
  EXPECT_EQ(e.batch.microbatch, 2048);
  Overrides open = {"attention.placement=auto", "batch.microbatch=auto"};
  e = experiment_with(shape, open);
  EXPECT_TRUE(e.batch.microbatch_open);
  EXPECT_EQ(e.batch.microbatch, 1024);
  open.emplace_back("shape.microbatches=1");
  e = experiment_with(shape, open);
  EXPECT_FALSE(e.batch.microbatch_open);
  EXPECT_EQ(e.batch.microbatch, 2048);
  e = experiment_with(shape, {"attention.servers=2", "shape.ranks=10"});
  EXPECT_EQ(e.parallel.data, 4);
}

TEST(SweepExperiment, IsRefusedWhereTheShapeDoesNotDivide) {
  EXPECT_THAT(
      complaint_of({"parallel.context=3", "shape.ranks=8"}),
      StartsWith("shape.ranks: found 8, which minus 0 dedicated servers is no multiple of"));
  EXPECT_THAT(complaint_of({"shape.ranks=8", "shape.sequence=64", "shape.sequences=4"}),
              HasSubstr("8 data-parallel ranks x 1 microbatches do not share evenly"));
  EXPECT_THAT(complaint_of({"shape.sequence=64"}), HasSubstr("shape.sequences: found nothing"));
  EXPECT_THAT(complaint_of({"shape.sequences=64"}), HasSubstr("shape.sequence: found nothing"));
  EXPECT_THAT(complaint_of({"shape.rank=8"}), HasSubstr("shape.rank: found an unknown key"));
  EXPECT_THAT(complaint_of({"shape.ranks=0"}),
              HasSubstr("shape.ranks: found 0; valid: an integer"));
  EXPECT_THAT(complaint_of({"shape.ranks"}), HasSubstr("shape.ranks: found ; valid"));
  EXPECT_THAT(complaint_of({"parallel.contxt=3"}), HasSubstr("nearest is 'context'"));
  EXPECT_THAT(complaint_of({"model.heads=5"}), HasSubstr("does not divide model.d_model"));
}

}  // namespace
}  // namespace cadenza::config::test_sweep
