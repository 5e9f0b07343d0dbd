// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"

#include <algorithm>

namespace cadenza::program {
namespace {

/// Documents' tokens at home on a rank, for one question: does a move start there?
bool at_home(const plan::Workload& workload, const plan::Move& move) {
  return std::ranges::any_of(workload.homes, [&](const plan::Home& home) {
    return home.rank == move.from && home.document == move.document &&
           home.tokens.overlaps(move.tokens);
  });
}

void add(std::vector<Step>& steps, Step place, Operation operation, std::size_t stage) {
  place.operation = operation;
  place.stage = static_cast<int>(stage);
  steps.push_back(place);
}

}  // namespace

Exchange::Exchange(const plan::Plan& plan, Pass pass, Rank self) {
  for (const plan::Stage& planned : plan.stages) {
    Stage& stage = stages_.emplace_back();
    for (const plan::Move& move : planned.moves) {
      if (move.from != self && move.to != self) continue;
      const bool result = is_result(move.what, pass);
      (result ? stage.results : stage.inputs) = true;
      if (move.to == self) (result ? stage.results_arrive : stage.inputs_arrive) = true;
      if (!result && move.from == self && !stage.passes_on) {
        stage.passes_on = !at_home(plan.workload, move);
      }
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
    if (stages_[s].inputs && !stages_[s].passes_on) add(steps, place, Operation::post, s);
  }
}

void Exchange::add_tasks(const Step& place, std::vector<Step>& steps) const {
  const std::size_t end = end_of_tasks();
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const Stage& stage = stages_[s];
    if (stage.inputs_arrive) add(steps, place, Operation::wait, s);
    if (s + 1 < stages_.size() && stages_[s + 1].passes_on)
      add(steps, place, Operation::post, s + 1);
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
