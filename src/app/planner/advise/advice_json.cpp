// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <nlohmann/json.hpp>

#include "app/planner/advise/advice.hpp"
#include "app/planner/advise/question.hpp"
#include "app/planner/search/search_json.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app {
namespace {

using Json = nlohmann::ordered_json;

Json interval_of(const std::optional<StepRatio>& ratio) {
  if (!ratio) return {};
  const bool known = !std::isinf(ratio->high);
  return {{"value", ratio->value},
          {"low", known ? Json(ratio->low) : Json()},
          {"high", known ? Json(ratio->high) : Json()},
          {"steps", ratio->steps}};
}

Json lengths_of(const Documents& d) {
  Json bins = Json::array();
  for (const LengthBin& bin : d.bins) {
    bins.push_back({{"from", bin.from},
                    {"to", bin.to},
                    {"documents", bin.documents},
                    {"tokens", bin.tokens},
                    {"attention", bin.attention}});
  }
  return {{"steps", d.steps},
          {"count", d.count},
          {"mean", d.mean},
          {"median", d.median},
          {"percentile_99", d.percentile_99},
          {"longest", d.longest},
          {"attention_share", d.attention_flops / d.model_flops},
          {"imbalance", d.imbalance},
          {"bins", bins}};
}

Json changes_of(const std::vector<Scenario>& scenarios) {
  const auto outlook = [](const Outlook& one) -> Json {
    if (one.seconds == 0) return {};
    return {{"seconds", one.seconds}, {"fits", one.fits}};
  };
  Json all = Json::array();
  for (const Scenario& one : scenarios) {
    all.push_back({{"key", one.key},
                   {"what", one.what},
                   {"with_cad", outlook(one.with)},
                   {"without_cad", outlook(one.without)},
                   {"cad", interval_of(one.cad)}});
  }
  return all;
}

Json evidence_of(const std::vector<Evidence>& evidence) {
  Json all = Json::array();
  for (const Evidence& one : evidence) {
    all.push_back({{"software", one.software},
                   {"machine", one.machine},
                   {"steps", one.steps},
                   {"median", one.median},
                   {"ninety", one.ninety},
                   {"memory_right", one.memory_right},
                   {"memory_all", one.memory_all},
                   {"source", one.source},
                   {"logs", one.logs}});
  }
  return all;
}

Json instructions_of(const std::vector<Instruction>& instructions) {
  Json all = Json::array();
  for (const Instruction& one : instructions) {
    all.push_back({{"stack", one.recipe.stack},
                   {"row", one.row},
                   {"shard", config::word_of(one.candidate.parallel.shard)},
                   {"slower", one.slower},
                   {"steps", one.steps},
                   {"file", one.recipe.file},
                   {"text", one.recipe.text},
                   {"missing", one.recipe.missing},
                   {"notes", one.recipe.notes}});
  }
  return all;
}

}  // namespace

std::string to_json(const Advice& a) {
  const config::Experiment& e = a.asked;
  Json json = {{"question",
                {{"model", a.question.model},
                 {"machine", a.machine.name},
                 {"devices", e.ranks()},
                 {"software", e.cluster.software.name},
                 {"lengths", a.question.lengths},
                 {"sequence", sequence_of(a.question, e)},
                 {"tokens", e.batch.tokens}}},
               {"answer", answer_text(a)},
               {"cad", interval_of(a.choice.cad)},
               {"documents", lengths_of(a.documents)},
               {"search", search_json(a.choice.considered)},
               {"scenarios", changes_of(a.scenarios)},
               {"evidence", evidence_of(a.evidence)},
               {"instructions", instructions_of(a.instructions)}};
  if (!a.folder.empty()) json["output"] = a.folder;
  return json.dump(2);
}

}  // namespace cadenza::app
