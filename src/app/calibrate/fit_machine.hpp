// SPDX-License-Identifier: Apache-2.0
// From measured seconds to the numbers of a machine file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::app {

/// An operation of a training step on one rank: what it took.
struct OperationSample {
  program::Step step;
  std::int64_t rows = 0;
  double seconds = 0;
};

/// Sets the fixed cost of a tile of queries such that a tile costs as nearly as possible the same
/// over both tables.
void fit_tile_overhead(config::AttentionTimes& attention);

/// Sets the element-wise rates: what operations took beyond their matrix products, of which the
/// machine has the rates.
/// @param alone  the experiment of one rank that the samples are of
void fit_element_wise(const config::Experiment& alone, const std::vector<OperationSample>& samples,
                      config::Machine& machine);

/// Predicted over measured, less one.
class FitError {
 public:
  /// In seconds.
  void add(const std::string& what, double predicted, double measured);
  /// "0.8 % median, 3.1 % at most".
  std::string text() const;
  /// Predictions that are no use, one line each.
  const std::vector<std::string>& far() const { return far_; }

 private:
  std::vector<double> errors_;
  std::vector<std::string> far_;
};

/// Four significant digits: what a measurement is worth in a file.
double rounded(double value);

}  // namespace cadenza::app
