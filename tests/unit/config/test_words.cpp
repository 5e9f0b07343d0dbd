// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>

#include "../../../src/config/words.hpp"

namespace cadenza::config::test_words {
namespace {

/// Whether the type has an enumerator of this value: GCC and Clang write Source::text for one, and
/// (Source)4 where there is none.
template <auto kValue>
constexpr bool is_enumerator() {
  constexpr std::string_view kName = "kValue = ";
  const std::string_view text = __PRETTY_FUNCTION__;
  return text.at(text.rfind(kName) + kName.size()) != '(';
}

template <typename Choice>
class Words : public ::testing::Test {};

using Choices = ::testing::Types<Source, Tokenizer, TokenType, Distribution, DrawRule, Packing,
                                 PipelineSchedule, Shard, AttentionKind, RopeScalingKind, ChunkCap,
                                 PlacementKind, Overlap, Sharding, ShardUnit, Priority, Bound,
                                 Inputs, Gather, AttentionKernel, Recompute, OptimizerKind,
                                 Schedule, FaultPhase, FaultWork, DeviceKind, Transport, Dtype>;
TYPED_TEST_SUITE(Words, Choices);

TYPED_TEST(Words, AreOneForEachEnumerator) {
  constexpr auto& kAll = kWords<TypeParam>;
  EXPECT_TRUE(is_enumerator<TypeParam(kAll.size() - 1)>()) << "a word too many: " << kAll.back();
  EXPECT_FALSE(is_enumerator<TypeParam(kAll.size())>())
      << "a word is missing after " << kAll.back();
  EXPECT_EQ(std::set(kAll.begin(), kAll.end()).size(), kAll.size());
}

}  // namespace
}  // namespace cadenza::config::test_words
