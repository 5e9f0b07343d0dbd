// SPDX-License-Identifier: Apache-2.0
#include "exec/losses.hpp"

#include <gmock/gmock.h>

#include <set>

namespace cadenza::exec {
namespace {

TEST(Losses, FourBinsForEachDoubling) {
  std::set<std::int64_t> begins;
  for (std::int64_t place = 0; place < 64; ++place) {
    EXPECT_LE(bin_begin(place), place);
    begins.insert(bin_begin(place));
  }
  EXPECT_THAT(begins, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28,
                                             32, 40, 48, 56));
  EXPECT_EQ(bin_begin((std::int64_t{1} << 40) + 1), std::int64_t{1} << 40);
}

TEST(Losses, AreSumsOfTheRowsAtAPlace) {
  RowPlaces places;
  places.places = {0, 1, -1, 9, 8, 1};
  places.documents = {0, 0, 0, 1, 1, 1};
  places.first_document = 5;
  places.answers = {{1, 50, {1, 0, 0, 2}}, {4, 60, {8, 5, 4, 3}}};
  LossRecord record;
  record.begin_step(3);
  // The halves of a microbatch come one after the other.
  record.add<float>(places, {0, 3}, {{1, 2, 77}, {0, -1, 0}});
  record.add<float>(places, {3, 6}, {{4, 8, 16}, {-2, 0, 0}});
  const std::vector<trace::PositionLoss> found = record.positions();
  ASSERT_EQ(found.size(), 3u);
  const auto expect = [&](std::size_t i, std::int64_t position, std::int64_t targets,
                          std::int64_t hits, double loss) {
    EXPECT_EQ(found[i].step, 3u);
    EXPECT_EQ(found[i].position, position);
    EXPECT_EQ(found[i].targets, targets);
    EXPECT_EQ(found[i].hits, hits);
    EXPECT_EQ(found[i].loss, loss);
  };
  expect(0, 0, 1, 1, 1);
  expect(1, 1, 2, 1, 18);
  expect(2, 8, 2, 1, 12);
  ASSERT_EQ(record.answers().size(), 2u);
  const trace::AnswerLoss first = record.answers()[0], second = record.answers()[1];
  EXPECT_EQ(std::tuple(first.step, first.hit, first.length, first.fact, first.position, first.loss),
            std::tuple(3u, 0u, 50, 0, 2, 2.0));
  EXPECT_EQ(std::tuple(second.hit, second.length, second.fact, second.position, second.loss),
            std::tuple(1u, 60, 5, 9, 8.0));
  EXPECT_EQ(std::pair(first.document, first.question), std::pair(5, 2));
  EXPECT_EQ(std::pair(second.document, second.question), std::pair(6, 3));
  ASSERT_EQ(record.documents().size(), 7u);  // those before are of other microbatches
  const auto whole = [&](std::size_t i) {
    const DocumentLoss& document = record.documents()[i];
    return std::tuple(document.targets, document.hits, document.loss);
  };
  EXPECT_EQ(whole(4), std::tuple(0.0, 0.0, 0.0));
  EXPECT_EQ(whole(5), std::tuple(2.0, 1.0, 3.0));
  EXPECT_EQ(whole(6), std::tuple(3.0, 2.0, 28.0));
  record.begin_step(4);
  EXPECT_TRUE(record.positions().empty() && record.answers().empty() && record.documents().empty());
}

}  // namespace
}  // namespace cadenza::exec
