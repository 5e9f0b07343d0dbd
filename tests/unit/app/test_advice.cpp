// SPDX-License-Identifier: Apache-2.0
// The sentences of an answer: they say what the numbers beside them do.
#include "app/planner/advise/advice.hpp"

#include <gmock/gmock.h>

namespace cadenza::app::test_advice {
namespace {

Scenario scenario(const char* what, double low, double high) {
  Scenario one;
  one.key = what;
  one.what = what;
  one.cad = StepRatio{.value = (low + high) / 2, .low = low, .high = high, .steps = 16};
  return one;
}

TEST(Advice, LimitsCountAsTheyArePrinted) {
  const std::vector<Scenario> scenarios = {scenario("a", 1.00005, 1.02), scenario("b", 1.006, 1.02),
                                           scenario("c", 0.98, 0.997), scenario("d", 0.98, 0.994)};
  EXPECT_EQ(pays_text(scenarios),
            "These two layouts say that CAD pays: b. It does not: d. No difference is certain: a; "
            "c.");
  for (const Scenario& one : scenarios) {
    Advice advice;
    advice.choice.cad = one.cad;
    const bool sure = one.what == "b" || one.what == "d";
    EXPECT_EQ(cad_text(advice).find("No difference") == std::string::npos, sure) << one.what;
  }
}

}  // namespace
}  // namespace cadenza::app::test_advice
