// SPDX-License-Identifier: Apache-2.0
#include "app/calibrate/measure_steps.hpp"

#include <algorithm>
#include <iterator>

#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/executor.hpp"
#include "cadenza/program/step_plan.hpp"
#include "app/calibrate/timing.hpp"

namespace cadenza::app {

template <typename Real>
std::vector<OperationTime> run_steps(comm::Communicator& world, comm::Communicator& group,
                                     const config::Experiment& given, int steps) {
  constexpr std::size_t kEvents = 1 << 16;
  config::Experiment experiment = given;
  experiment.run.steps = steps + 1;  // beyond its end a schedule has no learning rate
  experiment.optimizer.warmup = 0;
  const auto corpus = data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
  const data::Packer packer(*corpus, experiment);
  MemoryLedger ledger;
  trace::Recorder recorder(kEvents);
  exec::Tracer tracer(recorder, ledger, true, false);
  exec::Executor<Real> executor(experiment, group, *corpus, tracer, ledger);
  for (int step = 0; step <= steps; ++step) {
    const program::StepPlan plan = program::plan_step(experiment, packer, group.rank(), step);
    world.barrier();
    if (step == 1) recorder.clear();
    tracer.begin_step(step);
    executor.run(plan);
  }
  std::vector<OperationTime> times;
  for (const trace::Event& event : recorder.events()) {
    if (event.lane != trace::Lane::compute) continue;
    times.push_back({recorder.names()[event.name_id], event.phase, event.bytes,
                     static_cast<double>(event.end_ns - event.begin_ns) * 1e-9});
  }
  return times;
}

double median_seconds(comm::Communicator& world, const std::vector<OperationTime>& events,
                      const std::string& name, Phase phase) {
  std::vector<double> seconds;
  for (const OperationTime& event : named(events, name)) {
    if (event.phase == phase) seconds.push_back(event.seconds);
  }
  return mean_over_ranks(world, seconds.empty() ? 0.0 : median(seconds));
}

double bytes_per_second(comm::Communicator& world, const std::vector<OperationTime>& events) {
  double bytes = 0, seconds = 0;
  for (const OperationTime& event : events) {
    bytes += static_cast<double>(event.bytes);
    seconds += event.seconds;
  }
  return mean_over_ranks(world, seconds > 0 ? bytes / seconds : 0.0);
}

std::vector<OperationTime> named(const std::vector<OperationTime>& events,
                                 const std::string& name) {
  std::vector<OperationTime> found;
  std::ranges::copy_if(events, std::back_inserter(found),
                       [&](const OperationTime& event) { return event.name == name; });
  return found;
}

std::vector<OperationTime> every_other(const std::vector<OperationTime>& copies, bool inputs) {
  std::vector<OperationTime> found;
  for (std::size_t i = inputs ? 0 : 1; i < copies.size(); i += 2) found.push_back(copies[i]);
  return found;
}

template std::vector<OperationTime> run_steps<bfloat16>(comm::Communicator&, comm::Communicator&,
                                                        const config::Experiment&, int);
template std::vector<OperationTime> run_steps<float>(comm::Communicator&, comm::Communicator&,
                                                     const config::Experiment&, int);
template std::vector<OperationTime> run_steps<double>(comm::Communicator&, comm::Communicator&,
                                                      const config::Experiment&, int);

}  // namespace cadenza::app
