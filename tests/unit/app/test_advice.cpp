// SPDX-License-Identifier: Apache-2.0
// The sentences of an answer: they say what the numbers beside them do.
#include "app/planner/advise/advice.hpp"

#include <gmock/gmock.h>

#include "app/planner/search/finals.hpp"

namespace cadenza::app::test_advice {
namespace {

Scenario scenario(const char* what, double low, double high) {
  Scenario one;
  one.key = what;
  one.what = what;
  one.cad = StepRatio{.value = (low + high) / 2, .low = low, .high = high, .steps = 16};
  return one;
}

/// What is within 2 %, of which simulations are off, is not sure.
TEST(Advice, LimitsCountAsTheyArePrinted) {
  const std::vector<Scenario> scenarios = {scenario("a", 1.02005, 1.04), scenario("b", 1.026, 1.04),
                                           scenario("c", 0.96, 0.977), scenario("d", 0.96, 0.974)};
  EXPECT_EQ(pays_text(scenarios),
            "These two layouts say that CAD pays: b. It does not: d. No difference is certain: a; "
            "c.");
  for (const Scenario& one : scenarios) {
    Advice advice;
    advice.choice.cad = one.cad;
    const bool sure = one.what == "b" || one.what == "d";
    EXPECT_EQ(cad_text(advice).find("may be less than what simulations") == std::string::npos, sure)
        << one.what;
  }
  Advice alike;
  alike.choice.cad = scenario("e", 0.97, 1.004).cad;
  EXPECT_TRUE(cad_text(alike).ends_with(" No difference is certain."));
  alike.choice.cad = scenario("f", 0.996, 1.004).cad;
  EXPECT_TRUE(cad_text(alike).ends_with(" It gains nothing here."));
}

TEST(Advice, OfTooFewStepsTheGainIsNotKnown) {
  Advice advice;
  const double with = 8, without = 6;
  advice.choice.cad = ratio_of({&without, 1}, {&with, 1});
  Considered one;
  one.candidate.attention.placement = config::PlacementKind::cad;
  one.steps = 1;
  advice.choice.considered = {one, Considered{}};
  EXPECT_EQ(cad_text(advice),
            "What CAD gains is not known: 1 layout with it was simulated, 1 step, too few for an "
            "interval; there it is 0.75 x as fast as the best without it.");
}

}  // namespace
}  // namespace cadenza::app::test_advice
