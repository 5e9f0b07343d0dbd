// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

namespace cadenza::config::test_read {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Read, FillsValuesAndDefaults) {
  const Experiment e = parse(kGood);
  EXPECT_EQ(e.name, "small");
  EXPECT_EQ(e.seed, 1u);
  EXPECT_EQ(e.model.layers, 2);
  EXPECT_EQ(e.model.kv_heads, 4) << "default: heads";
  EXPECT_EQ(e.data.max_document, 512) << "default: batch.microbatch";
  EXPECT_THAT(e.data.path, ElementsAre("corpus"));
  EXPECT_EQ(e.optimizer.lr, 3e-4);
  EXPECT_THAT(e.optimizer.betas, ElementsAre(0.9, 0.95));
  EXPECT_EQ(e.attention.servers, 0);
  EXPECT_EQ(e.run.steps, 20);
}

TEST(Read, TakesEveryKindOfValue) {
  const Experiment e = parse(
      kGood, {"seed=18446744073709551615", "data.path=one.txt", "attention.servers=3",
              "optimizer.betas=[0, 0.5]", "optimizer.lr=1", "model.tie_embeddings=true",
              "attention.placement=colocated", "name='7: x'", "run={device: cuda, dtype: float64}",
              "data.max_document=0", "data.lengths.values=[5, 6]"});
  EXPECT_EQ(e.seed, 18446744073709551615u);
  EXPECT_THAT(e.data.path, ElementsAre("one.txt"));
  EXPECT_EQ(e.attention.servers, 3);
  EXPECT_EQ(e.ranks(), 4);
  EXPECT_THAT(e.optimizer.betas, ElementsAre(0.0, 0.5));
  EXPECT_EQ(e.optimizer.lr, 1.0);
  EXPECT_TRUE(e.model.tie_embeddings);
  EXPECT_EQ(e.attention.placement, PlacementKind::colocated);
  EXPECT_EQ(e.name, "7: x");
  EXPECT_EQ(e.run.device, DeviceKind::cuda);
  EXPECT_EQ(e.run.dtype, Dtype::float64);
  EXPECT_EQ(parse(kGood, {"run.dtype=bfloat16"}).run.dtype, Dtype::bfloat16);
  EXPECT_EQ(e.run.steps, 20);
  EXPECT_EQ(e.data.max_document, 512);
  EXPECT_THAT(e.data.lengths.values, ElementsAre(5, 6));
  EXPECT_EQ(parse(kGood, {"attention.servers=in_place"}).attention.servers, 0);
}

TEST(Read, ToleranceAndOverlapAreAutoUnlessGiven) {
  const Attention left_out = parse(kGood).attention;
  EXPECT_EQ(left_out.tolerance, std::nullopt);
  EXPECT_EQ(left_out.overlap, Overlap::automatic);
  const Attention given =
      parse(kGood, {"attention.tolerance=0", "attention.overlap=none"}).attention;
  EXPECT_EQ(given.tolerance, 0.0);
  EXPECT_EQ(given.overlap, Overlap::none);
  const Attention automatic = parse(kGood, {"attention.tolerance=0.2", "attention.tolerance=auto",
                                            "attention.overlap=auto"})
                                  .attention;
  EXPECT_EQ(automatic.tolerance, std::nullopt);
  EXPECT_EQ(automatic.overlap, Overlap::automatic);
}

TEST(Read, AnEmptyBlockHasItsDefaults) {
  EXPECT_EQ(parse(kGood + "trace:\nrun: {}\n").run.steps, 20);
}

TEST(Read, AnchorsMeanTheirValue) {
  EXPECT_EQ(parse(changed("ffn: 96", "ffn: &n 96") + "seed: *n\n").seed, 96u);
}

