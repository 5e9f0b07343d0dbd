// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"

#include <algorithm>

namespace cadenza::program {
namespace {

/// The last stage before `stage` that brings rows of the move to its sender; -1: they are at home.
int brought_by(const plan::Plan& plan, const plan::Move& move, int stage) {
  const bool at_home = std::ranges::any_of(plan.workload.homes, [&](const plan::Home& home) {
    return home.rank == move.from && home.document == move.document &&
           home.tokens.overlaps(move.tokens);
  });
  for (int earlier = at_home ? -1 : stage - 1; earlier >= 0; --earlier) {
    const auto& moves = plan.stages[static_cast<std::size_t>(earlier)].moves;
    if (std::ranges::any_of(moves, [&](const plan::Move& m) {
          return m.to == move.from && m.what == move.what && m.document == move.document &&
                 m.tokens.overlaps(move.tokens) && m.heads.overlaps(move.heads);
        })) {
      return earlier;
    }
  }
  return -1;
}

void add(std::vector<Step>& steps, Step place, Operation operation, std::size_t stage) {
  place.operation = operation;
  place.stage = static_cast<int>(stage);
  steps.push_back(place);
}

}  // namespace

int inputs_ready(const plan::Plan& plan, Pass pass, Rank self, int stage) {
  int ready = -1;
  for (const plan::Move& move : plan.stages[static_cast<std::size_t>(stage)].moves) {
    if (move.from != self || is_result(move.what, pass)) continue;
    ready = std::max(ready, brought_by(plan, move, stage));
  }
  return ready;
}

Exchange::Exchange(const plan::Plan& plan, Pass pass, Rank self) {
  for (const plan::Stage& planned : plan.stages) {
    Stage& stage = stages_.emplace_back();
    stage.ready = inputs_ready(plan, pass, self, static_cast<int>(stages_.size()) - 1);
    for (const plan::Move& move : planned.moves) {
      if (move.from != self && move.to != self) continue;
      const bool result = is_result(move.what, pass);
      (result ? stage.results : stage.inputs) = true;
      if (move.to == self) (result ? stage.results_arrive : stage.inputs_arrive) = true;
    }
    stage.tasks = std::ranges::any_of(
        planned.tasks, [self](const plan::PlacedTask& task) { return task.server == self; });
  }
}

std::size_t Exchange::end_of_tasks() const {
  std::size_t end = stages_.size();
  while (end > 0 && !stages_[end - 1].tasks && !stages_[end - 1].inputs) --end;
  return end;
}

void Exchange::add_start(const Step& place, std::vector<Step>& steps) const {
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    if (stages_[s].inputs && stages_[s].ready < 0) add(steps, place, Operation::post, s);
  }
}

void Exchange::add_tasks(const Step& place, std::vector<Step>& steps) const {
  const std::size_t end = end_of_tasks();
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const Stage& stage = stages_[s];
    if (stage.inputs_arrive) add(steps, place, Operation::wait, s);
    for (std::size_t later = s + 1; later < stages_.size(); ++later) {
      if (stages_[later].ready == static_cast<int>(s)) add(steps, place, Operation::post, later);
    }
    if (stage.tasks) add(steps, place, Operation::attend, s);
    if (s + 1 < stages_.size() && stages_[s + 1].results) {
      add(steps, place, Operation::post_results, s + 1);
    }
    if (stage.results_arrive && s < end) add(steps, place, Operation::wait_results, s);
  }
}

void Exchange::add_end(const Step& place, std::vector<Step>& steps) const {
  for (std::size_t s = end_of_tasks(); s < stages_.size(); ++s) {
    if (stages_[s].results_arrive) add(steps, place, Operation::wait_results, s);
  }
}

}  // namespace cadenza::program
