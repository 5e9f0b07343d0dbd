// SPDX-License-Identifier: Apache-2.0
// Fits the numbers of a machine file to measured seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::app {

/// An operation of a training step on one rank, and its measured time.
struct OperationSample {
  program::Instruction instruction;
  std::int64_t rows = 0;
  double seconds = 0;
};

/// Sets the fixed cost of a tile of queries so that the cost of a tile varies as little as possible
/// over both tables.
void fit_tile_overhead(config::AttentionTimes& attention);

/// Sets the element-wise rates from the time of operations beyond their matrix products, whose
/// rates the machine has.
/// @param alone  the one-rank experiment from which the samples are
void fit_element_wise(const config::Experiment& alone, const std::vector<OperationSample>& samples,
                      config::Machine& machine);

/// Errors of predictions: predicted / measured - 1.
class FitError {
 public:
  /// Adds a prediction and its measurement, in seconds.
  void add(const std::string& what, double predicted, double measured);
  /// Summarises: "0.8 % median, 3.1 % at most".
  std::string text() const;
  /// Useless predictions, one line each.
  const std::vector<std::string>& far() const { return far_; }

 private:
  std::vector<double> errors_;
  std::vector<std::string> far_;
};

/// Rounds to four significant digits: more are not significant in a measurement.
double rounded(double value);

}  // namespace cadenza::app
