// SPDX-License-Identifier: Apache-2.0
// Programs of random experiments under NCCL's rules, on devices that run the groups of several
// communicators at a time and on those that run one group at a time.
#include <gmock/gmock.h>

#include "unit/exec/nccl_world.hpp"

namespace cadenza::exec {
namespace {

using testing::Device;
using testing::Fault;
using testing::is_of;
using testing::Kind;
using testing::NcclGroup;
using testing::RankGroups;
using testing::Verdict;
using testing::World;

constexpr int kRounds = 3;

/// Calls check(experiment) with `rounds` of every placement, on 2 to 8 ranks.
template <typename Check>
void for_random_experiments(int rounds, const Check& check) {
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t p = 0; p < testing::all_placements().size(); ++p) {
      for (const int ranks : {2, 3, 4, 5, 6, 8}) {
        testing::Draw draw(static_cast<std::uint64_t>(10000 * round) + 100 * p +
                           static_cast<std::uint64_t>(ranks));
        check(testing::random_experiment(draw, ranks, testing::all_placements()[p]));
      }
    }
  }
}

TEST(NcclOrder, OfProgramsMatchesAndEndsOnEveryDevice) {
  std::size_t groups = 0;
  int pipelines = 0;
  for_random_experiments(kRounds, [&](const config::Experiment& experiment) {
    SCOPED_TRACE(config::to_yaml(experiment));
    World world(experiment);
    groups += world.groups();
    pipelines += experiment.parallel.pipeline > 1 ? 1 : 0;
    for (const Device device : {Device::queues, Device::one_at_a_time}) {
      const Verdict verdict = world.judge(device);
      EXPECT_TRUE(verdict.matched);
      EXPECT_TRUE(verdict.ended);
    }
  });
  EXPECT_GT(groups, 25000u);
  EXPECT_GT(pipelines, 50);
}

// --- planted faults: each must be found wherever it can be planted ---

struct Found {
  int planted = 0, missed = 0;
};

template <typename Plant, typename Finds>
Found plant_everywhere(const Plant& plant, const Finds& finds) {
  Found found;
  for_random_experiments(1, [&](const config::Experiment& experiment) {
    World world(experiment);
    if (!plant(world)) return;
    ++found.planted;
    found.missed += finds(world) ? 0 : 1;
  });
  return found;
}

Rank first_peer(const NcclGroup& group) {
  return group.messages.front().peer;
}

bool have_one_peer(const NcclGroup& a, const NcclGroup& b) {
  return a.messages.size() == 1 && b.messages.size() == 1 && first_peer(a) == first_peer(b);
}

TEST(NcclOrder, TwoGroupsOfACommunicatorThatChangePlacesAreFound) {
  const auto chosen = [](RankGroups& rank, std::size_t i) {
    const NcclGroup& a = rank.groups[i];
    const NcclGroup& b = rank.groups[i + 1];
    return a.communicator == b.communicator && first_peer(a) == first_peer(b) &&
           a.messages.front().sends == b.messages.front().sends;
  };
  const Found found =
      plant_everywhere([&](World& world) { return world.swap_two(chosen); },
                       [](World& world) { return !world.judge(Device::queues).matched; });
  EXPECT_GT(found.planted, 30);
  EXPECT_EQ(found.missed, 0);
}

TEST(NcclOrder, SumsOfGradientsThatChangePlacesAreFound) {
  const auto chosen = [](RankGroups& rank, std::size_t i) {
    return is_of(Kind::gradients, rank.groups[i]) && is_of(Kind::gradients, rank.groups[i + 1]);
  };
  const Found found =
      plant_everywhere([&](World& world) { return world.swap_two(chosen); },
                       [](World& world) { return !world.judge(Device::queues).matched; });
  EXPECT_GT(found.planted, 20);
  EXPECT_EQ(found.missed, 0);
}

