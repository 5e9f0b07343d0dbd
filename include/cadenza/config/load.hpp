// SPDX-License-Identifier: Apache-2.0
// YAML -> Experiment, strict. The only user of yaml-cpp.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cadenza/config/experiment.hpp"

namespace cadenza::config {

struct Value;

/// Keys that were written although a choice of the experiment ignores them. Looks at one experiment
/// or at all points of a sweep, from any thread: a key that one of them uses is not told of, and
/// neither is one with its default value.
class UnusedKeys {
 public:
  /// @param file_alone  the experiment without overrides, if it is one: a key of the file that it
  ///                    uses is not told of, as only this run does without it
  void look_at(const Experiment& experiment, const Value& root,
               const std::optional<Experiment>& file_alone = std::nullopt);
  /// "file:line: key.path: found ..., which ... ignores; used with ...", one for each key.
  std::vector<std::string> lines() const;

 private:
  mutable std::mutex mutex_;
  std::set<std::string> used_;
  std::map<std::string, std::string> lines_;  ///< by key
};

/// Whose heads attention has: those of the model, or those of tensors that the experiment does not
/// know (cadenza attend).
enum class HeadsOf { model, input };

/// Parses `text` (the contents of `file`, named only in messages), then applies `overrides`
/// ("key.path=value", values are YAML; a whole block or list is replaced, a later one wins), then
/// checks every value and combination: an override may mend or supply what the file lacks.
/// @throws Error(usage) with "file:line: key.path: found ...; valid: ..." or
///         "--set key.path=value: found ...; valid: ...", one line; an unknown key or word names
///         the nearest valid one.
/// @param unused  looks at it, if given
Experiment parse_experiment(const std::string& text, const std::string& file,
                            const std::vector<std::string>& overrides, UnusedKeys* unused = nullptr,
                            HeadsOf heads = HeadsOf::model);

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

/// A fault of a step that does not come would go unnoticed.
/// @throws Error(usage) where cluster.faults has a step outside [first, first + steps)
void check_faults(const Experiment& experiment, std::int64_t first, std::int64_t steps);

/// Checks that the experiment can run on `ranks` processes; throws Error(usage) that says
/// how many are needed and how they are counted.
void check_ranks(const Experiment& experiment, int ranks);

}  // namespace cadenza::config
