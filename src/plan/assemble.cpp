// SPDX-License-Identifier: Apache-2.0
#include "assemble.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "merges.hpp"
#include "order.hpp"

namespace cadenza::plan {
namespace {

PlacedTask place(const Assignment& assignment, const AttentionShape& shape) {
  const Task task{
      assignment.document, assignment.q, {0, assignment.q.end}, {0, shape.heads}, Rule::causal};
  return {assignment.server, task, forward_flops(task, shape.head_dim)};
}

class Assembler {
 public:
  Assembler(const Workload& workload, const Homes& homes) : workload_(workload), homes_(homes) {}

  std::vector<Stage> stages(const std::vector<Assignment>& assignments) {
    for (const Assignment& assignment : assignments) add(assignment);
    for (const auto& [place, end] : key_end_) add_keys(place.first, place.second, end);
    std::vector<Stage> stages;
    stages.push_back(std::move(local_));
    if (!remote_.tasks.empty()) stages.push_back(std::move(remote_));
    if (!results_.moves.empty()) stages.push_back(std::move(results_));
    for (Stage& stage : stages) sort_stage(stage);
    return stages;
  }

 private:
  void add(const Assignment& assignment) {
    const PlacedTask placed = place(assignment, workload_.shape);
    const Task& task = placed.task;
    if (homes_.holds(placed.server, task.document, task.q) &&
        homes_.holds(placed.server, task.document, task.k)) {
      local_.tasks.push_back(placed);
      return;
    }
    remote_.tasks.push_back(placed);
    std::int64_t& end = key_end_[{placed.server, task.document}];
    end = std::max(end, task.k.end);
    homes_.for_each_part(task.document, task.q, [&](const Home& part) {
      if (part.rank == placed.server) return;
      add_move(remote_, part.rank, placed.server, Tensor::q, part);
      add_move(results_, placed.server, part.rank, Tensor::o, part);
      add_move(results_, placed.server, part.rank, Tensor::lse, part);
    });
  }

  // The tasks of a document on one server share its keys: their union is [0, end).
  void add_keys(Rank server, int document, std::int64_t end) {
    homes_.for_each_part(document, {0, end}, [&](const Home& part) {
      if (part.rank == server) return;
      add_move(remote_, part.rank, server, Tensor::k, part);
      add_move(remote_, part.rank, server, Tensor::v, part);
    });
  }

  void add_move(Stage& stage, Rank from, Rank to, Tensor what, const Home& part) const {
    const AttentionShape& shape = workload_.shape;
    const Range heads{0, is_key_side(what) ? shape.kv_heads : shape.heads};
    stage.moves.push_back({from, to, what, part.document, part.tokens, heads,
                           move_bytes(shape, what, part.tokens, heads)});
  }

  const Workload& workload_;
  const Homes& homes_;
  Stage local_;
  Stage remote_;
  Stage results_;
  std::map<std::pair<Rank, int>, std::int64_t> key_end_;  // of remote tasks, by (server, document)
};

}  // namespace

void coalesce(std::vector<Assignment>& assignments) {
  std::sort(assignments.begin(), assignments.end(), [](const Assignment& a, const Assignment& b) {
    return std::tie(a.document, a.q.begin) < std::tie(b.document, b.q.begin);
  });
  std::vector<Assignment> joined;
  for (const Assignment& next : assignments) {
    if (next.q.empty()) continue;
    if (!joined.empty() && joined.back().document == next.document &&
        joined.back().server == next.server && joined.back().q.end == next.q.begin) {
      joined.back().q.end = next.q.end;
    } else {
      joined.push_back(next);
    }
  }
  assignments = std::move(joined);
}

Plan assemble(const Workload& workload, const Homes& homes, std::vector<Assignment> assignments) {
  coalesce(assignments);
  Plan plan;
  plan.workload = workload;
  plan.stages = Assembler(workload, homes).stages(assignments);
  plan.merges = make_merges(workload, homes, plan.stages);
  add_totals(plan);
  return plan;
}

}  // namespace cadenza::plan
