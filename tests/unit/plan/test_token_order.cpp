// SPDX-License-Identifier: Apache-2.0
// Striped orders against counting: positions, stripes, masks of rectangles.
#include <gmock/gmock.h>

#include "cases.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan::test_token_order {
namespace {

using test::Draw;

/// Text positions in the order in which stripes count them.
std::vector<std::int64_t> counted(const TokenOrder& order, std::int64_t length) {
  std::vector<std::int64_t> positions;
  for (std::int64_t stripe = 0; stripe < order.stripes; ++stripe) {
    for (std::int64_t i = 0; i < length; ++i) {
      if (i / order.run % order.stripes == stripe) positions.push_back(i);
    }
  }
  return positions;
}

TEST(TokenOrder, CountsStripeByStripe) {
  EXPECT_THAT(counted({4, 2}, 16),
              ::testing::ElementsAre(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  for (const TokenOrder order :
       {TokenOrder{1, 1}, {1, 5}, {2, 1}, {3, 1}, {4, 2}, {3, 5}, {8, 7}}) {
    for (std::int64_t length = 1; length < 70; ++length) {
      const std::vector<std::int64_t> expected = counted(order, length);
      std::int64_t end = 0;
      for (std::int64_t stripe = 0; stripe < order.stripes; ++stripe) {
        const Range tokens = stripe_tokens(order, length, stripe);
        EXPECT_EQ(tokens.begin, end);
        end = std::max(tokens.begin, tokens.end);
        for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
          const std::int64_t position = position_of(order, length, t);
          EXPECT_EQ(position, expected[static_cast<std::size_t>(t)]) << length << " " << t;
          EXPECT_EQ(stripe_of(order, length, t), stripe) << length << " " << t;
        }
      }
      EXPECT_EQ(end, length);
    }
  }
}

struct Case {
  TokenOrder order;
  std::int64_t length = 1;
  Range q;
  Range k;
  Mask mask = {};
  bool sees(std::int64_t i, std::int64_t j) const {
    return mask.sees(position_of(order, length, i), position_of(order, length, j));
  }
  Workload workload() const {
    Workload w;
    w.lengths = {length};
    w.order = order;
    w.mask = mask;
    return w;
  }
};

/// @param maps  masks that map positions, too
Case random_case(Draw& draw, bool maps = true) {
  Case c;
  c.order =
      draw.of(std::vector<TokenOrder>{{1, 1}, {2, 1}, {3, 1}, {5, 1}, {2, 3}, {3, 4}, {4, 2}});
  c.length = draw.between(1, 40);
  for (Range* range : {&c.q, &c.k}) {
    range->begin = draw.between(0, c.length - 1);
    range->end = draw.between(range->begin + 1, c.length);
  }
  switch (draw.between(0, 7)) {
    case 0:
    case 1:
      c.mask = Mask::window(draw.between(1, 45));
      break;
    case 2:
      c.mask = Mask::window(draw.between(1, 45), draw.between(1, 45));
      break;
    case 3:
      c.mask = Mask::prefix(draw.between(1, 45));
      break;
    case 4:
      if (maps)
        c.mask = Mask::dual_chunk({draw.between(1, 45), draw.between(0, 60), draw.between(0, 60)});
      break;
    default:
      break;
  }
  return c;
}

TEST(TokenOrder, MaskedTasksAreTheMaskOfARectangle) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Draw draw(seed);
    const Case c = random_case(draw);
    const std::vector<Task> tasks = masked_tasks(c.workload(), {0, c.q, c.k, {0, 1}});
    for (std::int64_t i = 0; i < c.length; ++i) {
      for (std::int64_t j = 0; j < c.length; ++j) {
        int count = 0;
        for (const Task& t : tasks) {
          count += t.q.contains({i, i + 1}) && t.k.contains({j, j + 1}) && t.band.sees(i, j);
        }
        const bool inside = c.q.contains({i, i + 1}) && c.k.contains({j, j + 1});
        EXPECT_EQ(count, inside && c.sees(i, j) ? 1 : 0) << "seed " << seed;
      }
    }
    for (const Task& t : tasks) {
      EXPECT_TRUE(is_masked(c.workload(), t)) << "seed " << seed;
      EXPECT_EQ(trimmed(t), t);
    }
  }
}

TEST(TokenOrder, PairsEqualCounting) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Draw draw(seed);
    const Case c = random_case(draw);
    std::int64_t pairs = 0;
    for (std::int64_t i = c.q.begin; i < c.q.end; ++i) {
      for (std::int64_t j = 0; j < c.length; ++j) pairs += c.sees(i, j);
    }
    EXPECT_EQ(mask_pairs(c.workload(), 0, c.q), pairs) << "seed " << seed;
  }
}

TEST(TokenOrder, OtherMasksAreNoticed) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Draw draw(seed);
    const Case c = random_case(draw, false);
    Task task{0, c.q, c.k, {0, 1}};
    if (draw.uniform() < 0.6) {
      const std::vector<Task> tasks = masked_tasks(c.workload(), task);
      if (!tasks.empty()) task = draw.of(tasks);
    }
    if (draw.uniform() < 0.3) task.band = Band::full();
    if (draw.uniform() < 0.3) task.band.high += draw.between(-2, 2);
    bool equal = true;
    for (std::int64_t i = task.q.begin; i < task.q.end; ++i) {
      for (std::int64_t j = task.k.begin; j < task.k.end; ++j) {
        equal = equal && c.sees(i, j) == task.band.sees(i, j);
      }
    }
    EXPECT_EQ(is_masked(c.workload(), task), equal) << "seed " << seed;
    wrong += !equal;
  }
  EXPECT_GT(wrong, 500);
  EXPECT_LT(wrong, 2500);
}

// Steps of one token are one task per pair of stripes.
TEST(TokenOrder, StripesOfSingleTokensAreDiagonals) {
  const Case c{{4, 1}, 16, {}, {}};
  const Task rectangle{0, {0, 4}, {8, 12}, {0, 1}};  // stripe 0 asks stripe 2, of 16 tokens
  EXPECT_THAT(masked_tasks(c.workload(), rectangle),
              ::testing::ElementsAre(Task{0, {1, 4}, {8, 11}, {0, 1}, Band::causal(7)}));
  const Task earlier{0, {8, 12}, {0, 4}, {0, 1}};
  EXPECT_THAT(masked_tasks(c.workload(), earlier),
              ::testing::ElementsAre(Task{0, {8, 12}, {0, 4}, {0, 1}, Band::causal(-8)}));
}

}  // namespace
}  // namespace cadenza::plan::test_token_order
