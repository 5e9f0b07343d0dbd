// SPDX-License-Identifier: Apache-2.0
// What placement auto says of candidates that it did not look at.
#include "app/planner/search/search_report.hpp"

#include <gmock/gmock.h>

#include <initializer_list>

#include "cadenza/config/load.hpp"

namespace cadenza::app::test_search_report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Of a search with one candidate that was simulated.
SearchReport report_of(const config::Experiment& e, const config::Machine& m, bool cad,
                       std::initializer_list<Outcome> others) {
  SearchReport report{e, m, 1 << 30, 1 + others.size(), 1e6, {}, {}, {}, {}};
  Judged judged;
  for (const Candidate& one : arrangements(e)) {
    if (disaggregates(one) == cad) judged.candidate = one;
  }
  judged.outcome = Outcome::simulated;
  judged.seconds = judged.first = 1;
  report.ranked.push_back(judged);
  for (const Candidate& one : arrangements(e)) {
    if (disaggregates(one) != cad) judged.candidate = one;
  }
  judged.seconds = judged.first = 0;
  for (const Outcome outcome : others) {
    judged.outcome = outcome;
    judged.expected = outcome == Outcome::late ? 1.05 : 0;
    report.others.push_back(judged);
  }
  return report;
}

TEST(Report, SaysWhyNoneOfAKindWasLookedAt) {
  const config::Experiment e = config::parse_experiment(
      "model: {layers: 4, d_model: 256, heads: 8, kv_heads: 4, ffn: 704, vocab: 512}\n"
      "data: {source: synthetic, lengths: {distribution: constant, median: 1024}}\n"
      "batch: {tokens: 32768, microbatch: 4096}\n"
      "parallel: {data: 8}\n"
      "attention: {placement: auto, tolerance: 0.1}\n",
      "e.yaml", {});
  const config::Machine m;
  using enum Outcome;
  EXPECT_THAT(describe(report_of(e, m, false, {untried, too_large, untried, bound})),
              HasSubstr("no cad was simulated or estimated:\n"
                        "        2 of 4 layouts and placements not tried: search time was over,\n"
                        "        1 of 4 layouts and placements too large for the memory,\n"
                        "        1 of 4 layouts and placements excluded by their lower bound\n"));
  EXPECT_THAT(describe(report_of(e, m, true, {too_large})),
              HasSubstr("nothing but cad was simulated or estimated:\n"
                        "        1 of 1 layouts and placements too large for the memory\n"));
  EXPECT_THAT(describe(report_of(e, m, false, {late, too_large})),
              HasSubstr("no cad was simulated; the most promising of these"));
  EXPECT_THAT(describe(report_of(e, m, false, {})), Not(HasSubstr("was simulated")));
}

}  // namespace
}  // namespace cadenza::app::test_search_report
