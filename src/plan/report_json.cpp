// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "cadenza/plan/cost.hpp"
#include "cadenza/plan/report.hpp"
#include "summary.hpp"

namespace cadenza::plan {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(Range range) {
  return Json::array({range.begin, range.end});
}

std::string_view word(Rule rule) {
  return rule == Rule::causal ? "causal" : "full";
}

Json to_json(const Move& move, int first_document) {
  return {{"from", move.from},
          {"to", move.to},
          {"what", name(move.what)},
          {"document", first_document + move.document},
          {"tokens", to_json(move.tokens)},
          {"heads", to_json(move.heads)},
          {"bytes", move.bytes}};
}

Json to_json(const PlacedTask& placed, int first_document) {
  const Task& task = placed.task;
  return {{"server", placed.server},      {"document", first_document + task.document},
          {"q", to_json(task.q)},         {"k", to_json(task.k)},
          {"heads", to_json(task.heads)}, {"rule", word(task.rule)},
          {"cost", placed.cost}};
}

Json to_json(const Merge& merge, int first_document) {
  return {{"owner", merge.owner},
          {"document", first_document + merge.document},
          {"tokens", to_json(merge.tokens)},
          {"heads", to_json(merge.heads)},
          {"contributors", merge.contributors}};
}

Json to_json(const Plan& plan, int tick, int first_document) {
  Json stages = Json::array();
  for (const Stage& stage : plan.stages) {
    Json moves = Json::array();
    Json tasks = Json::array();
    for (const Move& move : stage.moves) moves.push_back(to_json(move, first_document));
    for (const PlacedTask& placed : stage.tasks) tasks.push_back(to_json(placed, first_document));
    stages.push_back({{"moves", std::move(moves)}, {"tasks", std::move(tasks)}});
  }
  Json merges = Json::array();
  for (const Merge& merge : plan.merges) merges.push_back(to_json(merge, first_document));
  return {{"tick", tick},
          {"microbatch", tick},
          {"stages", std::move(stages)},
          {"merges", std::move(merges)}};
}

Json to_json(const Summary& summary) {
  return {{"cost_per_rank", summary.total.cost_per_rank},
          {"bytes_sent_per_rank", summary.total.bytes_sent_per_rank},
          {"imbalance", imbalance(summary.total)},
          {"lower_bound_seconds", summary.prediction.lower_bound_seconds},
          {"predicted_seconds", summary.prediction.predicted_seconds}};
}

}  // namespace

std::string to_json(const std::vector<Plan>& ticks) {
  Json documents = Json::array();
  Json homes = Json::array();
  Json plans = Json::array();
  for (std::size_t tick = 0; tick < ticks.size(); ++tick) {
    const Workload& workload = ticks[tick].workload;
    const int first_document = static_cast<int>(documents.size());
    for (std::int64_t length : workload.lengths) documents.push_back(length);
    for (const Home& home : workload.homes) {
      homes.push_back({{"rank", home.rank},
                       {"document", first_document + home.document},
                       {"tokens", to_json(home.tokens)}});
    }
    plans.push_back(to_json(ticks[tick], static_cast<int>(tick), first_document));
  }
  const Json step = {{"ranks", ticks.empty() ? 0 : ticks.front().workload.ranks},
                     {"documents", std::move(documents)},
                     {"home", std::move(homes)},
                     {"plans", std::move(plans)},
                     {"summary", to_json(summarize(ticks))}};
  return step.dump() + "\n";
}

}  // namespace cadenza::plan
