// SPDX-License-Identifier: Apache-2.0
// A calibration: rounds that measure everything once, so that a machine whose speed drifts is
// averaged over; then the fit, and its predictions beside the measurements it was not made of.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/simulate/operation_work.hpp"
#include "fit_machine.hpp"
#include "measure_attention.hpp"

namespace cadenza::app {

/// The experiment's model on one rank: few layers, one microbatch of `rows` tokens a step, short
/// synthetic documents.
config::Experiment one_rank(const config::Experiment& experiment, std::int64_t rows);

template <typename Real>
class Calibration {
 public:
  Calibration(comm::Communicator& world, const config::Experiment& experiment);

  config::Machine run();

 private:
  using Seconds = std::vector<double>;  ///< by round

  // One round of each.
  void measure_attention();
  void measure_products();
  void measure_operations();
  void measure_messages();

  // What the rounds say, and how far it is from the rest of them.
  void fit_attention();
  void fit_products();
  void fit_operations();
  void fit_messages();
  void check_attention();
  void check_operations();

  std::vector<OperationSample> samples(std::int64_t rows) const;
  double attention_seconds(const AttentionCase& work, program::Pass pass) const;
  void say(const std::string& text) const;
  std::string source() const;

  comm::Communicator& world_;
  config::Experiment experiment_;
  std::int64_t longest_;  ///< document
  std::int64_t rows_;     ///< of a microbatch
  config::Machine machine_;
  MemoryLedger ledger_;
  AttentionMeasurement<Real> attention_;

  std::map<std::pair<AttentionCase, program::Pass>, Seconds> attention_seconds_;
  std::map<simulate::Product, Seconds> product_seconds_;
  std::map<std::int64_t, std::vector<Seconds>> operation_seconds_;  ///< by rows, operation
  std::vector<config::Link> links_;
  std::vector<config::CopyRates> copies_, slices_;
  FitError attention_error_, product_error_, operation_error_;
};

}  // namespace cadenza::app
