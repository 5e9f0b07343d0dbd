// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::config::test_settings {
namespace {

using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(Settings, AreKeysByTheirPaths) {
  EXPECT_THAT(
      settings("a: 1\nb:\n  c: \"two\"\n  d: {e: [0.9, 0.95], f: [[1, 2], [3]]}\n  g:\n", ""),
      UnorderedElementsAre(Pair("a", "1"), Pair("b.c", "two"), Pair("b.d.e", "[0.9, 0.95]"),
                           Pair("b.d.f", "[[1, 2], [3]]"), Pair("b.g", "")));
}

TEST(Settings, TellExperimentsApart) {
  Experiment experiment;
  const auto before = settings(to_yaml(experiment), "");
  EXPECT_EQ(before.at("model.rope.theta"), "10000.0");
  EXPECT_EQ(before, settings(to_yaml(Experiment{}), ""));
  experiment.model.rope.theta = 1e4 + 1e-9;
  EXPECT_NE(before.at("model.rope.theta"),
            settings(to_yaml(experiment), "").at("model.rope.theta"));
}

TEST(Settings, BrokenTextIsRefused) {
  EXPECT_THROW(settings("a: [", "file"), Error);
  EXPECT_THROW(settings("- a", "file"), Error);
}

}  // namespace
}  // namespace cadenza::config::test_settings
