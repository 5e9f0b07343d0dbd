// SPDX-License-Identifier: Apache-2.0
// YAML -> Experiment, strict. The only user of yaml-cpp.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cadenza/config/experiment.hpp"

namespace cadenza::config {

/// Parses `text` (the contents of `file`, named only in messages), then applies `overrides`
/// ("key.path=value", values are YAML; a whole block or list is replaced, a later one wins), then
/// checks every value and combination: an override may mend or supply what the file lacks.
/// @throws Error(usage) with "file:line: key.path: found ...; valid: ..." or
///         "--set key.path=value: found ...; valid: ...", one line; an unknown key or word names
///         the nearest valid one.
Experiment parse_experiment(const std::string& text, const std::string& file,
                            const std::vector<std::string>& overrides);

/// Takes the budgets of heads from `text`, the contents of the file attention.sparse.budgets: a
/// list of layers, each a list of query heads, each {columns, slashes, top_p}. What is left out is
/// as in the experiment. @throws Error(usage)
void read_budgets(const std::string& text, Experiment& experiment);

/// Checks an experiment that no file holds: its values against each other.
/// @throws Error(usage)
void check_experiment(const Experiment& experiment);

/// The word in experiment files.
std::string_view word_of(PlacementKind placement);
std::string_view word_of(AttentionKind kind);
std::string_view word_of(Dtype dtype);
std::string_view word_of(Recompute recompute);
std::string_view word_of(Shard shard);

/// The whole experiment, defaults included, as YAML that parse_experiment reads back to the same.
std::string to_yaml(const Experiment& experiment);

/// Every key of what to_yaml wrote, of this or another version, with its value as text:
/// {"model.heads", "4"}. @throws Error(usage)
std::map<std::string, std::string> settings(const std::string& yaml, const std::string& file);

/// Checks that the experiment can run on `ranks` processes; throws Error(usage) that says
/// how many are needed and how they are counted.
void check_ranks(const Experiment& experiment, int ranks);

}  // namespace cadenza::config
