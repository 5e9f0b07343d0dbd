// SPDX-License-Identifier: Apache-2.0
// Budgets of single heads: what a file leaves out is as in the experiment; all else is refused.
#include "support.hpp"

namespace cadenza::config::test_budgets {
namespace {

using ::testing::HasSubstr;

/// Two layers of four heads.
Experiment sparse() {
  return parse(kGood, {"attention.kind=vertical_slash", "attention.overlap=none",
                       "attention.sparse.columns=100", "attention.sparse.slashes=20",
                       "attention.sparse.window=0", "attention.sparse.budgets=b.json"});
}

std::string refusal(const std::string& text) {
  Experiment e = sparse();
  try {
    read_budgets(text, e);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "none";
}

TEST(Budgets, WhatIsLeftOutIsAsInTheExperiment) {
  Experiment e = sparse();
  const SparseRule usual = e.attention.sparse_rule(1, 3);
  EXPECT_EQ(usual.columns, 100);
  read_budgets(R"([[{"columns": 300, "slashes": 1}, {}, null, {"top_p": 0.5}]])", e);
  EXPECT_EQ(e.attention.sparse_rule(0, 0).columns, 300);
  EXPECT_EQ(e.attention.sparse_rule(0, 0).slashes, 1);
  EXPECT_EQ(e.attention.sparse_rule(0, 3).top_p, 0.5);
  EXPECT_EQ(e.attention.sparse_rule(0, 3).columns, 100);
  for (const std::int64_t head : {1, 2}) EXPECT_EQ(e.attention.sparse_rule(0, head), usual);
  for (std::int64_t head = 0; head < 4; ++head) {
    EXPECT_EQ(e.attention.sparse_rule(1, head), usual);
  }
  // Messages have room for the largest.
  EXPECT_EQ(e.attention.sparse_rule().columns, 300);
  EXPECT_EQ(e.attention.sparse_rule().slashes, 20);
}

TEST(Budgets, OtherShapesAndNumbersAreRefused) {
  EXPECT_EQ(refusal("[]"), "none");
  EXPECT_EQ(refusal("[null, [{}, {}, {}, {}]]"), "none");
  EXPECT_THAT(refusal("{}"), HasSubstr("b.json:1: found a block"));
  EXPECT_THAT(refusal("[\n{}]"), HasSubstr("b.json:2: [0]: found a block"));
  EXPECT_THAT(refusal("[[], [], []]"), HasSubstr("at most 2"));
  EXPECT_THAT(refusal("[[{}, {}, {}, {}, {}]]"), HasSubstr("[0]: found 5 items"));
  EXPECT_THAT(refusal("[[], [3]]"), HasSubstr("[1][0]: found 3"));
  EXPECT_THAT(refusal(R"([[{"colums": 3}]])"), HasSubstr("nearest is 'columns'"));
  EXPECT_THAT(refusal(R"([[{"columns": -1}]])"), HasSubstr("[0][0].columns: found -1"));
  EXPECT_THAT(refusal(R"([[{"columns": 1.5}]])"), HasSubstr("[0][0].columns: found 1.5"));
  EXPECT_THAT(refusal(R"([[{"top_p": 2}]])"), HasSubstr("[0][0].top_p: found 2"));
  EXPECT_THAT(refusal(R"([[{"columns": 0, "slashes": 0}]])"), HasSubstr("blocks of the diagonal"));
  EXPECT_THAT(refusal("[["), HasSubstr("b.json"));
}

}  // namespace
}  // namespace cadenza::config::test_budgets
