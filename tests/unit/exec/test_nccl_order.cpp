// SPDX-License-Identifier: Apache-2.0
// Programs of random experiments under NCCL's rules. A rank starts groups of sends and receives in
// the order of its program. Groups of a communicator run one after another; a group is done when
// all its messages are, and a message is when both ends run. There are no tags: the n-th message of
// a pair on a communicator is the n-th at both ends.
#include <gmock/gmock.h>

#include <array>
#include <map>
#include <set>
#include <tuple>

#include "unit/exec/random_experiment.hpp"

namespace cadenza::exec {
namespace {

using program::Operation;
using program::Pass;
using program::Step;

/// Which groups share a communicator.
enum class Communicators {
  ours,            ///< inputs, results, and each edge of a pipeline in each pass: exec::Groups
  one_per_pass,    ///< for all edges of a pass
  one_per_device,  ///< for everything: a device that runs one kernel of NCCL at a time
};

/// What a message is: communicator, plan, layer, repeated, stage.
using Name = std::tuple<int, int, int, bool, int>;

struct Message {
  Rank peer = 0;
  bool sends = false;
};

struct Group {
  int communicator = 0;
  Name name;
  std::vector<Message> messages;
  std::size_t waited = 0;  ///< groups of this rank that kernels before it wait for: see RankGroups
  bool runs = false, done = false;
};

struct RankGroups {
  std::vector<Group> groups;       ///< in the order of the program
  std::vector<std::size_t> waits;  ///< groups that kernels wait for, in order
};

struct Verdict {
  bool matched = true;  ///< both ends of every pair have the same order
  bool ended = true;
};

class World {
 public:
  World(const config::Experiment& experiment, Communicators communicators)
      : shape_(experiment), communicators_(communicators) {
    const auto corpus = data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
    ticks_ = program::plan_ticks(experiment, data::Packer(*corpus, experiment).batch(0));
    for (Rank rank = 0; rank < shape_.layout.ranks(); ++rank) {
      ranks_.push_back(groups_of(program::make_program(shape_, rank, ticks_)));
    }
  }

  /// A planted fault: the first two groups of a rank that share a communicator and a peer, swapped.
  /// @return whether there are any
  bool swap_two() {
    for (RankGroups& rank : ranks_) {
      for (std::size_t i = 0; i + 1 < rank.groups.size(); ++i) {
        Group& first = rank.groups[i];
        Group& second = rank.groups[i + 1];
        if (first.communicator != second.communicator || first.name == second.name) continue;
        if (first.messages.front().peer != second.messages.front().peer) continue;
        if (first.messages.front().sends != second.messages.front().sends) continue;
        std::swap(first, second);
        return true;
      }
    }
    return false;
  }

  Verdict judge() {
    Verdict verdict;
    std::map<std::tuple<int, Rank, Rank>, std::array<std::vector<Name>, 2>> pairs;
    for (Rank rank = 0; rank < shape_.layout.ranks(); ++rank) {
      for (const Group& group : of(rank).groups) {
        for (const Message& m : group.messages) {
          const auto pair = m.sends ? std::tuple(group.communicator, rank, m.peer)
                                    : std::tuple(group.communicator, m.peer, rank);
          pairs[pair][m.sends ? 0 : 1].push_back(group.name);
        }
      }
    }
    for (const auto& [pair, ends] : pairs) verdict.matched &= ends[0] == ends[1];
    while (start_some() | end_some()) {
    }
    for (const RankGroups& rank : ranks_) {
      for (const Group& group : rank.groups) verdict.ended &= group.done;
    }
    return verdict;
  }

  std::size_t groups() const {
    std::size_t count = 0;
    for (const RankGroups& rank : ranks_) count += rank.groups.size();
    return count;
  }

