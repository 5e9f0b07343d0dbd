// SPDX-License-Identifier: Apache-2.0
// Sweep file -> Sweep.
#include "cadenza/config/sweep.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>

#include "cadenza/base/nearest.hpp"
#include "config/keys.hpp"
#include "config/yaml.hpp"

namespace cadenza::config {
namespace {

constexpr std::int64_t kMostSteps = 1'000'000;

/// A value as YAML on one line.
std::string to_text(const Value& value) {
  std::string text;
  switch (value.kind) {
    case Value::Kind::nothing:
      return "~";
    case Value::Kind::list:
      for (const Value& item : value.items) text += (text.empty() ? "" : ", ") + to_text(item);
      return '[' + text + ']';
    case Value::Kind::block:
      for (const Entry& entry : value.entries) {
        text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", entry.name, to_text(entry.value));
      }
      return '{' + text + '}';
    case Value::Kind::scalar:
      break;
  }
  if (!value.quoted) return value.text;
  for (const char c : value.text) text += c == '\'' ? std::string("''") : std::string(1, c);
  return '\'' + text + '\'';
}

void require_keys(const Value& block, const std::string& path,
                  const std::vector<std::string>& known) {
  for (const Entry& entry : block.entries) {
    if (std::ranges::count(known, entry.name) > 0) continue;
    fail_at(entry.value.place, join_path(path, one_line(entry.name)),
            fmt::format("found an unknown key{}; valid: {}", nearest_hint(entry.name, known),
                        fmt::join(known, ", ")));
  }
}

void require_kind(const Value& value, const std::string& path, Value::Kind kind,
                  const char* valid) {
  if (value.kind == kind) return;
  fail_at(value.place, path, fmt::format("found {}; valid: {}", found(value), valid));
}

std::string read_text(const Value& root, const char* key, std::string text) {
  const Value* value = root.find(key);
  if (value == nullptr) return text;
  require_kind(*value, key, Value::Kind::scalar, "text");
  return value->text;
}

std::int64_t read_steps(const Value& root) {
  const Value* value = root.find("steps");
  if (value == nullptr) return 1;
  const std::string& text = value->text;
  std::int64_t steps = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  const bool whole = error == std::errc{} && rest == text.data() + text.size();
  if (value->kind != Value::Kind::scalar || !whole || steps < 1 || steps > kMostSteps) {
    fail_at(value->place, "steps",
            fmt::format("found {}; valid: an integer in [1, {}]", found(*value), kMostSteps));
  }
  return steps;
}

Settings read_settings(const Value& block, const std::string& path) {
  require_kind(block, path, Value::Kind::block, "a block of key.path: value");
  Settings settings;
  for (const Entry& entry : block.entries) {
    settings.push_back(fmt::format("{}={}", entry.name, to_text(entry.value)));
  }
  return settings;
}

/// `key.path: [values]`, or `name: {label: {key.path: value, ...}, ...}`.
Axis read_axis(const Entry& entry) {
  const std::string path = join_path("axes", one_line(entry.name));
  Axis axis{entry.name, {}};
  if (entry.value.kind == Value::Kind::list) {
    for (const Value& item : entry.value.items) {
      const std::string text = to_text(item);
      axis.values.push_back({item.kind == Value::Kind::scalar ? item.text : text,
                             {fmt::format("{}={}", entry.name, text)}});
    }
  } else {
    require_kind(entry.value, path, Value::Kind::block,
                 "a list of values of that key, or a block of labels with the keys they set");
    for (const Entry& label : entry.value.entries) {
      axis.values.push_back({label.name, read_settings(label.value, join_path(path, label.name))});
    }
  }
  if (axis.values.empty()) {
    fail_at(entry.value.place, path, "found no value; valid: one or more");
  }
  std::set<std::string_view> labels;
  for (const AxisValue& value : axis.values) {
    if (labels.insert(value.label).second) continue;
    fail_at(entry.value.place, path,
            fmt::format("found {} a second time; valid: once", one_line(value.label)));
  }
  return axis;
}

/// Index of the axis `name`, whose labels `wanted` are: one label or a list of them.
std::pair<std::size_t, std::vector<std::string>> read_condition(const Entry& entry,
                                                                const std::string& path,
                                                                const std::vector<Axis>& axes) {
  const auto axis = std::ranges::find(axes, entry.name, &Axis::name);
  std::vector<std::string> names;
  for (const Axis& other : axes) names.push_back(other.name);
  if (axis == axes.end()) {
    fail_at(entry.value.place, join_path(path, one_line(entry.name)),
            fmt::format("found no such axis; valid: {}", fmt::join(names, ", ")));
  }
  std::set<std::string_view> known;
  for (const AxisValue& value : axis->values) known.insert(value.label);
  std::vector<Value> wanted = entry.value.items;
  if (entry.value.kind != Value::Kind::list) wanted = {entry.value};
  std::vector<std::string> labels;
  for (const Value& value : wanted) {
    if (value.kind != Value::Kind::scalar || !known.contains(value.text)) {
      fail_at(value.place, join_path(path, entry.name),
              fmt::format("found {}; valid: {}", found(value), fmt::join(known, ", ")));
    }
    labels.push_back(value.text);
  }
  return {static_cast<std::size_t>(axis - axes.begin()), labels};
}

SweepRule read_rule(const Value& block, const std::string& path, const std::vector<Axis>& axes) {
  require_kind(block, path, Value::Kind::block, "a block with when, and set or skip");
  require_keys(block, path, {"when", "set", "skip"});
  const Value* when = block.find("when");
  const Value* set = block.find("set");
  const Value* skip = block.find("skip");
  SweepRule rule;
  rule.skip = skip != nullptr && skip->text == "true";
  if (when == nullptr || (set != nullptr) == rule.skip || (skip != nullptr && !rule.skip)) {
    fail_at(block.place, path,
            "found an incomplete or contradictory rule; valid: when: {axis: label} with either "
            "set: {key.path: value} or skip: true");
  }
  require_kind(*when, join_path(path, "when"), Value::Kind::block, "a block of axis: label");
  for (const Entry& entry : when->entries) {
    rule.when.push_back(read_condition(entry, join_path(path, "when"), axes));
  }
  if (set != nullptr) rule.settings = read_settings(*set, join_path(path, "set"));
  return rule;
}

}  // namespace

Sweep parse_sweep(const std::string& text, const std::string& file) {
  const Value root = parse_yaml(text, file);
  require_keys(root, "", {"name", "title", "base", "steps", "set", "axes", "rules", "report"});
  Sweep sweep;
  sweep.name = read_text(root, "name", sweep.name);
  sweep.title = read_text(root, "title", "");
  sweep.base = read_text(root, "base", "");
  if (sweep.base.empty()) {
    fail_at(place_of(root, "base"), "base",
            "found nothing, but it is required; valid: an experiment's YAML file, relative to this "
            "one");
  }
  if (!names_folder(sweep.name)) {
    fail_at(place_of(root, "name"), "name",
            fmt::format("found '{}'; valid: {}", one_line(sweep.name), kValidName));
  }
  sweep.steps = read_steps(root);
  if (const Value* set = root.find("set")) sweep.settings = read_settings(*set, "set");
  if (const Value* axes = root.find("axes")) {
    require_kind(*axes, "axes", Value::Kind::block, "a block of axes");
    for (const Entry& entry : axes->entries) sweep.axes.push_back(read_axis(entry));
  }
  if (const Value* rules = root.find("rules")) {
    require_kind(*rules, "rules", Value::Kind::list, "a list of rules");
    for (const Value& rule : rules->items) {
      sweep.rules.push_back(
          read_rule(rule, fmt::format("rules[{}]", sweep.rules.size()), sweep.axes));
    }
  }
  return sweep;
}

}  // namespace cadenza::config
