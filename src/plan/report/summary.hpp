// SPDX-License-Identifier: Apache-2.0
// A step's plans added up, for the table and for JSON: totals, keys moved beside keys needed, the
// picture of a document.
#pragma once

#include <string>
#include <vector>

#include "cadenza/plan/plan.hpp"
#include "cadenza/plan/predict.hpp"
#include "cadenza/plan/report.hpp"

namespace cadenza::plan {

/// Bytes of K and V, all servers together.
struct KeyBytes {
  std::int64_t moved = 0;
  /// Rows that some task of a server reads and that do not live there, each counted once. Of sparse
  /// attention an estimate: a task is expected to read a row unless all blocks of its queries leave
  /// it out, each with the share of pairs that the plan expects to be left out.
  double needed = 0;
  KeyBytes& operator+=(const KeyBytes& other);
};

/// Of a forward plan.
KeyBytes key_bytes(const Plan& plan);

// A step's plans added up and numbered: what all reports share.

struct Summary {
  Plan total;  ///< cost and bytes per rank summed over plans; the first plan's pool; no stages
  Prediction prediction;         ///< summed over plans
  KeyBytes keys;                 ///< summed over plans
  double imbalance_at_home = 1;  ///< largest over mean of costs at home, summed over plans
};

Summary summarize(const std::vector<Plan>& plans, const StepNotes& notes);

/// Of the i-th plan.
Prediction prediction_of(const std::vector<Plan>& plans, std::size_t i, const StepNotes& notes);
/// "machine h100"; cost::nominal_rates() where none is named.
std::string rates_of(const StepNotes& notes);

/// ", layers 0-2,5"; empty where a plan is for all of them.
std::string describe_layers(const Workload& workload);

/// Where a plan stands in its step.
struct Place {
  int tick = 0;
  int half = 0;            ///< of the tick; 1: the second one, with the first one's documents
  bool first = true;       ///< of its tick; the others are of other layers or halves of the same
  int first_document = 0;  ///< step-wide number of its document 0
};

std::vector<Place> places(const std::vector<Plan>& plans);

// Who computes which cell of a document's attention matrix, in characters.

/// Pictures of the longest documents by text positions, side by side: a digit or letter for each
/// rank, "." for masked cells, "-" for queries of another half; empty with more than 36 ranks.
std::string draw(const Plan& plan, int first_document);

}  // namespace cadenza::plan
