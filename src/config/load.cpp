// SPDX-License-Identifier: Apache-2.0
#include "cadenza/config/load.hpp"

#include <optional>

#include "config/check.hpp"
#include "config/keys.hpp"
#include "config/read.hpp"
#include "config/words.hpp"
#include "config/yaml.hpp"

namespace cadenza::config {
namespace {

/// What a file says on its own; nothing where that is no experiment.
std::optional<Experiment> alone(const Value& root) {
  try {
    check_keys<Experiment>(root);
    Experiment experiment = read_experiment(root);
    check_consistency(experiment, root);
    return experiment;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

Experiment parse_experiment(const std::string& text, const std::string& file,
                            const std::vector<std::string>& overrides, UnusedKeys* unused,
                            HeadsOf heads) {
  Value root = parse_yaml(text, file);
  std::optional<Experiment> file_alone;
  if (unused != nullptr && !overrides.empty()) file_alone = alone(root);
  // Before any value is read: an override may mend or supply what the file lacks.
  for (const std::string& override : overrides) apply_override(root, override);
  check_keys<Experiment>(root);
  Experiment experiment = read_experiment(root);
  check_consistency(experiment, root, heads);
  if (unused != nullptr) unused->look_at(experiment, root, file_alone);
  return experiment;
}

void check_experiment(const Experiment& experiment) {
  check_consistency(experiment, Value{});
}

std::string_view word_of(PlacementKind placement) {
  return word(placement);
}

std::string_view word_of(AttentionKind kind) {
  return word(kind);
}

std::string_view word_of(Dtype dtype) {
  return word(dtype);
}

std::string_view word_of(Recompute recompute) {
  return word(recompute);
}

std::string_view word_of(Shard shard) {
  return word(shard);
}

}  // namespace cadenza::config
