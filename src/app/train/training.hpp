// SPDX-License-Identifier: Apache-2.0
// One rank's part of a run: of training, or of an evaluation, whose steps are forward passes.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "app/evaluate/evaluation.hpp"
#include "app/evaluate/scoring.hpp"
#include "app/planner/step_report.hpp"
#include "app/planner/terminal.hpp"
#include "app/run_folder.hpp"
#include "app/train/checkpoints.hpp"
#include "app/train/validation.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/exec/executor.hpp"
#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/trace/writer.hpp"

namespace cadenza::app {

template <typename Real>
class Training {
 public:
  /// @param from        a checkpoint or a folder of them; empty: start at step 0
  /// @param evaluation  receives the losses if run.evaluates; otherwise null
  Training(comm::Communicator& world, config::Experiment experiment, const std::string& from,
           const std::string& output, Evaluation* evaluation = nullptr);
  /// @return signal that ended the run before its last step; 0: none
  int run();

 private:
  using Planned = std::future<program::StepPlan>;
  Planned plan_ahead(std::int64_t step, const SparseEstimate& estimate) const;
  program::StepPlan take_plan(Planned& planned);
  /// @return signal that a rank caught, the same on all ranks; 0: none
  int run_step(program::StepPlan& plan, std::int64_t begin_ns);
  void write_trace(const program::StepPlan& plan, const exec::StepResult& result,
                   std::int64_t begin_ns, std::int64_t end_ns);
  void report_step(const program::StepPlan& plan, const exec::StepResult& result,
                   const std::vector<RankStep>& ranks, std::optional<double> validation);
  std::vector<RankStep> gather(std::int64_t step_ns);
  std::int64_t slowest_attention_ns();
  std::optional<double> validate(std::int64_t updates);
  void save_checkpoint(std::int64_t step);
  void measure_clock(trace::ClockPhase phase);
  void require_least_memory();
  void read_start(const std::string& from);
  bool clock_is_due() const;
  void open_outputs(const std::string& output);
  void finish(int signal, std::int64_t steps);
  void print_times() const;
  void print_evaluation() const;

  comm::Communicator& world_;
  config::Experiment experiment_;
  config::Machine machine_;  ///< for which plans are predicted
  exec::MemoryLimit memory_limit_;
  std::unique_ptr<data::Corpus> corpus_;
  config::FileContents contents_;
  std::optional<data::Packer> packer_;
  MemoryLedger ledger_;
  std::optional<RunFolder> folder_;
  KeptCheckpoints kept_;  ///< on rank 0
  trace::RunInfo run_info_;
  trace::RankInfo rank_info_;
  std::optional<trace::Recorder> recorder_;
  std::optional<trace::Writer> writer_;
  std::optional<exec::Tracer> tracer_;
  std::optional<exec::Executor<Real>> executor_;
  Evaluation* evaluation_;
  ScoredOnce scored_;                     ///< of an evaluation
  std::optional<Validation> validation_;  ///< run.validate.every
  std::int64_t first_step_ = 0;
  double peak_flops_ = 0;      ///< of all ranks together
  SparseEstimates estimates_;  ///< of sparse attention, for the next steps
  program::PatternChoice pattern_choice_{experiment_.attention.sparse};
  std::optional<Progress> progress_;
  std::vector<RankStep> totals_;
  std::int64_t first_clock_ns_ = 0;  ///< time of the first comparison of clocks
  std::int64_t last_clock_ns_ = 0;
  bool clock_due_ = false;  ///< equal on all ranks
};

}  // namespace cadenza::app
