// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/search_json.hpp"

#include <nlohmann/json.hpp>

#include "cadenza/config/load.hpp"

namespace cadenza::app {
namespace {

using Json = nlohmann::ordered_json;

/// Seconds; null where it was not simulated.
Json parts_of(const Considered& one) {
  if (one.steps == 0) return {};
  return {{"attention", one.parts.attention},
          {"imbalance", one.parts.imbalance},
          {"other", one.parts.dense},
          {"waiting", one.parts.exposed}};
}

}  // namespace

nlohmann::ordered_json search_json(const std::vector<Considered>& considered) {
  const auto number = [](auto value) { return value > 0 ? Json(value) : Json(); };
  Json rows = Json::array();
  for (const Considered& one : considered) {
    const config::Parallel& p = one.candidate.parallel;
    rows.push_back({{"data", p.data},
                    {"pipeline", p.pipeline},
                    {"chunks", p.chunks},
                    {"tensor", p.tensor},
                    {"context", p.context},
                    {"servers", one.candidate.attention.servers},
                    {"mixed", one.candidate.attention.mixed},
                    {"microbatch", one.candidate.microbatch},
                    {"placement", placement_text(one.candidate.attention)},
                    {"longest", one.candidate.longest},
                    {"recompute", config::word_of(one.candidate.recompute)},
                    {"shard", config::word_of(p.shard)},
                    {"status", one.status},
                    {"why", one.why},
                    {"seconds", number(one.seconds)},
                    {"seconds_half_interval", number(one.half)},
                    {"steps", one.steps},
                    {"bound_seconds", one.bound_seconds},
                    {"bytes", number(one.bytes)},
                    {"model_flops_utilization", number(one.utilization)},
                    {"parts", parts_of(one)}});
  }
  return rows;
}

}  // namespace cadenza::app
