// SPDX-License-Identifier: Apache-2.0
// Timelines computed by hand, and what holds for all of them.
#include <gmock/gmock.h>

#include <map>

#include "cadenza/simulate/simulator.hpp"
#include "simulate/network.hpp"
#include "unit/program/support.hpp"

namespace cadenza::simulate::test_clock {
namespace {

using config::Machine;
using program::Program;
using program::StepShape;
using program::TickPlans;
using program::test::make_programs;
using program::test::random_step;
using program::test::RandomStep;
using ::testing::DoubleNear;
using ::testing::Pointwise;

/// Attention alone takes time: a task of one query and one key of one head of width 8 a second.
Machine one_second_tasks() {
  Machine machine;
  machine.attention.flops_per_second = 32;
  machine.products.flops_per_second = 1e30;
  machine.links.inside = {0.25, 20};
  return machine;
}

/// one_move with tasks and moves of sizes that are easy to add up: every move has 10 bytes.
TickPlans sized_move() {
  TickPlans plans = program::test::one_move();
  for (plan::Plan* plan : {&plans.forward, &plans.backward}) {
    for (plan::Stage& stage : plan->stages) {
      for (plan::Move& move : stage.moves) move.bytes = 10;
      for (plan::PlacedTask& placed : stage.tasks) placed.task = {0, {0, 1}, {0, 1}, {0, 1}};
    }
  }
  program::add_traffic(plans);
  return plans;
}

// Forward: both ranks attend for 1 s. 30 bytes of inputs, posted at 0, are on rank 1 at 0.25 + 30 /
// 20 = 1.75; it attends until 2.75; 20 bytes of results are on rank 0 at 2.75 + 0.25 + 1 = 4.
// Backward: rank 0 posts 60 bytes at 4, which arrive at 7.25; tasks take 2.5 s: rank 1's own from 4
// (its results must have left) to 6.5, the other from 7.25 to 9.75; 30 bytes are back at 11.5.
TEST(Clock, TwoRanksByHand) {
  const config::Experiment e = program::test::experiment_of(2, 0, 1, 1);
  const StepShape step_shape(e);
  const std::vector<TickPlans> tick_plans = {sized_move()};
  const Costs costs(one_second_tasks(), e, step_shape.layout);
  std::vector<std::pair<double, double>> waits[2];
  const auto observe = [&](const Span& span) {
    if (span.what == Activity::wait) waits[span.rank].emplace_back(span.begin, span.end);
  };
  const Result result =
      simulate(e, step_shape, make_programs(step_shape, tick_plans), tick_plans, costs, observe);
  using Waits = std::vector<std::pair<double, double>>;
  EXPECT_EQ(waits[0], (Waits{{1, 4}, {6.5, 11.5}}));
  EXPECT_EQ(waits[1], (Waits{{1, 1.75}, {6.5, 7.25}}));
  EXPECT_DOUBLE_EQ(result.ranks[0].attention, 1 + 2.5);
  EXPECT_DOUBLE_EQ(result.ranks[1].attention, 2 * (1 + 2.5));
  EXPECT_DOUBLE_EQ(result.slowest_attention, 2 * (1 + 2.5));  // rank 1 in both passes
  EXPECT_DOUBLE_EQ(result.ranks[0].waiting, 3 + 5);
  EXPECT_DOUBLE_EQ(result.ranks[1].waiting, 0.75 + 1.25 + 0.75);
  EXPECT_EQ(result.ranks[0].bytes_sent, 30 + 60);
  EXPECT_EQ(result.ranks[1].bytes_sent, 20 + 30);
}

TEST(Clock, MessagesTakeTurnsAtThePortsOfBothEnds) {
  Machine machine;
  machine.links.inside = {1, 10};
  machine.links.between = {2, 5};
  machine.links.adapters = 1;
  machine.ranks_per_node = 2;
  config::Experiment e = program::test::experiment_of(6, 0, 1, 1);
  const StepShape step_shape(e);
  const Costs costs(machine, e, step_shape.layout);
  Network network(costs, 6);
  EXPECT_DOUBLE_EQ(network.transfer(0, 1, 20, 0), 0 + 1 + 2);
  EXPECT_DOUBLE_EQ(network.transfer(0, 1, 10, 0), 2 + 1 + 1);  // leaves after the first one
  EXPECT_DOUBLE_EQ(network.transfer(1, 0, 10, 0), 1 + 1);      // the other way is free
  // Between nodes the two ranks of a node share an adapter, and so do those they send to.
  EXPECT_DOUBLE_EQ(network.transfer(0, 2, 10, 0), 0 + 2 + 2);
  EXPECT_DOUBLE_EQ(network.transfer(1, 4, 10, 0), 2 + 2 + 2);
  EXPECT_DOUBLE_EQ(network.transfer(4, 3, 10, 0), 4 + 2);  // waits for the first one to be in
  EXPECT_DOUBLE_EQ(network.transfer(5, 1, 10, 10), 10 + 2 + 2);
}

/// Four ranks to a node, each with an adapter.
Machine cluster() {
  Machine machine;
  machine.ranks_per_node = 2;
  machine.attention.launch_seconds = 1e-6;
  machine.element_wise.bytes_per_second = 1e9;
  machine.links.inside = {1e-6, 1e9};
  machine.links.between = {3e-6, 2e8};
  return machine;
}

std::vector<double> ends(const Result& result) {
  std::vector<double> times;
  for (const RankTimes& rank : result.ranks) times.push_back(rank.end);
  return times;
}

TEST(Clock, OneTensorRankStandsForAll) {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const RandomStep& step = random_step(seed);
    const int tensor = step.step_shape->layout.tensor();
    if (tensor == 1) continue;
    const Costs costs(cluster(), step.experiment, step.step_shape->layout);
    std::vector<Program> lead;
    for (const Program& program : step.programs) {
      if (step.step_shape->layout.tensor_of(program.rank) == 0) lead.push_back(program);
    }
    const Result all =
        simulate(step.experiment, *step.step_shape, step.programs, step.tick_plans, costs);
    const Result one = simulate(step.experiment, *step.step_shape, lead, step.tick_plans, costs);
    EXPECT_EQ(ends(one), ends(all)) << seed;
    EXPECT_DOUBLE_EQ(one.lower_bound_seconds, all.lower_bound_seconds) << seed;
    for (std::size_t rank = 0; rank < all.ranks.size(); ++rank) {
      EXPECT_DOUBLE_EQ(one.ranks[rank].waiting, all.ranks[rank].waiting) << seed;
      EXPECT_EQ(one.ranks[rank].bytes_sent, all.ranks[rank].bytes_sent) << seed;
    }
    EXPECT_LT(one.operations, all.operations);
    ++compared;
  }
  EXPECT_GT(compared, 20);
}

TEST(Clock, TwiceAsFastTakesHalfTheTime) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const RandomStep& step = random_step(seed);
    const auto seconds = [&](const Machine& machine) {
      const Costs costs(machine, step.experiment, step.step_shape->layout);
      return simulate(step.experiment, *step.step_shape, step.programs, step.tick_plans, costs)
          .seconds;
    };
    Machine fast = cluster();
    const double once = seconds(fast);
    fast.attention.launch_seconds /= 2;
    fast.attention.flops_per_second *= 2;
    fast.products.flops_per_second *= 2;
    fast.element_wise.bytes_per_second *= 2;
    for (config::Link* link : {&fast.links.inside, &fast.links.between}) {
      link->latency_seconds /= 2;
      link->bytes_per_second *= 2;
    }
    EXPECT_NEAR(seconds(fast), once / 2, 1e-12 * once) << seed;
  }
}

