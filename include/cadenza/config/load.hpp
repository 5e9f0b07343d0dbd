// SPDX-License-Identifier: Apache-2.0
// Strict parsing of YAML into an Experiment, and back. This module alone uses yaml-cpp.
#pragma once

#include <functional>
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

/// Collects keys that were written although a choice of the experiment ignores them (or makes their
/// value far slower than another), over one experiment or all points of a sweep. Thread-safe. Does
/// not report keys that some point uses or that have their default value.
class UnusedKeys {
 public:
  /// Looks at an experiment and the text that it was read from.
  /// @param file_alone  the experiment without overrides, if it is valid: a key that it uses is not
  ///                    reported, since only this run's overrides make it unused
  void look_at(const Experiment& experiment, const Value& root,
               const std::optional<Experiment>& file_alone = std::nullopt);
  /// "file:line: key.path: found ..., which ... ignores; used with ..." or "... found ... with ...:
  /// why; faster: ...", one for each key.
  std::vector<std::string> lines() const;

 private:
  mutable std::mutex mutex_;
  std::set<std::string> used_;
  std::map<std::string, std::string> lines_;  ///< by key
};

/// Where the number of heads comes from: the model, or input tensors that the experiment does not
/// know (cadenza attend).
enum class HeadsOf { model, input };

/// Returns the contents of the file at a path that the experiment names.
/// @param valid  in words: which key with which file
using ReadFile = std::function<std::string(const std::string& path, const std::string& valid)>;

/// Reads it from disk. @throws Error(usage)
std::string read_named_file(const std::string& path, const std::string& valid);

/// Parses `text` (the contents of `file`, named only in messages), applies `overrides`
/// ("key.path=value", values are YAML; a whole block or list is replaced, a later one wins), then
/// checks every value and combination, so that overrides may correct the file. Keys of `model` that
/// neither has come from the file of model.config, those of `cluster.software` from the file or the
/// known stack that it names; the experiment refers to neither.
/// @throws Error(usage) with "file:line: key.path: found ...; valid: ..." or
///         "--set key.path=value: found ...; valid: ...", one line; an unknown key or word names
///         the nearest valid one.
/// @param unused  collects the unused keys, if given
/// @param read    reads such files
Experiment parse_experiment(const std::string& text, const std::string& file,
                            const std::vector<std::string>& overrides, UnusedKeys* unused = nullptr,
                            HeadsOf heads = HeadsOf::model, const ReadFile& read = read_named_file);

/// The model and the attention that the Hugging Face config.json at `path` describes, with defaults
/// in all else. @throws Error(usage)
Experiment read_model_config(const std::string& path);

/// Reads the budgets of heads from `text`, the contents of the file attention.sparse.budgets: a
/// list of layers, each a list of query heads, each {columns, slashes, top_p}. Missing values are
/// those of the experiment. @throws Error(usage)
void read_budgets(const std::string& text, Experiment& experiment);

/// Checks the values of an experiment that was not read from a file against each other.
/// @throws Error(usage)
void check_experiment(const Experiment& experiment);

/// The word of a choice in experiment files.
std::string_view word_of(PlacementKind placement);
std::string_view word_of(AttentionKind kind);
std::string_view word_of(Dtype dtype);
std::string_view word_of(Recompute recompute);
std::string_view word_of(Shard shard);

/// The whole experiment, defaults included, as YAML that parse_experiment reads back exactly.
std::string to_yaml(const Experiment& experiment);

/// Every key, with its value as text, of YAML that to_yaml of this or another version wrote:
/// {"model.heads", "4"}. @throws Error(usage)
std::map<std::string, std::string> settings(const std::string& yaml, const std::string& file);

/// Checks that every step of cluster.faults will run: a fault elsewhere would silently do nothing.
/// @throws Error(usage) where cluster.faults has a step outside [first, first + steps)
void check_faults(const Experiment& experiment, std::int64_t first, std::int64_t steps);

/// Checks that the experiment can run on `ranks` processes; throws Error(usage) that says
/// how many are needed and how they are counted.
void check_ranks(const Experiment& experiment, int ranks);

}  // namespace cadenza::config
