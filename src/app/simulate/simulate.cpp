// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <limits>
#include <optional>

#include "app/command_line.hpp"
#include "app/experiment_file.hpp"
#include "app/run_folder.hpp"
#include "app/runtime/terminal.hpp"
#include "app/simulate/simulated_trace.hpp"
#include "app/simulate/simulation_report.hpp"
#include "app/train/step_report.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/cost/rates.hpp"

namespace cadenza::app {
namespace {

/// The output folder of a simulation, if it writes one.
class Outputs {
 public:
  Outputs(const Simulation& simulation, const CommandLine& line, std::int64_t steps) {
    const bool asks = !line.output.empty();
    if (line.trace == "none" && asks) {
      fail(ExitCode::usage,
           "--output: found {} with --trace none, which writes nothing; valid: "
           "--trace summary or full",
           line.output);
    }
    if (line.trace == "none" || (line.trace.empty() && !asks)) return;
    const std::string& name = simulation.experiment().name;
    folder_ = RunFolder::create(asks ? line.output : "runs/" + name + "-simulated",
                                simulation.experiment());
    trace_.emplace(simulation, folder_->trace(), steps, line.trace == "full");
  }

  simulate::Observer observe(std::int64_t step) {
    return trace_ ? trace_->observe(step) : simulate::Observer{};
  }
  void write(const SimulatedStep& step, const StepMetrics& metrics) {
    if (!folder_) return;
    folder_->require();
    trace_->write(step);
    folder_->append(metrics);
  }
  void print_places() const {
    if (!folder_) return;
    print(fmt::format("metrics   {}\ntraces    {}/run.h5\n", folder_->metrics(), folder_->trace()));
    spdlog::info("next      cadenza-analyze report {}", folder_->path());
  }
  /// Path of the folder; empty: nothing is written.
  std::string path() const { return folder_ ? folder_->path() : std::string(); }

 private:
  std::optional<RunFolder> folder_;
  std::optional<SimulatedTrace> trace_;
};

StepMetrics metrics_of(const Simulation& simulation, const SimulatedStep& step) {
  const config::Experiment& e = simulation.experiment();
  const double peak = simulation.machine().peak_flops_per_second * static_cast<double>(e.ranks());
  StepMetrics metrics = step_metrics(e, step.batch, rank_steps(simulation, step), peak);
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  metrics.result.loss = metrics.result.gradient_norm = metrics.result.learning_rate = kUnknown;
  return metrics;
}

void print_head(const Simulation& simulation) {
  const config::Experiment& e = simulation.experiment();
  const config::Machine& machine = simulation.machine();
  if (!simulation.explanation().empty()) print(simulation.explanation() + "\n\n");
  for (const std::string& decision : simulation.decisions()) spdlog::info("{}", decision);
  const std::string rates = e.cluster.machine.empty()
                                ? cost::nominal_rates()
                                : fmt::format("machine {}: {}", machine.name, machine.source);
  spdlog::info("{}: {} on {}; {}", e.name, counted(e.ranks(), "rank"),
               counted(simulation.nodes(), "node"), rates);
}

void print_results(const SimulationSummary& summary, const TimeTable& table) {
  print(fmt::format("\n{}\n{}\n{}\n{}", describe(summary), table.text(), table.slowest(),
                    describe(summary.memory)));
  for (const std::string& note : summary.notes) print("extrapolated: " + note + "\n");
}

}  // namespace

void simulate(const CommandLine& line) {
  const config::Experiment experiment = load_experiment(line.experiment, line.overrides);
  const std::int64_t steps = line.steps > 0 ? line.steps : experiment.run.steps;
  config::check_faults(experiment, line.step, steps);
  Simulation simulation(experiment, load_machine(experiment.cluster), true);
  const bool json = line.format == "json";
  Outputs outputs(simulation, line, steps);
  if (!json) print_head(simulation);
  Progress progress(!json, line.step + steps, Progress::kStep, line.step);
  SimulationSummary summary;
  TimeTable table;
  for (std::int64_t i = 0; i < steps; ++i) {
    const SimulatedStep step = simulation.run(line.step + i, outputs.observe(line.step + i));
    const StepMetrics metrics = metrics_of(simulation, step);
    outputs.write(step, metrics);
    add_step(simulation, step, summary);
    table.add(step.result);
    spdlog::debug("step {}: {} operations and messages, {} FLOPs", step.batch.step,
                  step.result.operations, format_count(summary.model_flops));
    progress.show(
        step.batch.step + 1,
        fmt::format("{} simulated  {}", format_duration(step.result.seconds), describe(metrics)));
  }
  progress.finish();
  if (json) {
    fmt::print("{}\n", to_json(simulation, summary, table, outputs.path()));
    return;
  }
  print_results(summary, table);
  outputs.print_places();
}

}  // namespace cadenza::app
