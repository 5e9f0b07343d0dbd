// SPDX-License-Identifier: Apache-2.0
#include "plan/validate/rules.hpp"

#include <algorithm>

namespace cadenza::plan {
namespace {

bool any_of(const std::vector<Tensor>& list, Tensor what) {
  return std::find(list.begin(), list.end(), what) != list.end();
}

}  // namespace

bool Pass::reads(Tensor what) const {
  return any_of(query_inputs, what) || any_of(key_inputs, what);
}

bool Pass::produces(Tensor what) const {
  return any_of(query_results, what) || any_of(key_results, what);
}

const Pass& forward_pass() {
  static const Pass pass{"forward", {Tensor::q}, {Tensor::k, Tensor::v}, {Tensor::o, Tensor::lse},
                         {},        1.0};
  return pass;
}

const Pass& backward_pass() {
  static const Pass pass{"backward",
                         {Tensor::q, Tensor::dout, Tensor::lse, Tensor::delta},
                         {Tensor::k, Tensor::v},
                         {Tensor::dq},
                         {Tensor::dk, Tensor::dv},
                         kBackwardFlopsRatio};
  return pass;
}

std::string describe(Range range) {
  return fmt::format("[{},{})", range.begin, range.end);
}

std::string describe(Band band) {
  return fmt::format("keys i{} to i{}", band.has_low() ? fmt::format("{:+}", band.low) : "-inf",
                     band.has_high() ? fmt::format("{:+}", band.high) : "+inf");
}

std::string describe(const Move& move) {
  return fmt::format("{} of document {} tokens {} heads {} from rank {} to rank {}",
                     name(move.what), move.document, describe(move.tokens), describe(move.heads),
                     move.from, move.to);
}

std::string describe(const PlacedTask& placed) {
  const Task& task = placed.task;
  return fmt::format("task of document {} q {} k {} heads {} on rank {}", task.document,
                     describe(task.q), describe(task.k), describe(task.heads), placed.server);
}

std::vector<DocumentView> by_document(const Plan& plan) {
  std::vector<DocumentView> views(plan.workload.lengths.size());
  for (std::size_t i = 0; i < views.size(); ++i) views[i].document = static_cast<int>(i);
  const auto view = [&](int document) -> DocumentView& {
    return views[static_cast<std::size_t>(document)];
  };
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    for (const PlacedTask& placed : plan.stages[stage].tasks) {
      view(placed.task.document).tasks.push_back({stage, &placed});
    }
    for (const Move& move : plan.stages[stage].moves) {
      view(move.document).moves.push_back({stage, &move});
    }
  }
  for (const Merge& merge : plan.merges) view(merge.document).merges.push_back(&merge);
  return views;
}

}  // namespace cadenza::plan
