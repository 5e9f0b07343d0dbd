// SPDX-License-Identifier: Apache-2.0
// Sums over a step's plans, for the table and JSON: totals, keys moved and keys needed, the picture
// of a document.
#pragma once

#include <string>
#include <vector>

#include "cadenza/plan/plan.hpp"
#include "cadenza/plan/predict.hpp"
#include "cadenza/plan/report.hpp"

namespace cadenza::plan {

/// Bytes of K and V, summed over servers.
struct KeyBytes {
  std::int64_t moved = 0;
  /// Bytes of the rows that some task of a server reads and that do not live there, each counted
  /// once. With sparse attention this is an estimate: a task reads a row unless all blocks of its
  /// queries leave it out, each with the probability that the plan expects for a pair.
  double needed = 0;
};

/// The key bytes of a forward plan.
KeyBytes key_bytes(const Plan& plan);

// --- Sums and numbers of a step's plans, which all reports share ---

struct Summary {
  Plan total;  ///< cost and bytes per rank summed over plans; the first plan's pool; no stages
  Prediction prediction;         ///< summed over plans
  KeyBytes keys;                 ///< summed over plans
  double imbalance_at_home = 1;  ///< largest over mean of costs at home, summed over plans
};

Summary summarize(const std::vector<Plan>& plans, const StepNotes& notes);

/// The prediction of the i-th plan; at nominal rates where `notes` have none.
Prediction prediction_of(const std::vector<Plan>& plans, std::size_t i, const StepNotes& notes);
/// The basis of the predictions: "machine h100", or cost::nominal_rates() where none is named.
std::string rates_of(const StepNotes& notes);

/// ", layers 0-2,5"; empty where a plan covers all layers.
std::string describe_layers(const Workload& workload);

/// The place of a plan in its step.
struct Place {
  int tick = 0;
  int half = 0;            ///< half of the tick; 1 has the documents of 0
  bool first = true;       ///< first plan of its tick; others cover other layers or the other half
  int first_document = 0;  ///< step-wide number of its document 0
};

std::vector<Place> places(const std::vector<Plan>& plans);

// --- The picture of a document's attention matrix ---

/// Draws the longest documents side by side, by text positions: a digit or letter for the rank that
/// computes a cell, "." for masked cells, "-" for queries of another half. Empty with more than 36
/// ranks.
std::string draw(const Plan& plan, int first_document);

}  // namespace cadenza::plan
