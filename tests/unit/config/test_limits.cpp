// SPDX-License-Identifier: Apache-2.0
// What an experiment may ask for, and what YAML may be made to mean.
#include "support.hpp"

#include "cadenza/config/limits.hpp"
#include "cadenza/config/machine.hpp"

namespace cadenza::config::test_limits {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Aliases, OfTextAndListsAndBlocks) {
  const std::string text =
      "name: &n small\n"
      "model: {layers: &two 2, d_model: 64, heads: 4, kv_heads: *two, ffn: 96, vocab: 300}\n"
      "data: {source: synthetic, path: &p [a, *n], lengths: {path: *n, values: [1, *two]}}\n"
      "batch: &b {tokens: 4096, microbatch: 512}\n";
  const Experiment e = parse(text);
  EXPECT_EQ(e.model.kv_heads, 2);
  EXPECT_THAT(e.data.path, ElementsAre("a", "small"));
  EXPECT_EQ(e.data.lengths.path, "small");
  EXPECT_THAT(e.data.lengths.values, ElementsAre(1, 2));
  // The wrong one is named where it is used.
  EXPECT_THAT(error_of(text + "run: {steps: *n}\n"),
              StartsWith("e.yaml:5: run.steps: found small"));
  EXPECT_THAT(error_of(text + "parallel: *b\n"),
              HasSubstr("parallel.tokens: found an unknown key"));
}

