// SPDX-License-Identifier: Apache-2.0
// A calibration: rounds that measure everything, then further rounds of noisy measurements; then
// the fit, and a comparison of its predictions with measurements that it did not use.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "app/calibrate/fit_machine.hpp"
#include "app/calibrate/measure.hpp"
#include "app/calibrate/measure_attention.hpp"
#include "app/planner/terminal.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/program/operation_work.hpp"

namespace cadenza::app {

inline constexpr int kSteps = 4;  ///< measured steps of each round

/// Returns the experiment's model on one rank: few layers, one microbatch of `rows` tokens per
/// step, short synthetic documents.
config::Experiment one_rank(const config::Experiment& experiment, std::int64_t rows);

template <typename Real>
class Calibration {
 public:
  Calibration(comm::Communicator& world, const config::Experiment& experiment);

  /// Measures and fits. Collective.
  config::Machine run();
  /// Names unreliable results in one line; empty if there are none.
  std::string doubts() const;

 private:
  /// A unit of measurement; the same on all ranks.
  struct Work {
    std::string name;
    std::function<void()> run;          ///< adds a round to `rounds`. Collective
    std::vector<const Rounds*> rounds;  ///< the results of this work
    bool noisy() const;
    double spread() const;
  };

  // Add the works to measure.
  void add_attention();
  void add_products();
  void add_operations();
  void add_index();
  void add_messages();

  void measure_round(int round, std::vector<const Work*> works);
  std::vector<const Work*> noisy() const;
  bool has_time() const;
  void measure_attention(const AttentionCase& work, program::Pass pass);
  void measure_operations(std::int64_t rows);
  void measure_index(std::int64_t rows);
  void measure_messages();

  // Fit the machine to the rounds, and compare predictions with the other rounds.
  void fit_attention();
  void fit_sparse();
  std::vector<config::Row<3>> sparse_rows(bool adjoining) const;
  void fit_products();
  void fit_operations();
  void fit_index();
  void fit_messages();
  void check_attention();
  void check_products();
  void check_operations();
  void check_index();

  std::vector<OperationSample> samples(std::int64_t rows) const;
  double attention_seconds(const AttentionCase& work, program::Pass pass) const;
  double message_rate(const std::string& name) const;
  std::string source() const;

  comm::Communicator& world_;
  config::Experiment experiment_;
  std::int64_t longest_;  ///< tokens of the longest document
  std::int64_t rows_;     ///< rows of a microbatch
  config::Machine machine_;
  MemoryLedger ledger_;
  AttentionMeasurement<Real> attention_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();

  std::vector<Work> works_;
  std::map<std::pair<AttentionCase, program::Pass>, Rounds> attention_rounds_;
  std::map<program::Pass, double> seconds_per_flop_;  ///< in the last measured attention
  std::map<program::Product, Rounds> product_rounds_;
  std::map<std::int64_t, std::vector<Rounds>> operation_rounds_;  ///< by rows, operation
  std::map<std::int64_t, std::vector<Rounds>> index_rounds_;      ///< by rows, kind of work
  std::map<std::string, Rounds> message_rounds_;  ///< latency, and seconds for kMessageBytes
  FitError attention_error_, product_error_, operation_error_;
};

}  // namespace cadenza::app
