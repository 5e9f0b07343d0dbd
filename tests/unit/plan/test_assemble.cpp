// SPDX-License-Identifier: Apache-2.0
// From assignments to plans: key ranges, shared rows, halves.
#include <gmock/gmock.h>

#include "../../../src/plan/assemble.hpp"
#include "cadenza/plan/validate.hpp"
#include "cases.hpp"
#include "oracle.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::plan::test_assemble {
namespace {

using test::Draw;
using test::workload;

Plan assembled(const Workload& w, std::vector<Assignment> assignments) {
  return assemble(w, Homes(w), std::move(assignments));
}

void expect_valid(const Plan& plan) {
  EXPECT_THAT(violations(plan), ::testing::IsEmpty());
  EXPECT_THAT(mirror_violations(plan, mirror(plan)), ::testing::IsEmpty());
  EXPECT_EQ(test::carry_out(plan), "");
}

struct Joined {
  Range q;
  Range k;
  friend bool operator==(const Joined&, const Joined&) = default;
};

std::vector<Joined> coalesced(std::vector<Assignment> list) {
  Workload workload;
  workload.lengths = {100, 100};
  coalesce(workload, list);
  std::vector<Joined> result;
  for (const Assignment& a : list) result.push_back({a.q, a.k});
  return result;
}

TEST(Coalesce, JoinsNeighboursOnOneServer) {
  EXPECT_EQ(coalesced({{0, {8, 16}, 1}, {0, {0, 8}, 1}, {0, {16, 20}, 0}, {1, {20, 24}, 0}}),
            (std::vector<Joined>{{{0, 16}, {}}, {{16, 20}, {}}, {{20, 24}, {}}}));
  // Both halves of the keys, and both see all of them.
  EXPECT_EQ(coalesced({{0, {8, 16}, 1, {0, 8}}, {0, {8, 16}, 1, {8, 16}}, {0, {0, 8}, 1}}),
            (std::vector<Joined>{{{0, 16}, {}}}));
  // The same keys, away from the diagonal and at it.
  EXPECT_EQ(coalesced({{0, {8, 16}, 1, {2, 8}}, {0, {16, 24}, 1, {2, 8}}}),
            (std::vector<Joined>{{{8, 24}, {2, 8}}}));
  EXPECT_EQ(coalesced({{0, {8, 16}, 1, {4, 99}}, {0, {16, 24}, 1, {4, 24}}}),
            (std::vector<Joined>{{{8, 24}, {4, 24}}}));
  // Other keys, other servers, keys that nobody sees.
  EXPECT_EQ(coalesced({{0, {8, 16}, 1, {0, 8}}, {0, {16, 24}, 1, {0, 16}}, {0, {0, 8}, 1, {8, 9}}}),
            (std::vector<Joined>{{{8, 16}, {0, 8}}, {{16, 24}, {0, 16}}}));
}

TEST(Assemble, SharedRowsTravelOnce) {
  const Workload w = workload({{16}, {}, {}});
  // Rank 1 takes two runs of queries with overlapping keys and two parts of the keys of one of
  // them.
  const Plan plan = assembled(w, {{0, {0, 8}, 0},
                                  {0, {8, 12}, 1, {0, 4}},
                                  {0, {8, 12}, 0, {4, 8}},
                                  {0, {8, 12}, 1, {8, 12}},
                                  {0, {12, 16}, 1, {2, 10}},
                                  {0, {12, 16}, 2, {10, 16}},
                                  {0, {12, 16}, 0, {0, 2}}});
  expect_valid(plan);
  ASSERT_EQ(plan.stages.size(), 3U);
  std::vector<Range> queries;
  std::vector<Range> keys;
  for (const Move& m : plan.stages[1].moves) {
    if (m.to == 1 && m.what == Tensor::q) queries.push_back(m.tokens);
    if (m.to == 1 && m.what == Tensor::k) keys.push_back(m.tokens);
  }
  EXPECT_THAT(queries, ::testing::ElementsAre(Range{8, 16}));
  EXPECT_THAT(keys, ::testing::ElementsAre(Range{0, 12}));
  EXPECT_EQ(plan.merges.back(), (Merge{0, 0, {12, 16}, {0, 4}, {0, 1, 2}}));
}

TEST(Assemble, AnyKeySplitIsValid) {
  for (std::uint64_t seed = 0; seed < (cadenza::testing::kSanitized ? 100 : 400); ++seed) {
    Draw draw(seed);
    const int ranks = static_cast<int>(draw.between(1, 4));
    std::vector<std::vector<std::int64_t>> documents(static_cast<std::size_t>(ranks));
    for (auto& list : documents) {
      for (std::int64_t n = draw.between(0, 2); n > 0; --n) list.push_back(draw.between(1, 24));
    }
    const Workload whole = workload(documents);
    const std::array<Workload, 2> both = halves(whole);
    for (const Workload& w : {whole, both[0], both[1]}) {
      std::vector<Assignment> list;
      for (std::size_t d = 0; d < w.lengths.size(); ++d) {
        for (std::int64_t q = 0; q < w.lengths[d];) {
          const std::int64_t end = draw.between(q + 1, w.lengths[d]);
          const Rank server = static_cast<Rank>(draw.between(0, ranks - 1));
          const std::int64_t cut = draw.between(0, end);
          const int document = static_cast<int>(d);
          if (cut > 0) list.push_back({document, {q, end}, server, {0, cut}});
          const Rank other = static_cast<Rank>(draw.between(0, ranks - 1));
          if (cut < end) list.push_back({document, {q, end}, other, {cut, end}});
          q = end;
        }
      }
      expect_valid(assembled(w, list));
    }
  }
}

}  // namespace
}  // namespace cadenza::plan::test_assemble
