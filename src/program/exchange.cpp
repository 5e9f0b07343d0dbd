// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"

namespace cadenza::program {
namespace {

void add(std::vector<Step>& steps, Step place, Operation operation, std::size_t stage) {
  place.operation = operation;
  place.stage = static_cast<int>(stage);
  steps.push_back(place);
}

}  // namespace

Exchange::Exchange(const Traffic& traffic, Rank self) {
  for (int s = 0; s < traffic.stages(); ++s) stages_.push_back(traffic.of(self, s));
}

std::size_t Exchange::end_of_tasks() const {
  std::size_t end = stages_.size();
  while (end > 0 && stages_[end - 1].tasks.empty() && !stages_[end - 1].inputs) --end;
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
    const Part& stage = stages_[s];
    if (stage.inputs_arrive) add(steps, place, Operation::wait, s);
    for (std::size_t later = s + 1; later < stages_.size(); ++later) {
      if (stages_[later].ready == static_cast<int>(s)) add(steps, place, Operation::post, later);
    }
    if (!stage.tasks.empty()) add(steps, place, Operation::attend, s);
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
