// SPDX-License-Identifier: Apache-2.0
// Reports of plans for people and scripts (`cadenza plan --format table|json`).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/base/sparse_index.hpp"
#include "cadenza/plan/plan.hpp"
#include "cadenza/plan/predict.hpp"

namespace cadenza::plan {

/// Facts about a step beside its plans; reports leave out what is empty.
struct StepNotes {
  std::vector<std::int64_t> peak_bytes_per_rank;  ///< peak memory
  std::vector<std::int64_t> delays;               ///< by document of the step: steps that it waited
  /// World ranks of every pool that follows these plans, in the plans' order; empty: one pool.
  std::vector<std::vector<Rank>> pools;
  std::vector<Prediction> predictions;  ///< by plan; empty: predicted at nominal rates
  std::vector<std::string> decisions;   ///< values chosen for keys that were auto, with reasons
  std::string rates;                    ///< basis of the predictions: "machine h100"
  std::string estimate = {};            ///< basis of sparse weights: "budgets", "steps up to 7"
  SparseIndex index = {};               ///< to be shown, for the documents of all plans, in order
  std::int64_t padding = 0;             ///< best_fit: tokens by which the microbatches are not full
};

// Every report takes the plans of a step in order; the two halves of a tick (Workload::queries) are
// neighbours and share its documents.

/// Describes the tolerances that attention.tolerance: auto compared: "0.02 (auto: a layer is
/// predicted to take 82.1 ms; 0.1: 86.0 ms)"; empty where the tolerance was given.
std::string describe(const std::vector<Trial>& trials);

/// One table per plan (per rank: tokens, tasks, cost, share of the mean, bytes sent, memory) with a
/// picture in characters of its longest documents, and the step's summary line.
std::string to_table(const std::vector<Plan>& plans, const StepNotes& notes = {});

/// JSON by the contract of docs/plan.md: ranks, documents, home, plans (tick, microbatch, stages of
/// moves and tasks, merges) and summary. Ranges are half-open, in the plan's counts of tokens (its
/// `order`). Documents are numbered over the whole step, those of tick 0 first.
std::string to_json(const std::vector<Plan>& plans, const StepNotes& notes = {});

}  // namespace cadenza::plan
