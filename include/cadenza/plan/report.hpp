// SPDX-License-Identifier: Apache-2.0
// Plans as people and scripts read them (`cadenza plan --format table|json`).
#pragma once

#include <string>
#include <vector>

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// One table per tick (per rank: tasks, cost, share of the mean, bytes sent) and the step's summary
/// line.
std::string to_table(const std::vector<Plan>& ticks);

/// The JSON contract of docs/plan.md: ranks, documents, home, plans (tick, microbatch, stages of
/// moves and tasks, merges) and summary. Ranges are half-open, in tokens of the document. Documents
/// are numbered over the whole step: those of tick 0 first.
std::string to_json(const std::vector<Plan>& ticks);

}  // namespace cadenza::plan
