// SPDX-License-Identifier: Apache-2.0
// Plans as people and scripts read them (`cadenza plan --format table|json`).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/base/sparse_index.hpp"
#include "cadenza/plan/plan.hpp"
#include "cadenza/plan/predict.hpp"

namespace cadenza::plan {

/// What a step has beside its plans; what is empty is left out.
struct StepNotes {
  std::vector<std::int64_t> peak_bytes_per_rank;  ///< memory
  std::vector<std::int64_t> delays;               ///< steps that each document of the step waited
  /// World ranks of every pool that follows these plans, in the plans' order; one pool needs none.
  std::vector<std::vector<Rank>> pools;
  std::vector<Prediction> predictions;  ///< of each plan
  std::vector<std::string> decisions;   ///< what was auto, with reasons
  std::string rates;                    ///< what they are predicted for: "machine h100"
  std::string estimate = {};            ///< of sparse attention: "budgets", "steps up to 7"
  SparseIndex index = {};               ///< to be shown: of the documents of all plans, in order
};

// Without predictions they are those of nominal rates.
// Every report takes the plans of a step in order; two halves of a tick (Workload::queries) follow
// one another and share its documents.

/// What attention.tolerance: auto compared: "0.02 (auto: a layer is predicted to take 82.1 ms; 0.1:
/// 86.0 ms)"; empty where it was given.
std::string describe(const std::vector<Trial>& trials);

/// One table per plan (per rank: tokens, tasks, cost, share of the mean, bytes sent, memory) with a
/// picture in characters of its longest documents, and the step's summary line.
std::string to_table(const std::vector<Plan>& plans, const StepNotes& notes = {});

/// The JSON contract of docs/plan.md: ranks, documents, home, plans (tick, microbatch, stages of
/// moves and tasks, merges) and summary. Ranges are half-open, in tokens of the document as the
/// plan counts them (its `order`). Documents are numbered over the whole step: those of tick 0
/// first.
std::string to_json(const std::vector<Plan>& plans, const StepNotes& notes = {});

}  // namespace cadenza::plan
