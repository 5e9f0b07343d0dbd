// SPDX-License-Identifier: Apache-2.0
#include "app/simulate/run_files.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "app/planner/terminal.hpp"
#include "app/run_folder.hpp"
#include "app/simulate/simulated_trace.hpp"
#include "cadenza/base/error.hpp"

namespace cadenza::app {
namespace {

class RunFiles final : public SimulationFiles {
 public:
  RunFiles(const Simulation& simulation, const CommandLine& line, std::int64_t steps)
      : folder_(RunFolder::create(line.output.empty()
                                      ? "runs/" + simulation.experiment().name + "-simulated"
                                      : line.output,
                                  simulation.experiment())),
        trace_(simulation, folder_.trace(), steps, line.trace == "full") {}

  simulate::Observer observe(std::int64_t step) override { return trace_.observe(step); }
  void write(const SimulatedStep& step, const StepMetrics& metrics) override {
    folder_.require();
    trace_.write(step);
    folder_.append(metrics);
  }
  void print_places() const override {
    print(fmt::format("metrics   {}\ntraces    {}/run.h5\n", folder_.metrics(), folder_.trace()));
    spdlog::info("next      cadenza-analyze report {}", folder_.path());
  }
  std::string path() const override { return folder_.path(); }

 private:
  RunFolder folder_;
  SimulatedTrace trace_;
};

}  // namespace

std::unique_ptr<SimulationFiles> make_run_files(const Simulation& simulation,
                                                const CommandLine& line, std::int64_t steps) {
  const bool asks = !line.output.empty();
  if (line.trace == "none" && asks) {
    fail(ExitCode::usage,
         "--output: found {} with --trace none, which writes nothing; valid: "
         "--trace summary or full",
         line.output);
  }
  if (line.trace == "none" || (line.trace.empty() && !asks)) return nullptr;
  return std::make_unique<RunFiles>(simulation, line, steps);
}

}  // namespace cadenza::app
