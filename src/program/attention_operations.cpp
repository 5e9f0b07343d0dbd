// SPDX-License-Identifier: Apache-2.0
#include "program/attention_operations.hpp"

#include <array>

#include "cadenza/base/at.hpp"
#include "cadenza/plan/index.hpp"

namespace cadenza::program {
namespace {

void add(std::vector<Instruction>& instructions, Instruction place, Operation operation,
         std::size_t stage) {
  place.operation = operation;
  place.stage = static_cast<int>(stage);
  instructions.push_back(place);
}

}  // namespace

AttentionOperations::AttentionOperations(const TickPlans& plans, Pass pass, Rank self) {
  const Traffic& traffic = plans.traffic(pass);
  end_of_tasks_ = static_cast<std::size_t>(traffic.end_of_tasks(self));
  for (int s = 0; s < traffic.stages(); ++s) stages_.push_back(traffic.of(self, s));
  const Traffic& index = plans.index_traffic(pass);
  if (index.stages() == 0) return;
  std::array<bool, plan::kIndexRounds> works{};  // all false: the backward pass only gets patterns
  if (pass == Pass::forward) works = plan::works_in(plans.forward.workload, self);
  for (int r = 0; r < index.stages(); ++r) {
    rounds_.push_back({index.of(self, r), works[at(r)]});
  }
}

void AttentionOperations::add_index_start(const Instruction& place,
                                          std::vector<Instruction>& instructions) const {
  if (place.recompute || rounds_.empty() || !rounds_.front().messages.inputs) return;
  add(instructions, place, Operation::post_index, 0);
}

void AttentionOperations::add_index(const Instruction& place,
                                    std::vector<Instruction>& instructions) const {
  for (std::size_t r = place.recompute ? rounds_.size() - 1 : 0; r < rounds_.size(); ++r) {
    const Round& round = rounds_[r];
    if (r > 0 && round.messages.inputs) add(instructions, place, Operation::post_index, r);
    if (round.messages.inputs_arrive) add(instructions, place, Operation::wait_index, r);
    if (round.works && !place.recompute) add(instructions, place, Operation::estimate, r);
  }
}

void AttentionOperations::add_start(const Instruction& place,
                                    std::vector<Instruction>& instructions) const {
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    if (stages_[s].inputs && stages_[s].ready < 0) add(instructions, place, Operation::post, s);
  }
}

void AttentionOperations::add_tasks(const Instruction& place,
                                    std::vector<Instruction>& instructions) const {
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const Part& stage = stages_[s];
    if (stage.inputs_arrive) add(instructions, place, Operation::wait, s);
    for (std::size_t later = s + 1; later < stages_.size(); ++later) {
      if (stages_[later].inputs && stages_[later].ready == static_cast<int>(s)) {
        add(instructions, place, Operation::post, later);
      }
    }
    if (!stage.tasks.empty()) add(instructions, place, Operation::attend, s);
    for (std::size_t later = s + 1; later < stages_.size(); ++later) {
      if (stages_[later].results && stages_[later].complete == static_cast<int>(s)) {
        add(instructions, place, Operation::post_results, later);
      }
    }
    if (s > 0 && s < end_of_tasks_ && stages_[s - 1].results_arrive) {
      add(instructions, place, Operation::wait_results, s - 1);
    }
  }
}

void AttentionOperations::add_end(const Instruction& place,
                                  std::vector<Instruction>& instructions) const {
  for (std::size_t s = end_of_tasks_ == 0 ? 0 : end_of_tasks_ - 1; s < stages_.size(); ++s) {
    if (stages_[s].results_arrive) add(instructions, place, Operation::wait_results, s);
  }
}

}  // namespace cadenza::program