TEST(UnknownKey, NamesLineNearestAndValidOnes) {
  EXPECT_THAT(error_of(changed("  layers: 2", "  layer: 2")),
              AllOf(StartsWith("e.yaml:3: model.layer: found an unknown key"),
                    HasSubstr("nearest is 'layers'"), HasSubstr("valid: layers, d_model")));
  EXPECT_THAT(error_of(changed("optimizer", "optimiser")),
              AllOf(StartsWith("e.yaml:12: optimiser: "), HasSubstr("nearest is 'optimizer'"),
                    HasSubstr("valid: name, seed, model, data")));
  EXPECT_THAT(error_of(kGood + "run: {checkpoint: {evry: 1}}\n"),
              AllOf(StartsWith("e.yaml:14: run.checkpoint.evry: "), HasSubstr("'every'")));
  EXPECT_THAT(error_of(kGood + "theta: 3\n"), HasSubstr("nearest is 'model.rope.theta'"));
  EXPECT_THAT(error_of(kGood + "dp: 3\n"), HasSubstr("key, nearest is 'parallel.data'; valid"));
  EXPECT_THAT(error_of(kGood + "parallel: {tp: 2}\n"),
              HasSubstr("key, nearest is 'parallel.tensor'; valid"));
  EXPECT_THAT(error_of(kGood, {"data.max_doc=64"}), HasSubstr("'data.max_document'"));
}

TEST(Override, UnknownKeysAreLikeTheFiles) {
  EXPECT_THAT(error_of(kGood, {"optimizer.lrr=1"}),
              AllOf(StartsWith("--set optimizer.lrr=1: found an unknown key"),
                    HasSubstr("nearest is 'lr'"), HasSubstr("valid: kind, lr, betas")));
  EXPECT_THAT(error_of(kGood, {"modl.layers=1"}),
              AllOf(StartsWith("--set modl.layers=1: modl: "), HasSubstr("'model'")));
  EXPECT_THAT(error_of(kGood, {"optimizer={lrr: 1}"}),
              StartsWith("--set optimizer={lrr: 1}: optimizer.lrr: "));
}

TEST(Window, IsASlidingWindowsAlone) {
  const auto window = parse(kGood + "attention: {kind: window, window: 2}\n").attention;
  EXPECT_EQ(window.mask(), Mask::window(2));
  EXPECT_EQ(window.inner_ring, 1);
  EXPECT_THAT(error_of(kGood, {"attention.window=128"}),
              HasSubstr("found 128 with attention.kind = full; valid: only with kind window"));
}

struct BadValue {
  std::string set;
  std::string cause;  ///< a part of what is said of it
};

class WrongValue : public ::testing::TestWithParam<BadValue> {};

TEST_P(WrongValue, SaysFoundAndValid) {
  const auto& [set, cause] = GetParam();
  EXPECT_THAT(error_of(kGood, {set}),
              AllOf(StartsWith("--set " + set + ": "), HasSubstr(cause), HasSubstr("; valid: ")));
}

INSTANTIATE_TEST_SUITE_P(
    Read, WrongValue,
    ::testing::Values(
        BadValue{"model.layers=two", "found two; valid: an integer in ["},
        BadValue{"model.layers=1.5", "found 1.5;"}, BadValue{"model.layers=1e3", "found 1e3;"},
        BadValue{"model.layers='2'", "found \"2\";"}, BadValue{"model.layers=0", "found 0;"},
        BadValue{"model.layers=", "found nothing;"}, BadValue{"model.layers=[1]", "found a list;"},
        BadValue{"model.layers={a: 1}", "found a block of keys;"},
        BadValue{"seed=-1", "found -1; valid: an integer in [0, "},
        BadValue{"seed=18446744073709551616", "found 18446744073709551616;"},
        BadValue{"model.norm_eps=0", "found 0; valid: a finite number > 0"},
        BadValue{"optimizer.lr=-1", "found -1; valid: a finite number >= 0"},
        BadValue{"optimizer.lr=nan", "found nan;"}, BadValue{"optimizer.lr=1e999", "found 1e999;"},
        BadValue{"optimizer.lr=.inf", "found .inf;"}, BadValue{"optimizer.lr=inf", "found inf;"},
        BadValue{"attention.tolerance=10001", "found 10001; valid: auto, a number in [0, 10000]"},
        BadValue{"attention.block=0", "found 0;"},
        BadValue{"attention.servers=0", "found 0; valid: auto, in_place or an integer in [1, "},
        BadValue{"run.steps=-1", "found -1;"},
        BadValue{"trace.events=yes", "found yes; valid: true or false"},
        BadValue{"trace.events='true'", "found \"true\";"},
        BadValue{"name=[a]", "found a list; valid: text"}, BadValue{"name=''", "found \"\";"},
        BadValue{"model=3", "found 3; valid: a block"},
        BadValue{"model.rope=[1]", "found a list; valid: a block"},
        BadValue{"data.path={a: b}", "found a block of keys; valid: text or a list"},
        BadValue{"optimizer.betas=0.9", "found 0.9; valid: a list"},
        BadValue{"optimizer.betas=[0.9, 1]", "optimizer.betas[1]: found 1;"},
        BadValue{"data.lengths.values=[3, 0]", "data.lengths.values[1]: found 0;"},
        BadValue{"data.path=[a, [b]]", "data.path[1]: found a list;"},
        BadValue{"attention.placement=cadd", "found cadd, nearest is 'cad'; valid: colocated, "},
        BadValue{"optimizer.schedule=Cosine", "found Cosine, nearest is 'cosine';"},
        BadValue{"run.dtype=bf16", "found bf16, nearest is 'bfloat16';"},
        BadValue{"run.dtype=float16", "found float16; valid: bfloat16, float32, float64"},
        BadValue{"attention.kernel=sse", "found sse; valid: auto, "},
        BadValue{"attention.overlap=both", "found both;"},
        BadValue{"attention.tolerance=automatic", "found automatic; valid: auto, "}));