 private:
  RankGroups& of(Rank rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  RankGroups groups_of(const program::Program& program) const {
    RankGroups made;
    std::map<Name, std::size_t> numbers;
    const auto add = [&](const Name& name, std::vector<Message> messages) {
      numbers[name] = made.groups.size();
      const bool one = communicators_ == Communicators::one_per_device;
      made.groups.push_back(
          {one ? 0 : std::get<0>(name), name, std::move(messages), made.waits.size()});
    };
    for (const Step& step : program.steps) {
      const bool results =
          step.operation == Operation::post_results || step.operation == Operation::wait_results;
      if (step.operation == Operation::post || step.operation == Operation::post_results) {
        auto messages = attention(step, program.rank, results);
        if (messages.empty()) continue;
        add(attention_name(step, program.rank, results), std::move(messages));
      } else if (step.operation == Operation::wait || step.operation == Operation::wait_results) {
        made.waits.push_back(numbers.at(attention_name(step, program.rank, results)));
      } else if (step.operation == Operation::send || step.operation == Operation::receive) {
        const bool sends = step.operation == Operation::send;
        add(stream_name(step, program.rank), {{step.peer, sends}});
        if (!sends) made.waits.push_back(made.groups.size() - 1);
      }
    }
    return made;
  }

  std::vector<Message> attention(const Step& step, Rank rank, bool results) const {
    const program::Layout& layout = shape_.layout;
    const int pool = layout.pool_of(rank);
    std::vector<Message> messages;
    const auto& traffic = ticks_[static_cast<std::size_t>(step.plan)].traffic(step.pass);
    for (const program::Flow& flow : traffic.flows(step.stage)) {
      if (flow.results != results) continue;
      if (flow.from == layout.in_pool(rank)) {
        messages.push_back({layout.world_rank(pool, flow.to), true});
      }
      if (flow.to == layout.in_pool(rank)) {
        messages.push_back({layout.world_rank(pool, flow.from), false});
      }
    }
    return messages;
  }
  Name attention_name(const Step& step, Rank rank, bool results) const {
    const int half = step.part;
    const int communicator = 1 + 4 * shape_.layout.pool_of(rank) + 2 * half + (results ? 1 : 0);
    const bool backward = step.pass == Pass::backward;
    return {communicator, 2 * step.plan + (backward ? 1 : 0), step.layer, step.recompute,
            step.stage};
  }

  /// Chunks are counted where a stream comes from.
  Name stream_name(const Step& step, Rank rank) const {
    const program::Layout& layout = shape_.layout;
    const bool sends = step.operation == Operation::send;
    const int here = layout.coordinates(rank).pipeline;
    const int there = layout.coordinates(step.peer).pipeline;
    const int from = sends ? here : there;
    const int to = sends ? there : here;
    const bool forward = step.pass == Pass::forward;
    const int wraps = (forward ? to < from : to > from) ? 1 : 0;
    const int chunk = sends ? step.chunk : step.chunk - (forward ? wraps : -wraps);
    auto at = layout.coordinates(rank);
    at.pipeline = 0;
    const int edge = forward ? from : to;
    int communicator = -1 - (2 * (layout.rank(at) * layout.pipeline() + edge) + (forward ? 0 : 1));
    if (communicators_ == Communicators::one_per_pass) communicator = forward ? -1 : -2;
    return {communicator, step.microbatch, chunk, forward, edge};
  }

  bool start_some() {
    bool some = false;
    for (RankGroups& rank : ranks_) {
      std::set<int> busy;
      for (Group& group : rank.groups) {
        if (group.done) continue;
        if (!group.runs && !busy.contains(group.communicator) && is_fed(rank, group)) {
          group.runs = some = true;
        }
        busy.insert(group.communicator);
      }
    }
    return some;
  }
  /// Whether the kernels before it have run.
  static bool is_fed(const RankGroups& rank, const Group& group) {
    for (std::size_t i = 0; i < group.waited; ++i) {
      if (!rank.groups[rank.waits[i]].done) return false;
    }
    return true;
  }
  bool end_some() {
    bool some = false;
    for (RankGroups& rank : ranks_) {
      for (Group& group : rank.groups) {
        if (!group.runs || group.done) continue;
        group.done = std::ranges::all_of(group.messages, [&](const Message& m) {
          return std::ranges::any_of(of(m.peer).groups, [&](const Group& other) {
            return other.runs && other.name == group.name;
          });
        });
        some |= group.done;
      }
    }
    return some;
  }

  program::StepShape shape_;
  Communicators communicators_;
  std::vector<program::TickPlans> ticks_;
  std::vector<RankGroups> ranks_;
};

struct Count {
  int cases = 0, mismatched = 0, stuck = 0, swapped = 0, missed = 0;
  std::size_t groups = 0;
};

Count judge_random(Communicators communicators, int rounds) {
  Count count;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t p = 0; p < testing::all_placements().size(); ++p) {
      for (const int ranks : {2, 3, 4, 5, 6, 8}) {
        testing::Draw draw(static_cast<std::uint64_t>(10000 * round) + 100 * p +
                           static_cast<std::uint64_t>(ranks));
        const auto experiment =
            testing::random_experiment(draw, ranks, testing::all_placements()[p]);
        World world(experiment, communicators);
        World faulty = world;
        const Verdict verdict = world.judge();
        ++count.cases;
        count.groups += world.groups();
        count.mismatched += verdict.matched ? 0 : 1;
        count.stuck += verdict.ended ? 0 : 1;
        if (!verdict.matched || !verdict.ended) {
          SCOPED_TRACE(config::to_yaml(experiment));
          EXPECT_NE(communicators, Communicators::ours);
        }
        if (!faulty.swap_two()) continue;
        ++count.swapped;
        count.missed += faulty.judge().matched ? 1 : 0;
      }
    }
  }
  return count;
}

TEST(NcclOrder, OfProgramsMatchesAndEnds) {
  const Count count = judge_random(Communicators::ours, 3);
  EXPECT_EQ(count.mismatched, 0);
  EXPECT_EQ(count.stuck, 0);
  EXPECT_GT(count.groups, 20000u);
  EXPECT_GT(count.swapped, 50);
  EXPECT_EQ(count.missed, 0) << "planted faults";
  RecordProperty("groups", static_cast<int>(count.groups));
}

/// Why every edge of a pipeline has communicators of its own.
TEST(NcclOrder, OneCommunicatorForAPassGoesInCircles) {
  config::Experiment e = testing::tiny_experiment();
  e.model.layers = 6;
  e.parallel.pipeline = 3;
  e.parallel.chunks = 2;
  e.attention.placement = config::PlacementKind::colocated;
  EXPECT_TRUE(World(e, Communicators::ours).judge().ended);
  EXPECT_FALSE(World(e, Communicators::one_per_pass).judge().ended);
}

/// What is not promised: a device that runs one kernel of NCCL at a time, in the order of the
/// calls, needs the sends and receives of neighbouring stages in one group.
TEST(NcclOrder, OneKernelAtATimeStopsPipelines) {
  const Count count = judge_random(Communicators::one_per_device, 1);
  EXPECT_GT(count.stuck, 0);
  RecordProperty("stuck", count.stuck);
  RecordProperty("cases", count.cases);
}

}  // namespace
}  // namespace cadenza::exec