TEST(Aliases, CountAsWhatTheyStandFor) {
  std::string bomb = "x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 7; ++i) {
    bomb += fmt::format("x{}: &x{} [{}1]\n", i, i, repeated(fmt::format("*x{}, ", i - 1), 9));
  }
  EXPECT_THAT(error_of(bomb), HasSubstr("more than 100000 values"));
  const std::string text =
      fmt::format("a: &a {}\nb: [{}1]\n", repeated("x", 100'000), repeated("*a, ", 11));
  EXPECT_THAT(error_of(text), HasSubstr("bytes of text"));
  EXPECT_THAT(error_of("a: &a [[[[[1]]]]]\nb: [[[*a]]]\n"), HasSubstr("more than 8 nested levels"));
  EXPECT_THAT(error_of("a: &a {b: *a}\n"), HasSubstr("an alias inside its own anchor's value"));
}

TEST(Yaml, ManyValuesAreFineButNotAnyNumber) {
  const auto lengths = [](int count) {
    return changed(
        "source: text, path: [corpus]",
        fmt::format("source: synthetic, lengths: {{values: [{}3]}}", repeated("2, ", count - 1)));
  };
  EXPECT_EQ(parse(lengths(90'000)).data.lengths.values.size(), 90'000u);
  EXPECT_THAT(error_of(lengths(100'001)), HasSubstr("data.lengths.values[99"));
  EXPECT_THAT(error_of(repeated("#", kMostYamlBytes + 1)), HasSubstr("valid: at most 1048576"));
}

TEST(Yaml, TextHasNoControlCharacters) {
  EXPECT_THAT(error_of(kGood + "cluster: {machine: \"a\\eb\"}\n"),
              StartsWith("e.yaml:14: cluster.machine: found control characters in \"a\\x1bb\""));
  EXPECT_THAT(error_of(kGood, {"name=\"\\0\""}), HasSubstr("control characters in \"\\x00\""));
  EXPECT_THAT(error_of("\"\\u009b\": 1\n"), HasSubstr("control characters in \"\\xc2\\x9b\""));
  EXPECT_EQ(parse(kGood, {"data.path=[\"Grüße\\tdort\"]"}).data.path[0], "Grüße\tdort");
}

TEST(Yaml, IsUtf8) {
  EXPECT_THAT(error_of(kGood + "# \xff\xfe\n"),
              StartsWith("e.yaml:14: found '# \\xff\\xfe'; valid: UTF-8"));
  EXPECT_THAT(error_of(std::string("\xff\xfe"
                                   "n\0a\0",
                                   6)),
              HasSubstr("e.yaml:1: found"));  // UTF-16
  EXPECT_THAT(error_of(kGood + '\0'), HasSubstr("found '\\x00'"));
  EXPECT_EQ(parse("\xef\xbb\xbf" + kGood + "# Grüße\r\n").name, parse(kGood).name);
}

TEST(Override, OfTooManyLevels) {
  EXPECT_THAT(error_of(kGood, {fmt::format("{}a=1", repeated("a.", 20'000))}),
              HasSubstr("more than 8 nested levels"));
}

TEST(Name, IsThatOfAFolder) {
  EXPECT_EQ(parse(kGood, {"name=Läufe 2.1_b+c-d"}).name, "Läufe 2.1_b+c-d");
  EXPECT_EQ(parse(kGood, {"name='...'"}).name, "...");
  EXPECT_EQ(parse(kGood, {fmt::format("name={}", repeated("n", 100))}).name.size(), 100u);
  for (const std::string bad : {".", "..", "a/b", "/", "\"a\\nb\"", "\"a\\tb\"", "'  '"}) {
    EXPECT_THAT(error_of(kGood, {fmt::format("name={}", bad)}),
                HasSubstr("valid: 1 to 100 visible"))
        << bad;
  }
  EXPECT_THAT(error_of(kGood, {fmt::format("name={}", repeated("n", 101))}),
              HasSubstr("valid: 1 to 100"));
}

TEST(Limits, OfRanks) {
  const std::string batch = "batch={tokens: 1073741824, microbatch: 8192}";
  EXPECT_EQ(parse(kGood, {"parallel.data=131072", batch}).ranks(), 131072);
  EXPECT_THAT(error_of(kGood, {"parallel.data=131072", "attention.servers=1", batch}),
              HasSubstr("ranks; valid: at most 131072"));
  EXPECT_THAT(error_of(kGood, {"parallel={data: 131072, pipeline: 131072, tensor: 131072, "
                               "context: 131072}"}),
              HasSubstr("2.95e+20 ranks"));
  // Thousands of ranks in all axes.
  EXPECT_EQ(
      parse(kGood, {"model={layers: 128, d_model: 16384, heads: 128, kv_heads: 8, ffn: 53248, "
                    "vocab: 128256}",
                    "parallel={data: 8, pipeline: 16, tensor: 8, context: 16}",
                    "batch={tokens: 16777216, microbatch: 131072}"})
          .ranks(),
      16384);
}

TEST(Limits, OfAStep) {
  EXPECT_THAT(error_of(kGood, {"batch={tokens: 1099511627776, microbatch: 2}"}),
              HasSubstr("passes; valid: at most"));
  EXPECT_THAT(error_of(kGood, {"parallel.context=65536", "attention.placement=ring"}),
              HasSubstr("pairs of ranks"));
  EXPECT_THAT(
      error_of(kGood, {"batch={tokens: 1073741824, microbatch: 1073741824}", "attention.block=1"}),
      HasSubstr("attention.block=1: found 1: 1.07e+09 blocks"));
}

TEST(Limits, OfAModel) {
  EXPECT_THAT(error_of(kGood, {"model.d_model=2147483640"}), HasSubstr("parameters"));
  EXPECT_THAT(error_of(kGood, {"model.layers=100000", "model.ffn=1000000",
                               "batch={tokens: 2147483647, microbatch: 2147483647}"}),
              HasSubstr("activations"));
  EXPECT_THAT(error_of(kGood, {"data.max_document=1099511627776", "model.d_model=65536"}),
              HasSubstr("angles"));
}

TEST(Limits, OfDocuments) {
  EXPECT_THAT(error_of(kGood, {"data.documents=2147483647"}),
              HasSubstr("valid: an integer in [1, 100000000]"));
}

std::string machine_error(const std::string& more) {
  try {
    parse_machine(fmt::format("name: m\nsource: s\n{}", more), "m.yaml");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Limits, OfMachines) {
  EXPECT_EQ(machine_error("attention: {flops_per_second: 1e18}\n"
                          "products: {flops_per_second: 1e18}\n"
                          "links: {inside: {bytes_per_second: 1e18}}\n"),
            "");
  for (const std::string bad : {"1e308", "1e-308", "0", "-1", "inf", "nan", "1e999"}) {
    EXPECT_THAT(machine_error(fmt::format("products: {{flops_per_second: {}}}\n", bad)),
                HasSubstr("valid: a number in [1, 1e+30]"))
        << bad;
  }
  EXPECT_THAT(machine_error("attention: {tile: 2147483647}\n"), HasSubstr("[1, 65536]"));
  EXPECT_THAT(
      machine_error("attention: {forward: [[0.5, 1, 1]]}\n"),
      HasSubstr("attention.forward[0]: found a size of 0.5; valid: an integer in [1, 2147"));
  EXPECT_THAT(machine_error("attention: {backward: [[1, 1e12, 1]]}\n"), HasSubstr("size of 1000"));
  EXPECT_THAT(machine_error("products: {table: [[1, 2.5, 1, 1]]}\n"), HasSubstr("size of 2.5"));
  EXPECT_THAT(machine_error("links: {inside: {latency_seconds: 1e7}}\n"), HasSubstr("[0, 1"));
}

}  // namespace
}  // namespace cadenza::config::test_limits