TEST(Read, WrongValuesOfTheFileNameTheirLine) {
  EXPECT_THAT(error_of(changed("heads: 4", "heads: four")),
              StartsWith("e.yaml:5: model.heads: found four;"));
  EXPECT_THAT(error_of(kGood + "attention:\n  servers:\n    - 1\n"),
              StartsWith("e.yaml:15: attention.servers: found a list; valid: auto, in_place or"));
  EXPECT_THAT(error_of(changed("name: small", "name: \"a\\nb\"") + "seed: \"a\\nb\"\n"),
              StartsWith("e.yaml:14: seed: found \"a\\nb\"; valid: "));
}

TEST(Required, SaysWhichAndWhatItIs) {
  EXPECT_THAT(error_of(changed("  layers: 2\n", "")),
              AllOf(StartsWith("e.yaml:2: model.layers: found nothing, but it is required"),
                    HasSubstr("transformer layers"), HasSubstr("valid: an integer")));
  const std::vector<std::pair<std::string, std::string>> lines = {
      {"  d_model: 64\n", "model.d_model"},
      {"  heads: 4\n", "model.heads"},
      {"  ffn: 96\n", "model.ffn"},
      {"  vocab: 300\n", "model.vocab"},
      {"source: text, ", "data.source"},
      {", path: [corpus]", "data.path"},
      {"  tokens: 4096\n", "batch.tokens"},
      {"  microbatch: 512\n", "batch.microbatch"},
      {"data: {source: text, path: [corpus]}\n", "data.source"},
  };
  for (const auto& [line, key] : lines) {
    EXPECT_THAT(error_of(changed(line, "")), HasSubstr(": " + key + ": found nothing, but "));
  }
  EXPECT_THAT(error_of("name: x\n"), StartsWith("e.yaml:1: model.layers: found nothing"));
}

TEST(Required, APartialOverrideIsNotBlamedForTheRest) {
  EXPECT_THAT(error_of("name: x\n", {"model.layers=1"}),
              StartsWith("e.yaml:1: model.d_model: found nothing, but it is required"));
}

TEST(Override, SuppliesAndMends) {
  EXPECT_EQ(parse(changed("  layers: 2\n", ""), {"model.layers=7"}).model.layers, 7);
  EXPECT_EQ(parse(changed("layers: 2", "layers: {x: 1}"), {"model.layers=7"}).model.layers, 7);
  EXPECT_EQ(parse(changed("heads: 4", "heads: 5"), {"model.heads=8"}).model.heads, 8);
  EXPECT_EQ(parse(kGood, {"seed=2", "seed=3"}).seed, 3u) << "the later one wins";
  EXPECT_THAT(parse(kGood, {"data.path=[a,b]"}).data.path, ElementsAre("a", "b"));
  EXPECT_EQ(parse(kGood, {"optimizer={warmup: 3}"}).optimizer.warmup, 3);
  EXPECT_EQ(parse("name: x\n", {"model={layers: 1, d_model: 8, heads: 2, ffn: 8, vocab: 9}",
                                "data.source=synthetic", "batch={tokens: 8, microbatch: 8}"})
                .batch.tokens,
            8);
}