// Every moment of a rank is in one span of its compute lane at most, and what it was doing adds up
// to the times of the result.
TEST(Clock, SpansOfARankFollowOneAnother) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const RandomStep& step = random_step(seed);
    const Costs costs(cluster(), step.experiment, step.step_shape->layout);
    std::map<Rank, double> last, computing, waiting;
    std::map<std::uint32_t, int> ends_of_message;
    const auto observe = [&](const Span& span) {
      EXPECT_LE(span.begin, span.end);
      if (span.what == Activity::message_out || span.what == Activity::message_in) {
        if (span.flow != 0) ++ends_of_message[span.flow];
        return;
      }
      if (span.what == Activity::gather || span.what == Activity::reduce) return;
      if (span.what == Activity::tensor) return;
      EXPECT_GE(span.begin, last[span.rank]) << seed;
      last[span.rank] = span.end;
      const bool waits = span.what == Activity::wait || span.what == Activity::drain;
      const bool attends = !waits && span.instruction->operation == program::Operation::attend;
      if (attends) computing[span.rank] += span.end - span.begin;
      if (waits) waiting[span.rank] += span.end - span.begin;
    };
    const Result result =
        simulate(step.experiment, *step.step_shape, step.programs, step.tick_plans, costs, observe);
    for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
      const auto key = static_cast<Rank>(rank);
      EXPECT_NEAR(result.ranks[rank].attention, computing[key], 1e-9) << seed;
      EXPECT_NEAR(result.ranks[rank].waiting, waiting[key], 1e-9) << seed;
      EXPECT_LE(last[key], result.ranks[rank].end + 1e-12) << seed;
    }
    for (const auto& [flow, count] : ends_of_message) EXPECT_EQ(count, 2) << seed;
  }
}

