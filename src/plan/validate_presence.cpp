// SPDX-License-Identifier: Apache-2.0
// Rule `presence`: what every rank holds, stage by stage.
#include <map>

#include "validate_rules.hpp"

namespace cadenza::plan {
namespace {

struct Rows {
  Range tokens;
  Range heads;
  std::int64_t shared(const Rows& other) const {
    const Range t = intersect(tokens, other.tokens);
    const Range h = intersect(heads, other.heads);
    return t.empty() || h.empty() ? 0 : t.size() * h.size();
  }
};

class Presence {
 public:
  Presence(const Workload& workload, const Homes& homes, int document, const Pass& pass,
           Faults& faults)
      : workload_(workload), homes_(homes), document_(document), pass_(pass), faults_(faults) {}

  void arrive(const Move& move) {
    if (!homes_.holds(move.from, document_, move.tokens)) {
      faults_.add("presence", "{}: not all at home on the sender", describe(move));
    }
    std::vector<Rows>& rows = received_[{move.to, move.what}];
    const Rows arriving{move.tokens, move.heads};
    for (const Rows& held : rows) {
      if (held.shared(arriving) > 0) faults_.add("presence", "{}: sent twice", describe(move));
    }
    rows.push_back(arriving);
  }

  void run(const PlacedTask& placed) {
    const Task& task = placed.task;
    for (Tensor what : pass_.query_inputs) require(placed, what, {task.q, task.heads});
    for (Tensor what : pass_.key_inputs) {
      require(placed, what, {task.k, key_heads(workload_.shape, task.heads)});
    }
  }

 private:
  // Rows at home and rows received never overlap, so areas add up.
  void require(const PlacedTask& placed, Tensor what, const Rows& need) {
    std::int64_t held = homes_.held(placed.server, document_, need.tokens) * need.heads.size();
    const std::int64_t wanted = need.tokens.size() * need.heads.size();
    if (held == wanted) return;
    for (const Rows& rows : received_[{placed.server, what}]) held += rows.shared(need);
    if (held < wanted) {
      faults_.add("presence", "{}: only {} of {} rows of {} are there", describe(placed), held,
                  wanted, name(what));
    }
  }

  const Workload& workload_;
  const Homes& homes_;
  int document_;
  const Pass& pass_;
  Faults& faults_;
  std::map<std::pair<Rank, Tensor>, std::vector<Rows>> received_;
};

}  // namespace

void check_presence(const Workload& workload, const Homes& homes, const DocumentView& view,
                    const Pass& pass, Faults& faults) {
  Presence presence(workload, homes, view.document, pass, faults);
  auto move = view.moves.begin();
  for (const auto& [stage, placed] : view.tasks) {
    for (; move != view.moves.end() && move->stage <= stage; ++move) {
      if (pass.reads(move->part->what)) presence.arrive(*move->part);
    }
    presence.run(*placed);
  }
  for (; move != view.moves.end(); ++move) {
    if (pass.reads(move->part->what)) presence.arrive(*move->part);
  }
}

}  // namespace cadenza::plan
