// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cadenza/plan/predict.hpp"
#include "cases.hpp"

namespace cadenza::plan::test_plan {
namespace {

using test::workload;

TEST(Task, AllowedPairsEqualCounting) {
  for (std::int64_t q0 = 0; q0 < 7; ++q0) {
    for (std::int64_t q1 = q0; q1 < 8; ++q1) {
      for (std::int64_t k0 = 0; k0 < 7; ++k0) {
        for (std::int64_t k1 = k0; k1 < 8; ++k1) {
          std::int64_t causal = 0;
          for (std::int64_t i = q0; i < q1; ++i) {
            for (std::int64_t j = k0; j < k1; ++j) causal += j <= i;
          }
          EXPECT_EQ(allowed_pairs({q0, q1}, {k0, k1}, Band::causal()), causal)
              << q0 << " " << q1 << " " << k0 << " " << k1;
          EXPECT_EQ(allowed_pairs({q0, q1}, {k0, k1}, Band::full()), (q1 - q0) * (k1 - k0));
        }
      }
    }
  }
}

TEST(Plan, NamesTensorsAsTheReportDoes) {
  const std::vector<Tensor> all = {Tensor::q,    Tensor::k,     Tensor::v,  Tensor::o,  Tensor::lse,
                                   Tensor::dout, Tensor::delta, Tensor::dq, Tensor::dk, Tensor::dv};
  std::string names;
  std::string keys;
  std::string results;
  for (Tensor what : all) {
    names += std::string(name(what)) + " ";
    if (is_key_side(what)) keys += std::string(name(what)) + " ";
    if (is_result(what)) results += std::string(name(what)) + " ";
  }
  EXPECT_EQ(names, "Q K V O LSE dO delta dQ dK dV ");
  EXPECT_EQ(keys, "K V dK dV ");
  EXPECT_EQ(results, "O LSE dQ dK dV ");
}

TEST(Plan, MoveBytesCountRowsHeadsAndElements) {
  const AttentionShape shape{8, 2, 16, 4};
  EXPECT_EQ(move_bytes(shape, Tensor::q, {10, 13}, {0, 8}), 3 * 8 * 16 * 4);
  EXPECT_EQ(move_bytes(shape, Tensor::dv, {10, 13}, {0, 2}), 3 * 2 * 16 * 4);
  EXPECT_EQ(move_bytes(shape, Tensor::lse, {10, 13}, {2, 8}), 3 * 6 * 4);
  EXPECT_EQ(move_bytes(shape, Tensor::delta, {10, 13}, {2, 8}), 3 * 6 * 4);
}

TEST(Plan, MoveBytesOfBfloat16CarrySumsInFloat) {
  const AttentionShape shape{8, 2, 16, 2, 4};
  const auto bytes = [&](Tensor what) {
    return move_bytes(shape, what, {10, 13}, {0, is_key_side(what) ? 2 : 8});
  };
  for (const Tensor what : {Tensor::q, Tensor::dout}) EXPECT_EQ(bytes(what), 3 * 8 * 16 * 2);
  for (const Tensor what : {Tensor::k, Tensor::v}) EXPECT_EQ(bytes(what), 3 * 2 * 16 * 2);
  for (const Tensor what : {Tensor::o, Tensor::dq}) EXPECT_EQ(bytes(what), 3 * 8 * 16 * 4);
  for (const Tensor what : {Tensor::dk, Tensor::dv}) EXPECT_EQ(bytes(what), 3 * 2 * 16 * 4);
  EXPECT_EQ(move_bytes(shape, Tensor::lse, {10, 13}, {2, 8}), 3 * 6 * 4);
  EXPECT_EQ(move_bytes(shape, Tensor::delta, {10, 13}, {2, 8}), 3 * 6 * 4);
}

TEST(Plan, ImbalanceIsLargestOverMeanOfThePool) {
  Plan plan;
  plan.workload.ranks = 4;
  plan.workload.servers = {2, 3};
  plan.cost_per_rank = {0, 0, 30, 10};
  EXPECT_DOUBLE_EQ(imbalance(plan), 1.5);
  plan.cost_per_rank = {0, 0, 0, 0};
  EXPECT_DOUBLE_EQ(imbalance(plan), 1.0);
}

TEST(Plan, EqualPlansHashEqualAndEveryFieldCounts) {
  const Workload w = workload({{4096, 100}, {128}, {}});
  const Plan plan = cad(w, 128, 0.05);
  ASSERT_EQ(plan.stages.size(), 3U);
  EXPECT_EQ(hash(plan), hash(cad(w, 128, 0.05)));
  std::vector<std::uint64_t> seen = {hash(plan)};
  const auto changed = [&](auto&& change) {
    Plan other = plan;
    change(other);
    const std::uint64_t value = hash(other);
    EXPECT_THAT(seen, ::testing::Not(::testing::Contains(value))) << "change " << seen.size();
    seen.push_back(value);
  };
  changed([](Plan& p) { p.workload.lengths[0] += 1; });
  changed([](Plan& p) { p.workload.homes[1].rank = 2; });
  changed([](Plan& p) { p.workload.servers.pop_back(); });
  changed([](Plan& p) { p.workload.ranks = 7; });
  changed([](Plan& p) { p.workload.shape.head_dim = 9; });
  changed([](Plan& p) { p.workload.shape.element_bytes = 2; });
  changed([](Plan& p) { p.workload.shape.accumulator_bytes = 8; });
  changed([](Plan& p) { p.stages[1].moves[0].to = 0; });
  changed([](Plan& p) { p.stages[1].moves[0].what = Tensor::dq; });
  changed([](Plan& p) { p.stages[1].moves[0].tokens.end -= 1; });
  changed([](Plan& p) { p.stages[1].moves[0].heads.begin += 1; });
  changed([](Plan& p) { p.stages[1].moves[0].bytes += 1; });
  changed([](Plan& p) { p.stages[1].tasks[0].server = 0; });
  changed([](Plan& p) { p.stages[1].tasks[0].task.band = Band::full(); });
  changed([](Plan& p) { p.stages[1].tasks[0].task.k.end -= 1; });
  changed([](Plan& p) { p.stages[1].tasks[0].cost *= 2; });
  changed([](Plan& p) { std::swap(p.stages[1].tasks.front(), p.stages[1].tasks.back()); });
  changed([](Plan& p) { p.stages.pop_back(); });
  changed([](Plan& p) { p.merges[0].owner = 2; });
  changed([](Plan& p) { p.merges[0].contributors.push_back(2); });
  changed([](Plan& p) { p.cost_per_rank[0] += 1; });
  changed([](Plan& p) { p.bytes_sent_per_rank[0] += 1; });
}

TEST(Predict, AddsSlowestServerAndLargestTransferOfEachStage) {
  Plan plan;
  plan.workload.ranks = 3;
  plan.workload.servers = {0, 1, 2};
  plan.stages.resize(2);
  const auto move = [](Rank from, Rank to, std::int64_t bytes) {
    return Move{from, to, Tensor::q, 0, {0, 1}, {0, 1}, bytes};
  };
  plan.stages[0].moves = {move(0, 2, 5), move(1, 2, 6)};  // rank 2 receives 11
  plan.stages[1].moves = {move(2, 0, 7), move(2, 1, 1)};  // rank 2 sends 8
  const auto task = [](Rank server, std::int64_t pairs) {
    return PlacedTask{server, {0, {0, 1}, {0, pairs}, {0, 1}, Band::full()}, 0.0};
  };
  plan.stages[0].tasks = {task(0, 1), task(1, 2), task(2, 4)};
  plan.stages[1].tasks = {task(2, 2)};  // rank 2 computes 6
  config::Machine machine;
  machine.attention.flops_per_second = 4;  // a pair takes a second
  machine.links.inside.bytes_per_second = 2;
  const Prediction prediction = predict(plan, {cost::Rates(machine, {}, 1), {}});
  EXPECT_DOUBLE_EQ(prediction.lower_bound_seconds, 3.0);
  EXPECT_DOUBLE_EQ(prediction.predicted_seconds, 6.0 + 5.5 + 4.0);
}

}  // namespace
}  // namespace cadenza::plan::test_plan