/// A shard that is gathered and one that is summed, of one pair of ranks.
TEST(NcclOrder, ShardsOfTensorGroupsThatChangePlacesAreFound) {
  const auto chosen = [](RankGroups& rank, std::size_t i) {
    return is_of(Kind::slices, rank.groups[i]) && is_of(Kind::slices, rank.groups[i + 1]) &&
           first_peer(rank.groups[i]) == first_peer(rank.groups[i + 1]);
  };
  const Found found =
      plant_everywhere([&](World& world) { return world.swap_two(chosen); },
                       [](World& world) { return !world.judge(Device::queues).matched; });
  EXPECT_GT(found.planted, 3);
  EXPECT_EQ(found.missed, 0);
}

/// The other end still has the order from before.
TEST(NcclOrder, GroupsOfTwoCommunicatorsThatChangePlacesStopADeviceThatRunsOneAtATime) {
  const auto chosen = [](RankGroups& rank, std::size_t i) {
    const NcclGroup& a = rank.groups[i];
    const NcclGroup& b = rank.groups[i + 1];
    return a.communicator != b.communicator && have_one_peer(a, b);
  };
  const auto plant = [&](World& world) { return world.swap_two(chosen); };
  const Found found = plant_everywhere(
      plant, [](World& world) { return !world.judge(Device::one_at_a_time).ended; });
  EXPECT_GT(found.planted, 20);
  EXPECT_EQ(found.missed, 0);
}

/// A rank waits for what comes to it before it sends what that is computed from.
TEST(NcclOrder, WaitingTooEarlyStopsEveryDevice) {
  const auto plant = [](World& world) {
    const auto chosen = [&](RankGroups& rank, std::size_t i) {
      const NcclGroup& a = rank.groups[i];
      const NcclGroup& b = rank.groups[i + 1];
      return a.communicator != b.communicator && have_one_peer(a, b) &&
             testing::waits(world.of(first_peer(a)), b.name, a.name);
    };
    return world.swap_two_and_wait(chosen);
  };
  for (const Device device : {Device::queues, Device::one_at_a_time}) {
    const Found found =
        plant_everywhere(plant, [&](World& world) { return !world.judge(device).ended; });
    EXPECT_GT(found.planted, 10);
    EXPECT_EQ(found.missed, 0);
  }
}

/// A rank meets the others of its gradient's norm before it has started its last group.
TEST(NcclOrder, AHostThatMeetsOthersTooEarlyStopsEveryDevice) {
  const auto chosen = [](RankGroups& rank, std::size_t i) {
    return is_of(Kind::hosts, rank.groups[i + 1]) && !is_of(Kind::hosts, rank.groups[i]);
  };
  for (const Device device : {Device::queues, Device::one_at_a_time}) {
    const Found found =
        plant_everywhere([&](World& world) { return world.swap_two_and_wait(chosen); },
                         [&](World& world) { return !world.judge(device).ended; });
    EXPECT_GT(found.planted, 15);
    EXPECT_EQ(found.missed, 0);
  }
}

/// Why stages post receives in the order of the pipeline, and what a stage may not wait for.
TEST(NcclOrder, ReceivesThatArePostedWhereTheyAreNeededStopPipelines) {
  const auto ends = [](const config::Experiment& experiment, Fault fault, Device device) {
    return World(experiment, fault).judge(device).ended;
  };
  for_random_experiments(1, [&](const config::Experiment& experiment) {
    const bool pipeline = experiment.parallel.pipeline > 1;
    SCOPED_TRACE(config::to_yaml(experiment));
    EXPECT_TRUE(ends(experiment, Fault::late_receives, Device::queues));
    EXPECT_EQ(ends(experiment, Fault::late_receives, Device::one_at_a_time), !pipeline);
    EXPECT_EQ(ends(experiment, Fault::waits_for_sends, Device::queues), !pipeline);
  });
}

/// Why every edge of a pipeline has communicators of its own where they are.
TEST(NcclOrder, OneCommunicatorForAPassGoesInCircles) {
  config::Experiment e = testing::tiny_experiment();
  e.model.layers = 6;
  e.parallel.pipeline = 3;
  e.parallel.chunks = 2;
  e.attention.placement = config::PlacementKind::colocated;
  EXPECT_TRUE(World(e, Fault::late_receives).judge(Device::queues).ended);
  EXPECT_FALSE(World(e, Fault::one_for_a_pass).judge(Device::queues).ended);
}

}  // namespace
}  // namespace cadenza::exec
