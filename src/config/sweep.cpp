// SPDX-License-Identifier: Apache-2.0
// Parses sweep files, and makes points and their experiments.
#include "cadenza/config/sweep.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>

#include "cadenza/base/text.hpp"
#include "config/check.hpp"
#include "config/named_files.hpp"
#include "config/schema.hpp"
#include "config/value.hpp"

namespace cadenza::config {
namespace {

constexpr std::int64_t kMostSteps = 1'000'000;

/// Writes a value as YAML on one line.
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

/// Reads an axis: `key.path: [values]`, or `name: {label: {key.path: value, ...}, ...}`.
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

/// Reads a condition of a rule, `axis: label` or `axis: [labels]`: the index of the axis, and the
/// labels.
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

// --- From a sweep to points, and from a point to its experiment ---

namespace {

constexpr std::size_t kMostPoints = 100'000;
constexpr std::size_t kMostText = std::size_t{1} << 28;         // bytes of all settings
constexpr std::size_t kMostComparisons = std::size_t{1} << 26;  // of points x rules
constexpr std::string_view kShape = "shape.";

void append(Settings& all, const Settings& more) {
  all.insert(all.end(), more.begin(), more.end());
}

bool applies(const SweepRule& rule, const std::vector<std::string>& labels) {
  return std::ranges::all_of(rule.when, [&](const auto& condition) {
    return std::ranges::count(condition.second, labels[condition.first]) > 0;
  });
}

/// The shape.* settings, from which other keys follow.
struct Shape {
  std::optional<std::int64_t> ranks, sequence, sequences, microbatches;
};

/// Takes the shape's settings out of `settings`; a later one wins, as with other keys.
Shape take_shape(Settings& settings) {
  Shape shape;
  const auto take = [&](const std::string& setting) {
    if (!setting.starts_with(kShape)) return false;
    const std::size_t equals = std::min(setting.find('='), setting.size());
    const std::string name = setting.substr(0, equals);
    const std::string text = setting.substr(std::min(equals + 1, setting.size()));
    std::int64_t number = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    std::optional<std::int64_t>* const field = name == "shape.ranks"          ? &shape.ranks
                                               : name == "shape.sequence"     ? &shape.sequence
                                               : name == "shape.sequences"    ? &shape.sequences
                                               : name == "shape.microbatches" ? &shape.microbatches
                                                                              : nullptr;
    if (field == nullptr) {
      fail(ExitCode::usage,
           "{}: found an unknown key; valid: shape.ranks, shape.sequence, shape.sequences, "
           "shape.microbatches",
           one_line(name));
    }
    if (error != std::errc{} || rest != text.data() + text.size() || number < 1 ||
        number > kMaxSize) {
      fail(ExitCode::usage, "{}: found {}; valid: an integer in [1, {}]", name, one_line(text),
           kMaxSize);
    }
    *field = number;
    return true;
  };
  Settings others;
  for (std::string& setting : settings) {
    if (!take(setting)) others.push_back(std::move(setting));
  }
  settings = std::move(others);
  return shape;
}

void spread_ranks(Experiment& e, std::int64_t ranks) {
  const std::int64_t trainers = ranks - e.attention.servers;
  const std::int64_t copy = e.parallel.pipeline * e.parallel.tensor * e.parallel.context;
  if (trainers < copy || trainers % copy != 0) {
    fail(ExitCode::usage,
         "shape.ranks: found {}, which minus {} dedicated servers is no multiple of pipeline x "
         "tensor x context = {} x {} x {}; valid: e.g. {}",
         ranks, e.attention.servers, e.parallel.pipeline, e.parallel.tensor, e.parallel.context,
         (trainers / copy + 1) * copy + e.attention.servers);
  }
  e.parallel.data = trainers / copy;
}

void cut_batch(Experiment& e, const Shape& shape) {
  if (shape.sequence.has_value() != shape.sequences.has_value()) {
    fail(ExitCode::usage,
         "shape.{}: found nothing; valid: shape.sequence and shape.sequences together",
         shape.sequence ? "sequences" : "sequence");
  }
  if (!shape.sequence) return;
  const std::int64_t sequences = *shape.sequences;
  const std::int64_t microbatches =
      shape.microbatches.value_or(std::max<std::int64_t>(1, sequences / e.parallel.data));
  const std::int64_t shares = e.parallel.data * microbatches;
  if (sequences % shares != 0) {
    fail(ExitCode::usage,
         "shape.sequences: found {}, which {} data-parallel ranks x {} microbatches do not share "
         "evenly; valid: e.g. {}",
         sequences, e.parallel.data, microbatches, (sequences / shares + 1) * shares);
  }
  e.batch.tokens = sequences * *shape.sequence;
  e.data.max_document = *shape.sequence;
  e.batch.microbatch_open = e.batch.microbatch_open && !shape.microbatches;
  e.batch.microbatch = e.batch.microbatch_open ? *shape.sequence : e.batch.tokens / shares;
}

std::size_t bytes_of(const Settings& settings) {
  std::size_t bytes = 0;
  for (const std::string& setting : settings) bytes += sizeof(setting) + setting.size();
  return bytes;
}

/// Checks, before points are made, their number, their size and the work of the rules.
void check_size(const Sweep& sweep) {
  std::size_t points = 1;
  std::size_t bytes = bytes_of(sweep.settings);
  for (const Axis& axis : sweep.axes) {
    points *= axis.values.size();
    if (points > kMostPoints) {
      fail(ExitCode::usage, "axes: found more than {} points; valid: fewer values, or two sweeps",
           kMostPoints);
    }
    std::size_t most = 0;
    for (const AxisValue& value : axis.values) {
      most = std::max(most, sizeof(value) + value.label.size() + bytes_of(value.settings));
    }
    bytes += most;
  }
  std::size_t labels = 0;
  for (const SweepRule& rule : sweep.rules) {
    bytes += bytes_of(rule.settings);
    for (const auto& [axis, names] : rule.when) labels += names.size();
  }
  if (points * bytes > kMostText || points * labels > kMostComparisons) {
    fail(ExitCode::usage,
         "axes: found {} points x {} bytes of settings, {} labels in rules; valid: points x "
         "bytes at most {}, points x labels at most {}",
         points, bytes, labels, kMostText, kMostComparisons);
  }
}

}  // namespace

std::vector<SweepPoint> points_of(const Sweep& sweep) {
  check_size(sweep);
  std::vector<SweepPoint> points = {{{}, sweep.settings}};
  for (const Axis& axis : sweep.axes) {
    std::vector<SweepPoint> finer;
    for (const SweepPoint& point : points) {
      for (const AxisValue& value : axis.values) {
        SweepPoint& next = finer.emplace_back(point);
        next.labels.push_back(value.label);
        append(next.settings, value.settings);
      }
    }
    points = std::move(finer);
  }
  std::erase_if(points, [&](SweepPoint& point) {
    for (const SweepRule& rule : sweep.rules) {
      if (!applies(rule, point.labels)) continue;
      if (rule.skip) return true;
      append(point.settings, rule.settings);
    }
    return false;
  });
  return points;
}

Base parse_base(const std::string& text, const std::string& file) {
  auto root = std::make_shared<Value>(parse_yaml(text, file));
  check_keys<Experiment>(*root);
  return root;
}

Experiment experiment_of(const SweepPoint& point, const Base& base,
                         const std::vector<std::string>& overrides, UnusedKeys* unused,
                         const ReadFile& read) {
  Settings settings = point.settings;
  append(settings, overrides);
  const Shape shape = take_shape(settings);
  Value root = *base;
  for (const std::string& setting : settings) apply_override(root, setting);
  resolve_files(root, read);
  check_keys<Experiment>(root);
  Experiment experiment = read_experiment(root);
  if (shape.ranks) spread_ranks(experiment, *shape.ranks);
  cut_batch(experiment, shape);
  check_consistency(experiment, root);
  if (unused != nullptr) unused->look_at(experiment, root);
  return experiment;
}

}  // namespace cadenza::config
