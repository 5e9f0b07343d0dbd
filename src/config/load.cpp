// SPDX-License-Identifier: Apache-2.0
#include "cadenza/config/load.hpp"

#include <fmt/format.h>

#include <optional>

#include "config/check.hpp"
#include "config/named_files.hpp"
#include "config/value.hpp"
#include "config/words.hpp"

namespace cadenza::config {
namespace {

/// The experiment of a tree, with what its files give.
Experiment checked_experiment(Value& root, HeadsOf heads, const ReadFile& read) {
  resolve_files(root, read);
  check_keys<Experiment>(root);
  Experiment experiment = read_experiment(root);
  check_consistency(experiment, root, heads);
  return experiment;
}

/// The experiment of the file without overrides; nothing where it is invalid.
std::optional<Experiment> alone(Value root, const ReadFile& read) {
  try {
    return checked_experiment(root, HeadsOf::model, read);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string read_named_file(const std::string& path, const std::string& valid) {
  return read_text(path, {ExitCode::usage, path, valid, kMostYamlBytes});
}

void resolve_files(Value& root, const ReadFile& read) {
  resolve_model_config(root, read);
  resolve_software(root, read);
}

Experiment parse_experiment(const std::string& text, const std::string& file,
                            const std::vector<std::string>& overrides, UnusedKeys* unused,
                            HeadsOf heads, const ReadFile& read) {
  Value root = parse_yaml(text, file);
  std::optional<Experiment> file_alone;
  if (unused != nullptr && !overrides.empty()) file_alone = alone(root, read);
  // Overrides come before any value is read, as they may correct the file.
  for (const std::string& override : overrides) apply_override(root, override);
  Experiment experiment = checked_experiment(root, heads, read);
  if (unused != nullptr) unused->look_at(experiment, root, file_alone);
  return experiment;
}

Experiment read_model_config(const std::string& path) {
  Value root = parse_yaml("{data: {source: synthetic}, batch: {tokens: 2, microbatch: 2}}", path);
  Value name;
  name.kind = Value::Kind::scalar;
  name.text = path;
  name.place = root.place;
  add(root, "model.config", name);
  return checked_experiment(root, HeadsOf::model, read_named_file);
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

namespace {

std::string text_of(const Value& value) {
  std::string text;
  if (value.kind == Value::Kind::block) {
    for (const Entry& entry : value.entries) {
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", entry.name, text_of(entry.value));
    }
    return '{' + text + '}';
  }
  if (value.kind != Value::Kind::list) return value.text;
  for (const Value& item : value.items) text += (text.empty() ? "" : ", ") + text_of(item);
  return '[' + text + ']';
}

void collect(const Value& value, const std::string& path,
             std::map<std::string, std::string>& settings) {
  if (value.kind != Value::Kind::block) {
    settings.emplace(path, text_of(value));
    return;
  }
  for (const Entry& entry : value.entries) {
    collect(entry.value, join_path(path, entry.name), settings);
  }
}

}  // namespace

std::map<std::string, std::string> settings(const std::string& yaml, const std::string& file) {
  std::map<std::string, std::string> found;
  collect(parse_yaml(yaml, file), "", found);
  return found;
}

}  // namespace cadenza::config
