// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/simulator.hpp"

#include "cadenza/base/error.hpp"
#include "simulate/clock.hpp"

namespace cadenza::simulate {

Result simulate(const config::Experiment& experiment, const program::StepShape& outline,
                std::span<const program::Program> programs,
                std::span<const program::TickPlans> ticks, const Costs& costs,
                const Observer& observer, std::int64_t step) {
  Clock clock(experiment, outline, programs, ticks, costs, observer, step);
  clock.run();
  const std::vector<std::string> faults = clock.faults();
  if (!faults.empty()) fail(ExitCode::communication, "programs deadlock: {}", faults.front());
  return clock.result();
}

std::vector<std::string> faults(const config::Experiment& experiment,
                                const program::StepShape& outline,
                                std::span<const program::Program> programs,
                                std::span<const program::TickPlans> ticks) {
  const Costs costs(config::Machine{}, experiment, outline.layout);
  const Observer nobody;
  Clock clock(experiment, outline, programs, ticks, costs, nobody, 0);
  clock.run();
  return clock.faults();
}

}  // namespace cadenza::simulate