TEST(Clock, NoStepBeatsItsLowerBoundOrItsSlowestRank) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const RandomStep& step = random_step(seed);
    const Costs costs(cluster(), step.experiment, step.step_shape->layout);
    const Result result =
        simulate(step.experiment, *step.step_shape, step.programs, step.tick_plans, costs);
    EXPECT_GE(result.seconds, result.lower_bound_seconds) << seed;
    for (const RankTimes& rank : result.ranks) {
      EXPECT_NEAR(rank.busy() + rank.waiting + rank.collectives, rank.end, 1e-9) << seed;
    }
  }
}

TEST(Clock, ASlowRankIsSlowAndTheOthersWait) {
  config::Experiment e = random_step(3).experiment;
  const RandomStep& step = random_step(3);
  const auto run = [&](const config::Experiment& experiment, std::int64_t number = 0) {
    const Costs costs(cluster(), experiment, step.step_shape->layout);
    return simulate(experiment, *step.step_shape, step.programs, step.tick_plans, costs, {},
                    number);
  };
  const Result even = run(e);
  e.cluster.slow_ranks = {{0, 0.5}};
  const Result slow = run(e);
  EXPECT_DOUBLE_EQ(slow.ranks[0].attention, 2 * even.ranks[0].attention);
  EXPECT_DOUBLE_EQ(slow.ranks[1].attention, even.ranks[1].attention);
  EXPECT_GT(slow.seconds, even.seconds);

  e.cluster.slow_ranks = {};
  e.cluster.jitter = 0.2;
  EXPECT_EQ(ends(run(e)), ends(run(e)));
  EXPECT_NE(ends(run(e, 0)), ends(run(e, 1)));
  EXPECT_NE(ends(run(e)), ends(even));
}

/// Seconds that each rank computes, by phase: forward, backward, optimizer.
using Computing = std::map<Rank, std::array<double, 3>>;

Computing computing(const RandomStep& step, const config::Experiment& experiment,
                    std::int64_t number) {
  Computing sums;
  const auto observe = [&](const Span& span) {
    if (span.what != Activity::compute || span.instruction == nullptr) return;
    const bool backward =
        span.instruction->recompute || span.instruction->pass == program::Pass::backward;
    sums[span.rank][span.instruction->tick < 0 ? 2 : backward ? 1 : 0] += span.end - span.begin;
  };
  const Costs costs(cluster(), experiment, step.step_shape->layout);
  simulate(experiment, *step.step_shape, step.programs, step.tick_plans, costs, observe, number);
  return sums;
}

/// But for rounding: the same operation at another time.
void expect_equal(const Computing& found, const Computing& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [rank, phases] : found) {
    for (std::size_t i = 0; i < phases.size(); ++i) {
      EXPECT_NEAR(phases.at(i), expected.at(rank).at(i), 1e-12) << rank << ", phase " << i;
    }
  }
}

/// A step without tensor groups, whose ranks share their computations' times.
const RandomStep& step_of_single_ranks() {
  std::uint64_t seed = 0;
  while (random_step(seed).experiment.parallel.tensor > 1) ++seed;
  return random_step(seed);
}

