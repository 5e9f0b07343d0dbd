// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "app/run_folder.hpp"
#include "cadenza/config/load.hpp"
#include "app/simulate/simulation_report.hpp"

namespace cadenza::app {
namespace {

using Json = nlohmann::ordered_json;

Json parts_of(const TimeTable& table, double step_seconds) {
  Json parts;
  for (const TimeTable::Part& part : table.parts()) {
    parts[part.key] = {{"mean_seconds", part.mean},
                       {"mean_share", part.mean / step_seconds},
                       {"most_seconds", part.most},
                       {"most_rank", part.rank}};
  }
  return parts;
}

Json memory_of(const MemoryVerdict& memory) {
  return {{"fits", memory.fits()},
          {"limit_bytes", memory.limit},
          {"largest_bytes", memory.largest},
          {"largest_rank", memory.fullest},
          {"smallest_bytes", memory.smallest},
          {"ranks_beyond", memory.ranks_beyond},
          {"beyond", memory.beyond}};
}

/// What placement auto looked at; null where there is no number.
Json search_of(const std::vector<Considered>& considered) {
  const auto number = [](auto value) { return value > 0 ? Json(value) : Json(); };
  Json rows = Json::array();
  for (const Considered& one : considered) {
    const config::Parallel& p = one.candidate.parallel;
    rows.push_back({{"data", p.data},
                    {"pipeline", p.pipeline},
                    {"tensor", p.tensor},
                    {"context", p.context},
                    {"placement", placement_text(one.candidate.attention)},
                    {"recompute", config::word_of(one.candidate.recompute)},
                    {"shard", config::word_of(p.shard)},
                    {"status", one.status},
                    {"why", one.why},
                    {"seconds", number(one.seconds)},
                    {"bound_seconds", one.bound_seconds},
                    {"bytes", number(one.bytes)}});
  }
  return rows;
}

}  // namespace

std::string to_json(const Simulation& simulation, const SimulationSummary& s,
                    const TimeTable& table, const std::string& folder) {
  Json json = {{"name", simulation.experiment().name},
               {"ranks", s.ranks},
               {"nodes", simulation.nodes()},
               {"machine", simulation.machine().name},
               {"explanation", simulation.explanation()},
               {"decisions", simulation.decisions()},
               {"seconds", s.seconds},
               {"step_seconds", s.steps},
               {"lower_bound_seconds", s.lower_bound_seconds},
               {"tokens", s.tokens},
               {"tokens_per_second", s.tokens_per_second()},
               {"model_flops_utilization", s.model_flops_utilization},
               {"attention_imbalance", s.attention_imbalance},
               {"bytes_sent", s.bytes_sent},
               {"parts", parts_of(table, s.seconds)},
               {"memory", memory_of(s.memory)},
               {"notes", s.notes}};
  if (!simulation.considered().empty()) json["search"] = search_of(simulation.considered());
  if (!folder.empty()) json["output"] = folder;
  return json.dump(2);
}

}  // namespace cadenza::app
