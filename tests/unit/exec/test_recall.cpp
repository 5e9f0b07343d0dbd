// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "exec/attention/measure_recall.hpp"

namespace cadenza::exec {
namespace {

constexpr int kHeads = 2;
constexpr int kHeadDim = 4;

/// A document on one rank, with one key head, and the same pattern for both heads.
class OneRank {
 public:
  OneRank(std::int64_t length, std::int64_t block, SparsePattern pattern)
      : length_(length), pattern_(std::move(pattern)) {
    workload_.lengths = {length};
    workload_.shape.heads = kHeads;
    workload_.shape.kv_heads = 1;
    workload_.shape.head_dim = kHeadDim;
    workload_.sparse.block = block;
    document_.length = length;
    document_.owned = {{0, kHeads}, {0, length}};
    document_.runs = {{{{0, length}, 0, 1}, 0, 0, 0}};
    document_.homes = {{0, 0, {0, length}}};
    document_.keys = length;
    q.assign(at(length * kHeads * kHeadDim), 0);
    k.assign(at(length * kHeadDim), 0);
  }

  Recall measure() {
    const kernels::RotaryTable<double> unrotated;
    const auto world = comm::make_self();
    const std::function<const SparsePattern&(const IndexDocument&, std::int64_t)> pattern_of =
        [this](const IndexDocument&, std::int64_t) -> const SparsePattern& { return pattern_; };
    return measure_recall<double>(
        *world,
        {workload_.shape, unrotated, workload_, {&document_}, 7, q.data(), k.data(), pattern_of});
  }

  std::vector<double> q, k;

 private:
  std::int64_t length_;
  plan::Workload workload_;
  IndexDocument document_;
  SparsePattern pattern_;
};  // namespace cadenza::exec

double in_queries(std::int64_t sum) {
  return static_cast<double>(sum) / Recall::kUnit;
}

/// A document of 16 tokens, of which each is sampled, beside softmax(q k^T) V's shares by hand.
TEST(Recall, IsTheShareOfTheSoftmax) {
  constexpr std::int64_t kLength = kRecallQueries;
  const std::vector<std::int64_t> slashes = {5};
  const std::vector<std::int64_t> columns = {2, 9};
  const auto pattern = SparsePattern::vertical_slash(kLength, 2, slashes, columns);
  OneRank rank(kLength, 2, pattern);
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(0, 3);
  for (double& x : rank.q) x = normal(random);
  for (double& x : rank.k) x = normal(random);
  double kept = 0;
  for (std::int64_t i = 0; i < kLength; ++i) {
    for (int head = 0; head < kHeads; ++head) {
      double part = 0;
      double all = 0;
      for (std::int64_t j = 0; j <= i; ++j) {
        double logit = 0;
        for (int d = 0; d < kHeadDim; ++d) {
          logit += rank.q[at((i * kHeads + head) * kHeadDim + d)] * rank.k[at(j * kHeadDim + d)];
        }
        const double weight = std::exp(logit / std::sqrt(kHeadDim));
        all += weight;
        if (pattern.sees(i, j)) part += weight;
      }
      kept += part / all;
    }
  }
  const Recall::Distance found = rank.measure().total();
  EXPECT_NEAR(in_queries(found.attention), kHeads * kLength, 1e-6);
  EXPECT_NEAR(in_queries(found.kept), kept, 1e-6);
  EXPECT_LT(kept, 0.95 * kHeads * kLength);
  EXPECT_EQ(found.keys, kHeads * kLength);
  EXPECT_EQ(found.unseen, 0);  // every query sees its own block
}

/// All attention is to the first key, so its distance is the query's place.
TEST(Recall, IsCountedByDistance) {
  constexpr std::int64_t kLength = 8192;  // a sixteenth is 512 tokens
  const std::vector<std::int64_t> slashes = {2048};
  for (const bool keeps_first : {false, true}) {
    const std::vector<std::int64_t> columns = {keeps_first ? 0 : 100};
    OneRank rank(kLength, 64, SparsePattern::vertical_slash(kLength, 64, slashes, columns));
    for (double& x : rank.q) x = 1;
    rank.k[0] = 1000;
    const Recall recall = rank.measure();
    const std::array<double, 5> queries = {2, 6, 8, 0, 0};
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const Recall::Distance& of = recall.distances[i];
      EXPECT_NEAR(in_queries(of.attention), kHeads * queries[i], 1e-6);
      if (keeps_first) {
        EXPECT_EQ(of.kept, of.attention);
      }
    }
    if (!keeps_first) {  // but for queries of the first block, and those that its slash leads to
      EXPECT_LE(in_queries(recall.distances[0].kept), kHeads);
      EXPECT_LE(in_queries(recall.distances[1].kept), kHeads);
      EXPECT_EQ(recall.distances[2].kept, 0);
    }
    // 2048 tokens behind a key, its slash is still inside; the column sees everything.
    const std::int64_t far = kLength - 4096;
    EXPECT_EQ(recall.distances[1].keys, kHeads * (kLength - 1024));
    EXPECT_EQ(recall.distances[1].unseen, kHeads * 1024);
    EXPECT_EQ(recall.distances[2].keys, kHeads * far);
    EXPECT_EQ(recall.distances[2].unseen, kHeads * (far - 1));
    EXPECT_EQ(recall.distances[3].keys, 0);
  }
}

TEST(Recall, OfBlocksIsThatOfTheSamePairs) {
  constexpr std::int64_t kLength = 3000;
  constexpr std::int64_t kBlock = 64;
  const std::vector<std::int64_t> slashes = {0, 700, 1500};
  const auto offsets = SparsePattern::vertical_slash(kLength, kBlock, slashes, {});
  std::vector<bool> active;
  for (std::int64_t row = 0; row < offsets.rows(); ++row) {
    for (std::int64_t column = 0; column <= row; ++column) {
      active.push_back(offsets.active(row, column));
    }
  }
  OneRank one(kLength, kBlock, offsets);
  OneRank other(kLength, kBlock, SparsePattern::blocks(kLength, kBlock, active));
  std::mt19937_64 random(2);
  std::normal_distribution<double> normal(0, 1);
  for (double& x : one.q) x = normal(random);
  for (double& x : one.k) x = normal(random);
  other.q = one.q;
  other.k = one.k;
  const Recall a = one.measure();
  const Recall b = other.measure();
  for (std::size_t i = 0; i < a.distances.size(); ++i) {
    EXPECT_EQ(a.distances[i].kept, b.distances[i].kept);
    EXPECT_EQ(a.distances[i].attention, b.distances[i].attention);
    EXPECT_EQ(a.distances[i].unseen, b.distances[i].unseen);
  }
  EXPECT_LT(a.total().share(), 0.5);
  EXPECT_GT(a.distances[1].unseen, 0);
}

}  // namespace
}  // namespace cadenza::exec
