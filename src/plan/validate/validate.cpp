// SPDX-License-Identifier: Apache-2.0
#include "cadenza/plan/validate.hpp"

#include "cadenza/base/at.hpp"
#include "plan/validate/rules.hpp"

#include <algorithm>
#include <span>
#include <tuple>

#include "cadenza/base/error.hpp"

namespace cadenza::plan {
namespace {

bool any_of(const std::vector<Tensor>& list, Tensor what) {
  return std::find(list.begin(), list.end(), what) != list.end();
}

}  // namespace

bool PassTensors::reads(Tensor what) const {
  return any_of(query_inputs, what) || any_of(key_inputs, what);
}

bool PassTensors::produces(Tensor what) const {
  return any_of(query_results, what) || any_of(key_results, what);
}

const PassTensors& forward_tensors() {
  static const PassTensors pass{
      "forward", {Tensor::q}, {Tensor::k, Tensor::v}, {Tensor::o, Tensor::lse}, {}, 1.0};
  return pass;
}

const PassTensors& backward_tensors() {
  static const PassTensors pass{"backward",
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
  const auto view = [&](int document) -> DocumentView& { return views[at(document)]; };
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

namespace {

using Places = std::vector<std::pair<Rank, Task>>;

Places places(const Plan& plan) {
  Places list;
  for (const Stage& stage : plan.stages) {
    for (const PlacedTask& placed : stage.tasks) list.emplace_back(placed.server, placed.task);
  }
  const auto key = [](const std::pair<Rank, Task>& place) {
    const Task& t = place.second;
    return std::tuple(place.first, t.document, t.q.begin, t.q.end, t.k.begin, t.k.end,
                      t.heads.begin, t.heads.end, t.band, t.q_positions);
  };
  std::sort(list.begin(), list.end(),
            [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return list;
}

bool same_workload(const Workload& a, const Workload& b) {
  return a.lengths == b.lengths && a.homes == b.homes && a.servers == b.servers &&
         a.capacities == b.capacities && a.ranks == b.ranks && a.shape == b.shape &&
         a.context == b.context && a.order == b.order && a.mask == b.mask && a.sparse == b.sparse &&
         a.density == b.density && a.queries == b.queries && a.layers == b.layers;
}

/// Whether a document lives on one rank and all of it is computed there: no row can be missing.
bool stays_home(const Homes& homes, const DocumentView& view) {
  const std::span<const Home> parts = homes.of(view.document);
  return view.moves.empty() && parts.size() == 1 &&
         std::all_of(view.tasks.begin(), view.tasks.end(),
                     [&](const auto& staged) { return staged.part->server == parts.front().rank; });
}

}  // namespace

std::vector<std::string> violations(const Plan& forward) {
  const PassTensors& pass = forward_tensors();
  Faults faults("");
  check_form(forward, pass, faults);
  if (!faults.empty()) return faults.lines();
  const Homes homes(forward.workload);
  for (const DocumentView& view : by_document(forward)) {
    check_coverage(forward.workload, view, faults);
    if (!stays_home(homes, view)) {
      check_presence(forward.workload, homes, view, pass, nullptr, forward.gathers_all, faults);
    }
    check_merging(forward.workload, homes, view, pass, true, faults);
  }
  check_index(forward, true, faults);
  check_totals(forward, pass, faults);
  return faults.lines();
}

std::vector<std::string> mirror_violations(const Plan& forward, const Plan& backward) {
  const PassTensors& pass = backward_tensors();
  Faults faults("mirror: ");
  if (!same_workload(forward.workload, backward.workload)) {
    faults.add("coverage", "the backward plan has another workload");
    return faults.lines();
  }
  if (forward.keeps_inputs != backward.keeps_inputs) {
    faults.add("presence", "the forward plan keeps its inputs: {}, the backward plan: {}",
               forward.keeps_inputs, backward.keeps_inputs);
  }
  check_form(backward, pass, faults);
  if (!faults.empty()) return faults.lines();
  if (places(forward) != places(backward)) {
    faults.add("coverage", "the backward plan has other tasks, or places them on other servers");
  }
  if (!backward.merges.empty()) {
    faults.add("merging", "gradients are sums: found {} merges, valid: none",
               backward.merges.size());
  }
  const Homes homes(backward.workload);
  const std::vector<DocumentView> before = by_document(forward);
  for (const DocumentView& view : by_document(backward)) {
    if (stays_home(homes, view)) continue;
    const DocumentView* kept = forward.keeps_inputs ? &before[at(view.document)] : nullptr;
    check_presence(backward.workload, homes, view, pass, kept, forward.gathers_all, faults);
    check_merging(backward.workload, homes, view, pass, false, faults);
  }
  check_index(backward, false, faults);
  check_totals(backward, pass, faults);
  return faults.lines();
}

void require_valid(const Plan& forward, const Plan& backward) {
  std::vector<std::string> faults = violations(forward);
  if (faults.empty()) faults = mirror_violations(forward, backward);
  if (faults.empty()) return;
  fail(ExitCode::usage, "invalid plan: {} violations, the first: {}", faults.size(),
       faults.front());
}

}  // namespace cadenza::plan
