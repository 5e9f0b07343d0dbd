// SPDX-License-Identifier: Apache-2.0
#include "plan/report/summary.hpp"

#include <fmt/format.h>

#include <cmath>
#include <span>

#include "cadenza/base/text.hpp"
#include "cadenza/base/units.hpp"

namespace cadenza::plan {
namespace {

/// Whether `second` is for the rest of the queries of the same documents.
bool completes(const Workload& first, const Workload& second) {
  if (first.queries.empty() || second.queries.empty()) return false;
  if (first.lengths != second.lengths) return false;
  for (std::size_t d = 0; d < first.lengths.size(); ++d) {
    const Range a = first.queries[d];
    const Range b = second.queries[d];
    const bool joined = a.empty() || b.empty() ? a.size() + b.size() == first.lengths[d]
                                               : a.end == b.begin || b.end == a.begin;
    if (!joined) return false;
  }
  return true;
}

/// By plan: the share of the layers that it is for. Sums are those of a layer, the mean of all.
std::vector<double> layer_shares(const std::vector<Plan>& plans) {
  std::size_t layers = 0;
  for (const Plan& plan : plans) {  // of the first tick
    if (&plan != &plans.front() && plan.workload.layers == plans.front().workload.layers) break;
    layers += plan.workload.layers.size();
  }
  std::vector<double> shares;
  for (const Plan& plan : plans) {
    const auto mine = static_cast<double>(plan.workload.layers.size());
    shares.push_back(layers == 0 ? 1 : mine / static_cast<double>(layers));
  }
  return shares;
}

}  // namespace

Prediction prediction_of(const std::vector<Plan>& plans, std::size_t i, const StepNotes& notes) {
  if (!notes.predictions.empty()) return notes.predictions.at(i);
  return predict(plans[i], cost::nominal_pool(plans[i].workload.shape.head_dim));
}

std::string rates_of(const StepNotes& notes) {
  return notes.rates.empty() ? cost::nominal_rates() : notes.rates;
}

std::string describe(const std::vector<Trial>& trials) {
  if (trials.empty()) return "";
  constexpr double kUsual = 0.1;
  const Trial& taken = trials.front();
  const Trial* other = &trials[1];
  for (const Trial& trial : std::span(trials).subspan(1)) {
    if (trial.tolerance == kUsual) other = &trial;
  }
  return fmt::format("{} (auto: a layer is predicted to take {}; {}: {})", taken.tolerance,
                     format_duration(taken.layer_seconds), other->tolerance,
                     format_duration(other->layer_seconds));
}

Summary summarize(const std::vector<Plan>& plans, const StepNotes& notes) {
  Summary summary;
  if (plans.empty()) return summary;
  summary.total.workload.ranks = plans.front().workload.ranks;
  summary.total.workload.servers = plans.front().workload.servers;
  summary.total.workload.capacities = plans.front().workload.capacities;
  add_totals(summary.total);  // zeros
  const std::vector<double> parts = layer_shares(plans);
  std::vector<double> at_home = summary.total.cost_per_rank;
  std::vector<double> bytes = at_home;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Plan& plan = plans[i];
    const std::vector<double> home = cost_at_home(plan.workload);
    for (std::size_t rank = 0; rank < plan.cost_per_rank.size(); ++rank) {
      summary.total.cost_per_rank[rank] += parts[i] * plan.cost_per_rank[rank];
      bytes[rank] += parts[i] * static_cast<double>(plan.bytes_sent_per_rank[rank]);
      at_home[rank] += parts[i] * home[rank];
    }
    summary.keys += key_bytes(plan);
    const Prediction prediction = prediction_of(plans, i, notes);
    summary.prediction.lower_bound_seconds += parts[i] * prediction.lower_bound_seconds;
    summary.prediction.predicted_seconds += parts[i] * prediction.predicted_seconds;
  }
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    summary.total.bytes_sent_per_rank[rank] = std::llround(bytes[rank]);
  }
  summary.imbalance_at_home = imbalance_at_home(plans.front().workload, at_home);
  return summary;
}

std::string describe_layers(const Workload& workload) {
  return workload.layers.empty() ? "" : ", layers " + number_list(workload.layers);
}

std::vector<Place> places(const std::vector<Plan>& plans) {
  std::vector<Place> list;
  int documents = 0;
  int tick = -1;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const bool second =
        i > 0 && list.back().half == 0 && completes(plans[i - 1].workload, plans[i].workload);
    const bool other_layers = plans[i].workload.layers != plans.front().workload.layers;
    if (second || other_layers) {
      list.push_back({tick, second ? 1 : 0, false, list.back().first_document});
      continue;
    }
    list.push_back({++tick, 0, true, documents});
    documents += static_cast<int>(plans[i].workload.lengths.size());
  }
  return list;
}

}  // namespace cadenza::plan
