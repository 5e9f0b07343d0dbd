// SPDX-License-Identifier: Apache-2.0
// The steps of a calibration. Each measures, enters what it found in the machine, and then checks
// the machine's predictions against measurements that are not in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/kernels/bfloat16.hpp"
#include "fit_machine.hpp"

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
  void measure_attention();
  void measure_products();
  void measure_operations();
  void measure_messages();
  void say(const std::string& text) const;
  std::string source() const;

  /// Of the operations of a step over `rows` tokens.
  std::vector<OperationSample> operations(std::int64_t rows);
  void check_operations(std::int64_t rows);

  comm::Communicator& world_;
  config::Experiment experiment_;
  std::int64_t rows_;  ///< of a microbatch
  config::Machine machine_;
  FitError attention_error_, product_error_, operation_error_;
};

}  // namespace cadenza::app
