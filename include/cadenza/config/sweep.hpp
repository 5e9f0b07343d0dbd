// SPDX-License-Identifier: Apache-2.0
// A sweep: one experiment, changed along axes, and the points of that grid. YAML of its own, as
// strict as an experiment (docs/simulation.md).
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
///   shape.microbatches  of a data-parallel rank; batch.microbatch follows: whole sequences.
///   Without
///                       it a microbatch is one sequence
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

/// What changes at the points whose labels are among the named ones.
struct SweepRule {
  std::vector<std::pair<std::size_t, std::vector<std::string>>> when;  ///< axis, its labels
  Settings settings;
  bool skip = false;  ///< these points are left out
};

struct Sweep {
  std::string name = "sweep";
  std::string title;
  std::string base;        ///< experiment file, relative to the sweep's folder
  std::int64_t steps = 1;  ///< simulated at every point
  Settings settings;       ///< of all points
  std::vector<Axis> axes;
  std::vector<SweepRule> rules;
};

/// A point of the grid: a label per axis, and all that is set, in the order in which it is.
struct SweepPoint {
  std::vector<std::string> labels;
  Settings settings;
};

/// Parses a sweep file: name, title, base, steps, set, axes, rules; `report` is for its readers.
/// @throws Error(usage) with "file:line: key.path: found ...; valid: ..."
Sweep parse_sweep(const std::string& text, const std::string& file);

/// All points but skipped ones, the last axis fastest.
/// @throws Error(usage) above 10^5 of them, or where they set more text than memory should hold
std::vector<SweepPoint> points_of(const Sweep& sweep);

/// An experiment as it was written: what all points of a sweep begin with.
using Base = std::shared_ptr<const Value>;

/// @param text  of the experiment's file `file`
/// @throws Error(usage): broken YAML, an unknown key
Base parse_base(const std::string& text, const std::string& file);

/// The experiment of a point.
/// @param overrides  "key.path=value", after the point's own settings
/// @param unused     looks at it, if given
/// @throws Error(usage) as parse_experiment, and where the shape does not divide
Experiment experiment_of(const SweepPoint& point, const Base& base,
                         const std::vector<std::string>& overrides, UnusedKeys* unused = nullptr);

}  // namespace cadenza::config
