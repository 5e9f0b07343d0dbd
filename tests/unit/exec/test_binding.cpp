// SPDX-License-Identifier: Apache-2.0
// Bindings: what one rank sends is what the other expects, and every task finds its rows.
#include <gmock/gmock.h>

#include "cadenza/base/error.hpp"
#include "cadenza/base/random.hpp"
#include "cadenza/exec/binding.hpp"
#include "cadenza/plan/placement.hpp"

namespace cadenza::exec {
namespace {

using program::Pass;

plan::Workload random_workload(std::uint64_t seed, int trainers, int servers) {
  plan::Workload workload;
  // Statistics in more bytes than elements, as in bfloat16.
  workload.shape = {4, 2, 8, 2, 4};
  workload.ranks = trainers + servers;
  for (int rank = 0; rank < trainers; ++rank) {
    const auto documents = static_cast<int>(1 + random_bits(seed, 1, rank) % 5);
    for (int i = 0; i < documents; ++i) {
      const auto stream = static_cast<std::uint64_t>(100 * rank + i);
      const auto length = static_cast<std::int64_t>(1 + random_bits(seed, 2, stream) % 900);
      workload.homes.push_back({rank, static_cast<int>(workload.lengths.size()), {0, length}});
      workload.lengths.push_back(length);
    }
  }
  for (int rank = servers > 0 ? trainers : 0; rank < workload.ranks; ++rank) {
    workload.servers.push_back(rank);
  }
  return workload;
}

program::TickPlans random_plans(std::uint64_t seed, int trainers, int servers) {
  program::TickPlans plans;
  plans.forward = plan::cad(random_workload(seed, trainers, servers), 64, 0.02);
  plans.backward = plan::mirror(plans.forward);
  return plans;
}

TEST(Binding, BothEndsOfEveryMessageAgree) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const int trainers = 2 + static_cast<int>(seed % 3);
    const int servers = static_cast<int>(seed / 3 % 3);
    const auto plans = random_plans(seed, trainers, servers);
    std::vector<Binding> bindings;
    for (Rank rank = 0; rank < trainers + servers; ++rank) bindings.push_back(bind(plans, rank));
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      std::int64_t carried = 0;
      for (std::size_t stage = 0; stage < plans.of(pass).stages.size(); ++stage) {
        for (Rank from = 0; from < trainers + servers; ++from) {
          const auto& sends = bindings[static_cast<std::size_t>(from)].of(pass)[stage].sends;
          for (const Message& message : sends.messages) {
            carried += message.bytes;
            const auto& receives =
                bindings[static_cast<std::size_t>(message.peer)].of(pass)[stage].receives;
            const auto other = std::ranges::find(receives.messages, from, &Message::peer);
            ASSERT_NE(other, receives.messages.end());
            EXPECT_EQ(other->bytes, message.bytes);
          }
        }
      }
      std::int64_t bytes = 0;
      for (const std::int64_t sent : plans.of(pass).bytes_sent_per_rank) bytes += sent;
      EXPECT_EQ(carried, bytes);
    }
  }
}

TEST(Binding, EveryTaskOfThePlanIsBoundOnceToRowsThatHoldIt) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto plans = random_plans(seed, 3, static_cast<int>(seed % 3));
    std::size_t planned = 0;
    for (const plan::Stage& stage : plans.forward.stages) planned += stage.tasks.size();
    std::size_t bound = 0;
    for (Rank rank = 0; rank < plans.forward.workload.ranks; ++rank) {
      const Binding binding = bind(plans, rank);
      const auto holds = [&](const std::vector<RowPiece>& pieces, int index, int document,
                             Range tokens) {
        const auto homes = static_cast<int>(binding.homes.size());
        const RowPiece& piece = index < homes ? binding.homes[static_cast<std::size_t>(index)]
                                              : pieces[static_cast<std::size_t>(index - homes)];
        return piece.document == document && piece.tokens.contains(tokens);
      };
      for (const StageBinding& stage : binding.forward) {
        bound += stage.tasks.size();
        for (const kernels::TaskRows& rows : stage.tasks) {
          const Task& task = rows.task;
          EXPECT_TRUE(holds(binding.query_pieces, rows.query_rows, task.document, task.q));
          EXPECT_TRUE(holds(binding.key_pieces, rows.key_rows, task.document, task.k));
        }
      }
    }
    EXPECT_EQ(bound, planned);
  }
}

TEST(Binding, ATaskWithoutItsRowsIsRefused) {
  auto plans = random_plans(3, 3, 1);
  for (plan::Stage& stage : plans.forward.stages) {
    std::erase_if(stage.moves, [](const plan::Move& move) { return move.what == plan::Tensor::k; });
  }
  EXPECT_THROW(bind(plans, 3), Error);
}

}  // namespace
}  // namespace cadenza::exec