TEST(Override, MalformedOnes) {
  for (const std::string bad : {"seed", "=3", "model..layers=1", ".seed=1", "model.=1", ""}) {
    EXPECT_THAT(error_of(kGood, {bad}), StartsWith("--set " + bad + ": found no key.path=value"));
  }
  EXPECT_THAT(error_of(kGood, {"data.path=*.py"}),
              StartsWith("--set data.path=*.py: column 1: found broken YAML ("));
  EXPECT_THAT(error_of(kGood, {"data.path=[a"}), HasSubstr("found broken YAML"));
  EXPECT_THAT(
      error_of(kGood, {"name.x=1"}),
      StartsWith("--set name.x=1: found small (e.yaml:1) where a block with 'x' is needed"));
  EXPECT_THAT(error_of(kGood, {"seed=\n---\n1\n---\n2"}),
              HasSubstr("found more after the end of the first"));
}

TEST(Yaml, WhatIsNoExperiment) {
  EXPECT_THAT(error_of("- 1\n- 2\n"), StartsWith("e.yaml:1: found a list; valid: blocks of keys"));
  EXPECT_THAT(error_of("model\n"), StartsWith("e.yaml:1: found model;"));
  for (const char* nothing : {"", "# nothing\n", "---\n"}) {
    EXPECT_THAT(error_of(nothing), StartsWith("e.yaml:1: found nothing;"));
  }
  EXPECT_THAT(error_of("a: 1\n---\nb: 1\n"),
              StartsWith("e.yaml:2: found more after the end of the first YAML document"));
}

TEST(Yaml, BrokenSyntaxNamesLineAndColumn) {
  EXPECT_THAT(error_of("name: x\nmodel: {layers: 1,\n"),
              StartsWith("e.yaml:3: column 1: found broken YAML ("));
  EXPECT_THAT(error_of("name: x\n\tmodel: 1\n"), StartsWith("e.yaml:2: column 1: found broken"));
  EXPECT_THAT(error_of("name: a: b\n"), StartsWith("e.yaml:1: column 8: found broken YAML"));
}

TEST(Yaml, AKeyTwice) {
  EXPECT_THAT(error_of(kGood + "name: again\n"),
              StartsWith("e.yaml:14: name: found the key a second time (first: e.yaml:1)"));
  EXPECT_THAT(error_of(changed("  ffn: 96\n", "  ffn: 96\n  ffn: 96\n")),
              StartsWith("e.yaml:7: model.ffn: found the key a second time"));
  EXPECT_THAT(error_of(kGood, {"run={steps: 1, steps: 2}"}), HasSubstr("run.steps: found the key"));
}

TEST(Yaml, StrayPunctuationEnds) {
  // Nothing consumes these: a loop over documents would not end.
  for (const std::string stray : {",", "]", "}", ",name: x", "name: x\n]\n"}) {
    EXPECT_THAT(error_of(stray), HasSubstr("found ")) << stray;
    EXPECT_THAT(error_of(kGood, {"seed=" + stray}), StartsWith("--set seed=" + stray.substr(0, 1)));
  }
}

TEST(Yaml, OddShapesEndWithALine) {
  EXPECT_THAT(error_of("? [a]\n: 1\n"), HasSubstr("found a key that is a list or a block"));
  EXPECT_THAT(error_of("name: &x [*x]\n"), HasSubstr("an alias inside"));
  for (const char* nested : {"[", "{a: ", "? ", "- "}) {
    EXPECT_THAT(error_of(repeated(nested, 200'000)), HasSubstr("8 nested levels")) << nested;
  }
  EXPECT_THAT(error_of(kGood, {"x=" + repeated("[", 100'000)}), HasSubstr("8 nested levels"));
}

}  // namespace
}  // namespace cadenza::config::test_read