TEST(Clock, AFaultIsOfItsPhaseAndItsSteps) {
  const RandomStep& step = step_of_single_ranks();
  config::Experiment e = step.experiment;
  const Computing even = computing(step, e, 1);
  e.cluster.faults = {
      {.rank = 0, .speed = 0.5, .phase = config::FaultPhase::backward, .steps = {1}}};
  Computing slow = computing(step, e, 1);
  EXPECT_NEAR(slow[0][1], 2 * even.at(0)[1], 1e-9 * even.at(0)[1]);
  slow[0][1] = even.at(0)[1];
  expect_equal(slow, even);
  EXPECT_EQ(computing(step, e, 2), computing(step, step.experiment, 2));
}

TEST(Clock, APauseIsOneOperationOfItsRank) {
  const RandomStep& step = step_of_single_ranks();
  config::Experiment e = step.experiment;
  const Computing even = computing(step, e, 1);
  e.cluster.faults = {{.rank = 0,
                       .pause = 5.0,
                       .phase = config::FaultPhase::forward,
                       .work = config::FaultWork::attention,
                       .steps = {}}};
  double still = 0;
  const auto observe = [&](const Span& span) { still += span.still; };
  const Costs costs(cluster(), e, step.step_shape->layout);
  simulate(e, *step.step_shape, step.programs, step.tick_plans, costs, observe, 1);
  EXPECT_EQ(still, 5.0);
  Computing paused = computing(step, e, 1);
  EXPECT_NEAR(paused[0][0], even.at(0)[0] + 5.0, 1e-9);
  paused[0][0] = even.at(0)[0];
  expect_equal(paused, even);
}

TEST(Clock, WithoutItsCoreARankTakesLongerAndStandsStill) {
  const RandomStep& step = step_of_single_ranks();
  config::Experiment e = step.experiment;
  const Computing even = computing(step, e, 1);
  e.cluster.faults = {
      {.rank = 0, .core = 0.25, .phase = config::FaultPhase::backward, .steps = {}}};
  Computing slow = computing(step, e, 1);
  EXPECT_NEAR(slow[0][1], 4 * even.at(0)[1], 1e-9 * even.at(0)[1]);
  double still = 0;
  const auto observe = [&](const Span& span) {
    const bool copies = span.what == Activity::pack || span.what == Activity::unpack;
    if (span.still > 0) {
      EXPECT_NEAR(span.still, 0.75 * (span.end - span.begin), 1e-12);
    }
    still += copies ? 0 : span.still;
  };
  const Costs costs(cluster(), e, step.step_shape->layout);
  simulate(e, *step.step_shape, step.programs, step.tick_plans, costs, observe, 1);
  EXPECT_NEAR(still, slow[0][1] - even.at(0)[1], 1e-9);
  slow[0][1] = even.at(0)[1];
  expect_equal(slow, even);
}

TEST(Clock, ARankThatBeginsLateKeepsTheOthersWaiting) {
  const RandomStep& step = step_of_single_ranks();
  config::Experiment e = step.experiment;
  ASSERT_GT(e.ranks(), 1);
  const Costs costs(cluster(), e, step.step_shape->layout);
  const auto run = [&](std::int64_t number) {
    return simulate(e, *step.step_shape, step.programs, step.tick_plans, costs, {}, number);
  };
  const Result even = run(1);
  for (Rank rank = 0; rank < e.ranks(); ++rank) {
    e.cluster.faults.push_back({.rank = rank, .between = rank == 1 ? 5.0 : 3.0, .steps = {1}});
  }
  EXPECT_EQ(begins(e, 1)[1], 5);
  EXPECT_EQ(begins(e, 2), std::vector<double>(static_cast<std::size_t>(e.ranks()), 0.0));
  const Result late = run(1);
  // The 3 s in which no rank has begun are not of the step.
  EXPECT_NEAR(late.seconds, even.seconds + 2, 1e-9);
  for (std::size_t rank = 0; rank < late.ranks.size(); ++rank) {
    const double begin = rank == 1 ? 2 : 0;
    EXPECT_EQ(late.ranks[rank].begin, begin);
    EXPECT_NEAR(late.ranks[rank].end, even.ranks[rank].end + 2, 1e-9);
    EXPECT_NEAR(late.ranks[rank].data_parallel_wait,
                even.ranks[rank].data_parallel_wait + 2 - begin, 1e-9);
    EXPECT_NEAR(late.ranks[rank].busy(), even.ranks[rank].busy(), 1e-9);
  }
  EXPECT_EQ(run(2).seconds, even.seconds);
}

}  // namespace
}  // namespace cadenza::simulate::test_clock
