// SPDX-License-Identifier: Apache-2.0
// A sweep: one experiment that is changed along axes, and the points of that grid. Its YAML is as
// strict as an experiment's (docs/simulation.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::config {

/// "key.path=value" as --set takes it, or one of the shape's keys:
///   shape.ranks         all ranks; parallel.data follows from them and the other degrees
///   shape.sequence      tokens of a packed sequence, and the longest document
///   shape.sequences     sequences of a step; batch.tokens follows
///   shape.microbatches  microbatches of a data-parallel rank; batch.microbatch follows, in whole
///                       sequences; without it a microbatch is one sequence
using Settings = std::vector<std::string>;

/// One value of an axis.
struct AxisValue {
  std::string label;
  Settings settings;
};

struct Axis {
  std::string name;
  std::vector<AxisValue> values;
};

/// A change at the points whose labels on the named axes are among the given ones.
struct SweepRule {
  std::vector<std::pair<std::size_t, std::vector<std::string>>> when;  ///< axis, its labels
  Settings settings;
  bool skip = false;  ///< leave these points out
};

struct Sweep {
  std::string name = "sweep";
  std::string title;
  std::string base;        ///< experiment file, relative to the sweep's folder
  std::int64_t steps = 1;  ///< steps that are simulated at every point
  Settings settings;       ///< settings of all points
  std::vector<Axis> axes;
  std::vector<SweepRule> rules;
};

/// A point of the grid: its labels by axis, and all its settings in the order of their application.
struct SweepPoint {
  std::vector<std::string> labels;
  Settings settings;
};

/// Parses a sweep file: name, title, base, steps, set, axes, rules; `report` is for the analysis.
/// @throws Error(usage) with "file:line: key.path: found ...; valid: ..."
Sweep parse_sweep(const std::string& text, const std::string& file);

/// All points that are not skipped; the last axis changes fastest.
/// @throws Error(usage) above 10^5 points, or where their settings would take too much memory
std::vector<SweepPoint> points_of(const Sweep& sweep);

/// The base experiment of a sweep as it was written.
using Base = std::shared_ptr<const Value>;

/// Parses the base experiment of a sweep.
/// @param text  contents of the experiment's file `file`
/// @throws Error(usage): broken YAML, an unknown key
Base parse_base(const std::string& text, const std::string& file);

/// The experiment of a point.
/// @param overrides  "key.path=value", after the point's own settings
/// @param unused     collects the unused keys, if given
/// @param read       reads the file of model.config; thread-safe
/// @throws Error(usage) as parse_experiment, and where the shape does not divide
Experiment experiment_of(const SweepPoint& point, const Base& base,
                         const std::vector<std::string>& overrides, UnusedKeys* unused = nullptr,
                         const ReadFile& read = read_named_file);

}  // namespace cadenza::config
