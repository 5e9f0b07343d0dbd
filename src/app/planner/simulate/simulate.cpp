// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <limits>
#include <optional>

#include "app/planner/commands.hpp"
#include "app/planner/experiment_file.hpp"
#include "app/planner/simulate/simulation_report.hpp"
#include "app/planner/step_report.hpp"
#include "app/planner/terminal.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/cost/rates.hpp"

namespace cadenza::app {
namespace {

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
  const config::Software& software = e.cluster.software;
  if (!software.is_own()) {
    spdlog::info("software {}: {}", software.name, software.source);
  }
}

void print_results(const SimulationSummary& summary, const TimeTable& table) {
  print(fmt::format("\n{}\n{}\n{}\n{}", describe(summary), table.text(), table.slowest(),
                    describe(summary.memory)));
  for (const std::string& note : summary.notes) print("extrapolated: " + note + "\n");
}

}  // namespace

void simulate(const CommandLine& line, MakeSimulationFiles make_files) {
  const config::Experiment experiment = load_experiment(line.experiment, line.overrides);
  const std::int64_t steps = line.steps > 0 ? line.steps : experiment.run.steps;
  config::check_faults(experiment, line.step, steps);
  Simulation simulation(experiment, load_machine(experiment.cluster), true);
  const bool json = line.format == "json";
  const auto files = make_files != nullptr ? make_files(simulation, line, steps) : nullptr;
  if (!json) print_head(simulation);
  Progress progress(!json, line.step + steps, Progress::kStep, line.step);
  SimulationSummary summary;
  TimeTable table;
  for (std::int64_t i = 0; i < steps; ++i) {
    const SimulatedStep step =
        simulation.run(line.step + i, files ? files->observe(line.step + i) : simulate::Observer{});
    const StepMetrics metrics = metrics_of(simulation, step);
    if (files) files->write(step, metrics);
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
    fmt::print("{}\n", to_json(simulation, summary, table, files ? files->path() : ""));
    return;
  }
  print_results(summary, table);
  if (files) files->print_places();
}

}  // namespace cadenza::app
