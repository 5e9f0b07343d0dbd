// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <limits>
#include <optional>

#include "cadenza/app/commands.hpp"
#include "cadenza/app/experiment_file.hpp"
#include "cadenza/app/progress.hpp"
#include "cadenza/app/run_folder.hpp"
#include "cadenza/app/simulated_trace.hpp"
#include "cadenza/app/simulation_report.hpp"
#include "cadenza/app/step_report.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/units.hpp"

namespace cadenza::app {
namespace {

/// The folder that a simulation leaves; nothing where it is to leave none.
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
    fmt::print("metrics   {}\ntraces    {}/run.h5\nnext      cadenza-analyze report {}\n",
               folder_->metrics(), folder_->trace(), folder_->path());
  }

 private:
  std::optional<RunFolder> folder_;
  std::optional<SimulatedTrace> trace_;
};

StepMetrics metrics_of(const Simulation& simulation, const SimulatedStep& step) {
  const config::Experiment& e = simulation.experiment();
  const double peak = simulation.machine().peak_flops_per_second * static_cast<double>(e.ranks());
  StepMetrics metrics = step_metrics(e, step.batch, rank_steps(simulation, step), peak);
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  metrics.loss = metrics.gradient_norm = metrics.learning_rate = kUnknown;
  return metrics;
}

void print_head(const Simulation& simulation) {
  const config::Experiment& e = simulation.experiment();
  const config::Machine& machine = simulation.machine();
  if (!simulation.explanation().empty()) fmt::print("{}\n\n", simulation.explanation());
  fmt::print("{}: {} ranks on {} {}; machine {}: {}\n", e.name, e.ranks(), simulation.nodes(),
             simulation.nodes() == 1 ? "node" : "nodes", machine.name, machine.source);
}

/// A fault of a step that is not simulated would go unnoticed.
void check_faults(const config::Experiment& experiment, std::int64_t first, std::int64_t steps) {
  for (std::size_t i = 0; i < experiment.cluster.faults.size(); ++i) {
    for (const std::int64_t step : experiment.cluster.faults[i].steps) {
      if (step >= first && step < first + steps) continue;
      fail(ExitCode::usage, "cluster.faults[{}].steps: found {}; valid: steps in [{}, {})", i, step,
           first, first + steps);
    }
  }
}

}  // namespace

void simulate(const CommandLine& line) {
  const config::Experiment experiment = load_experiment(line.experiment, line.overrides);
  const std::int64_t steps = line.steps > 0 ? line.steps : experiment.run.steps;
  check_faults(experiment, line.step, steps);
  Simulation simulation(experiment, load_machine(experiment.cluster), true);
  Outputs outputs(simulation, line, steps);
  print_head(simulation);
  Progress progress(true, steps);
  SimulationSummary summary;
  TimeTable table;
  for (std::int64_t i = 0; i < steps; ++i) {
    const SimulatedStep step = simulation.run(line.step + i, outputs.observe(line.step + i));
    const StepMetrics metrics = metrics_of(simulation, step);
    outputs.write(step, metrics);
    add_step(simulation, step, summary);
    table.add(step.result);
    progress.show(i + 1, fmt::format("{} simulated  {}", format_duration(step.result.seconds),
                                     describe(metrics)));
  }
  progress.finish();
  fmt::print("\n{}\n{}\n{}\n{}", describe(summary), table.text(), table.slowest(),
             describe(summary.memory));
  for (const std::string& note : summary.notes) fmt::print("beyond the tables: {}\n", note);
  outputs.print_places();
}

}  // namespace cadenza::app
