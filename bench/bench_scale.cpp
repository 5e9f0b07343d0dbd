// SPDX-License-Identifier: Apache-2.0
// What it costs to simulate a step of hundreds to thousands of ranks: plans (made and validated),
// programs, memory estimates, the clock. One core.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cadenza/base/hash.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/program/step_plan.hpp"
#include "cadenza/simulate/simulator.hpp"

namespace {

using namespace cadenza;

/// Of this process's one thread: what others run beside it does not count.
double cpu_seconds_since(std::clock_t begin) {
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

/// Peak resident memory of this process so far.
double peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::uint64_t hash_of(const std::vector<program::TickPlans>& ticks) {
  Hasher hasher;
  for (const program::TickPlans& tick : ticks) {
    hasher.add(plan::hash(tick.forward)).add(plan::hash(tick.backward));
  }
  return hasher.value();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "CPU seconds and peak memory of plans, programs, memory estimates and simulation of a step.");
  std::string file;
  std::vector<std::string> overrides;
  std::int64_t step = 0;
  app.add_option("experiment", file, "experiment file")->required()->check(CLI::ExistingFile);
  app.add_option("--set", overrides, "key.path=value")->allow_extra_args(false);
  app.add_option("--step", step);
  CLI11_PARSE(app, argc, argv);

  const config::Experiment experiment = config::parse_experiment(read(file), file, overrides);
  const auto corpus = data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
  const data::Batch batch = data::Packer(*corpus, experiment).batch(step);
  const program::StepShape step_shape(experiment);

  auto begin = std::clock();
  const std::vector<program::TickPlans> ticks = program::plan_ticks(experiment, batch);
  const double plans = cpu_seconds_since(begin);
  const double plans_peak = peak_megabytes();

  begin = std::clock();
  std::vector<program::Program> programs;
  std::size_t operations = 0;
  for (Rank rank = 0; rank < step_shape.layout.ranks(); ++rank) {
    if (step_shape.layout.tensor_of(rank) != 0) continue;
    programs.push_back(program::make_program(step_shape, rank, ticks));
    operations += programs.back().instructions.size();
  }
  const double made = cpu_seconds_since(begin);

  begin = std::clock();
  std::int64_t bytes = 0;
  for (const program::Program& program : programs) {
    bytes = std::max(bytes, exec::estimate_memory(experiment, step_shape, program, ticks).total());
  }
  const double memory = cpu_seconds_since(begin);
  begin = std::clock();
  const std::string& path = experiment.cluster.machine;
  const config::Machine machine =
      path.empty() ? config::Machine{} : config::parse_machine(read(path), path);
  const simulate::Costs costs(machine, experiment, step_shape.layout);
  const simulate::Result result =
      simulate::simulate(experiment, step_shape, programs, ticks, costs);
  const double clock = cpu_seconds_since(begin);
  std::size_t moves = 0;
  for (const program::TickPlans& tick : ticks) {
    for (const plan::Stage& stage : tick.forward.stages) moves += stage.moves.size();
  }
  fmt::print(
      "ranks {}  plans {}  moves {}  operations {}  events {}  plan {:.3f} s ({:.0f} MB)  programs "
      "{:.3f} s  memory {:.3f} s  clock {:.3f} s  peak {:.0f} MB  hash {:016x}  needs {}\n",
      step_shape.layout.ranks(), ticks.size(), moves, operations, result.operations, plans,
      plans_peak, made, memory, clock, peak_megabytes(), hash_of(ticks), bytes);
  return 0;
}
