// SPDX-License-Identifier: Apache-2.0
// Sweep -> points -> experiments.
#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "cadenza/config/sweep.hpp"
#include "config/check.hpp"
#include "config/keys.hpp"
#include "config/read.hpp"
#include "config/schema.hpp"
#include "config/yaml.hpp"

namespace cadenza::config {
namespace {

constexpr std::size_t kMostPoints = 100'000;
constexpr std::size_t kMostText = std::size_t{1} << 28;         // bytes that all points set
constexpr std::size_t kMostComparisons = std::size_t{1} << 26;  // of points with rules
constexpr std::string_view kShape = "shape.";

void append(Settings& all, const Settings& more) {
  all.insert(all.end(), more.begin(), more.end());
}

bool applies(const SweepRule& rule, const std::vector<std::string>& labels) {
  return std::ranges::all_of(rule.when, [&](const auto& condition) {
    return std::ranges::count(condition.second, labels[condition.first]) > 0;
  });
}

/// Sizes that others follow from.
struct Shape {
  std::optional<std::int64_t> ranks, sequence, sequences, microbatches;
};

/// Takes the shape's settings out of `settings`; a later one wins, as it does for others.
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
  e.batch.microbatch = e.batch.tokens / shares;
  e.data.max_document = *shape.sequence;
}

std::size_t bytes_of(const Settings& settings) {
  std::size_t bytes = 0;
  for (const std::string& setting : settings) bytes += sizeof(setting) + setting.size();
  return bytes;
}

/// Before points are made: how many, what each of them holds at most, and what rules look at.
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
                         const std::vector<std::string>& overrides, UnusedKeys* unused) {
  Settings settings = point.settings;
  append(settings, overrides);
  const Shape shape = take_shape(settings);
  Value root = *base;
  for (const std::string& setting : settings) apply_override(root, setting);
  check_keys<Experiment>(root);
  Experiment experiment = read_experiment(root);
  if (shape.ranks) spread_ranks(experiment, *shape.ranks);
  cut_batch(experiment, shape);
  check_consistency(experiment, root);
  if (unused != nullptr) unused->look_at(experiment, root);
  return experiment;
}

}  // namespace cadenza::config
