// SPDX-License-Identifier: Apache-2.0
// Makes CAD's plan from its assignments: keys of documents on several ranks go round rings, other
// rows straight to their servers, and all that a server has at home is spread over the stages.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cadenza/base/at.hpp"
#include "plan/assemble.hpp"
#include "plan/cad/phases.hpp"
#include "plan/placements/ring_builder.hpp"

namespace cadenza::plan {
namespace {

void append(Stage part, Stage& stage) {
  std::ranges::move(part.moves, std::back_inserter(stage.moves));
  std::ranges::move(part.tasks, std::back_inserter(stage.tasks));
}

/// Tasks whose rows are all at home, in the stages in which their server works anyway and in one
/// after guests, such that these are as equal as they can be: the messages of a stage travel while
/// those before compute.
class Spreader {
 public:
  Spreader(const Workload& workload, std::int64_t block, std::vector<Stage>& stages)
      : workload_(workload), block_(block), stages_(stages) {}

  void add(const std::vector<PlacedTask>& local) {
    std::vector<Server> servers(static_cast<std::size_t>(workload_.ranks));
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      for (const PlacedTask& placed : stages_[s].tasks) {
        std::map<std::size_t, double>& fixed = servers[at(placed.server)].fixed;
        fixed[s] += placed.cost;
        if (s == RingBuilder::kArrival) fixed[s + 1] += 0;
      }
    }
    for (const PlacedTask& placed : local) servers[at(placed.server)].local.push_back(&placed);
    for (const Server& server : servers) spread(server);
  }

 private:
  struct Server {
    std::map<std::size_t, double> fixed{{0, 0.0}};  ///< by stage: FLOPs of other tasks
    std::vector<const PlacedTask*> local;
  };

  void spread(const Server& server) {
    const double level = level_of(server);
    auto stage = server.fixed.begin();
    double room = level - stage->second;  // FLOPs
    for (const PlacedTask* placed : server.local) {
      PlacedTask rest = *placed;
      while (std::next(stage) != server.fixed.end() && rest.cost > room) {
        if (const auto first = room > 0 ? cut(rest, room) : std::nullopt) {
          stages_[stage->first].tasks.push_back(*first);
        }
        room = level - (++stage)->second;
      }
      stages_[stage->first].tasks.push_back(rest);
      room -= rest.cost;
    }
  }

  /// FLOPs to which the local tasks fill up the stages that have less.
  static double level_of(const Server& server) {
    double filled = 0;
    for (const PlacedTask* placed : server.local) filled += placed->cost;
    std::vector<double> fixed;
    for (const auto& [stage, cost] : server.fixed) fixed.push_back(cost);
    std::ranges::sort(fixed);
    double level = 0;
    for (std::size_t i = 0; i < fixed.size(); ++i) {
      filled += fixed[i];
      level = filled / static_cast<double>(i + 1);
      if (i + 1 < fixed.size() && level <= fixed[i + 1]) break;
    }
    return level;
  }

  /// Cuts about so many FLOPs off a task's first queries; none where that is less than a block.
  std::optional<PlacedTask> cut(PlacedTask& rest, double flops) const {
    const Task& task = rest.task;
    const auto blocks = static_cast<double>(task.q.size()) / static_cast<double>(block_);
    const double share = std::sqrt(std::max(0.0, flops) / rest.cost);  // of a causal triangle
    const std::int64_t end = task.q.begin + static_cast<std::int64_t>(share * blocks) * block_;
    if (end <= task.q.begin || end >= task.q.end) return std::nullopt;
    const auto part = [&](Range q) {
      return masked_tasks(workload_, {task.document, q, task.k, task.heads});
    };
    const std::vector<Task> before = part({task.q.begin, end}), after = part({end, task.q.end});
    if (before.size() != 1 || after.size() != 1) return std::nullopt;
    const Rank server = rest.server;
    rest = place_task(workload_, server, after.front());
    return place_task(workload_, server, before.front());
  }

  const Workload& workload_;
  std::int64_t block_;
  std::vector<Stage>& stages_;
};

/// Gives a ring's position the queries of an assignment that see its keys.
void assign(const Workload& workload, const Homes& homes, const Assignment& one,
            Position& position) {
  const Range keys = keys_of(workload, one);
  const Range own = workload.mask_of(one.document)
                        .queries(intersect(one.q, workload.queries_of(at(one.document))), keys);
  homes.for_each_part(one.document, own, [&](const Home& part) {
    position.queries.push_back(part);
    const bool guest = part.rank != position.first;
    position.work.push_back({one.document, part.tokens, keys, guest});
  });
}

void set_stages(const Homes& homes, const std::vector<Assignment>& assignments, std::int64_t block,
                const RingShape& shape, Plan& plan) {
  const Workload& workload = plan.workload;
  RingBuilder builder(workload, shape);
  std::map<std::vector<Rank>, Ring> rings = builder.rings_of_documents();
  std::vector<Assignment> straight;
  for (const Assignment& one : assignments) {
    Ring& ring = rings.at(builder.members_of(homes.of(one.document)));
    const auto server = std::ranges::find(ring, one.server, &Position::first);
    if (ring.size() == 1 || server == ring.end()) {
      straight.push_back(one);
    } else {
      assign(workload, homes, one, *server);
    }
  }
  int of_rings = 1;
  bool direct = false, other = false;
  for (auto& [members, ring] : rings) {
    if (ring.size() == 1) continue;
    for (Position& position : ring) unite(position.queries);
    builder.add(ring);
    of_rings = std::max(of_rings, builder.last_stage());
    (builder.direct() ? direct : other) = true;
  }
  plan.paced = direct && !other;
  std::vector<Stage> stages = builder.take();
  auto [local, remote, results] = straight_stages(workload, homes, straight);
  // The ring's results come before, also those of its last keys in the backward pass: results that
  // are there earlier must not wait for them.
  const std::size_t last = static_cast<std::size_t>(of_rings) + 1;
  stages.resize(std::max(stages.size(), last + 1));
  append(std::move(remote), stages[RingBuilder::kArrival]);
  append(std::move(results), stages[last]);
  Spreader(workload, block, stages).add(local.tasks);
  plan.stages = std::move(stages);
}

/// With more ranks, messages are many and short: a document of 1M tokens on 32 ranks then took 2 %
/// longer than in a ring.
constexpr int kDirect = 8;

}  // namespace

Plan staged_plan(const Workload& workload, const Homes& homes, std::vector<Assignment> assignments,
                 std::int64_t block, std::vector<int> nodes, bool gathers) {
  coalesce(workload, assignments);
  Plan plan;
  plan.workload = workload;
  const RingShape shape{.nodes = std::move(nodes),
                        .gathers = gathers,
                        .by_document = true,
                        .skips = true,
                        .direct = kDirect};
  set_stages(homes, assignments, block, shape, plan);
  while (plan.stages.size() > 1 && is_empty(plan.stages.back())) plan.stages.pop_back();
  for (Stage& stage : plan.stages) sort_stage(stage);
  plan.merges = make_merges(workload, homes, plan.stages);
  add_totals(plan);
  return plan;
}

}  // namespace cadenza::plan
