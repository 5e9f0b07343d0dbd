// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>

#include "app/calibrate/calibration.hpp"
#include "app/commands.hpp"
#include "app/experiment_file.hpp"
#include "app/files.hpp"
#include "app/planner/terminal.hpp"
#include "app/runtime/failure.hpp"
#include "app/runtime/machine.hpp"
#include "cadenza/model/llama.hpp"
#include "cadenza/storage/new_file.hpp"

namespace cadenza::app {
namespace {

constexpr int kRounds = 2;       // of all measurements
constexpr int kMostRounds = 8;   // of noisy measurements,
constexpr double kBudget = 240;  // until so many seconds have passed
constexpr std::int64_t kMostRows = 16384;
constexpr std::int64_t kShortest = 4096;  // tokens of the longest document, at least

constexpr const char* kBy = "cadenza calibrate, ";  // in the `source` of the file it writes

/// Checks the output before minutes are spent.
void require_machine_output(const std::string& path, bool force) {
  require_output(path, "cadenza calibrate", force, [&] {
    return config::parse_machine(read_yaml(path, "a machine file"), path).source.find(kBy) !=
           std::string::npos;
  });
}

}  // namespace

std::string some_of(const std::vector<std::string>& all) {
  constexpr std::size_t kNamed = 5;
  const std::size_t named = std::min(kNamed, all.size());
  const std::string names = fmt::format(
      "{}", fmt::join(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(named), ", "));
  return all.size() == named ? names : fmt::format("{} and {} more", names, all.size() - named);
}

template <typename Real>
Calibration<Real>::Calibration(comm::Communicator& world, const config::Experiment& experiment)
    : world_(world),
      experiment_(experiment),
      longest_(std::max(experiment.data.max_document, kShortest)),
      rows_(std::min(experiment.batch.microbatch, kMostRows)),
      attention_(world, experiment, longest_, ledger_) {
  const AttentionShape shape = config::attention_shape(experiment.model);
  machine_.name = comm::host_place(world).host;
  machine_.dtype = experiment.run.dtype;
  machine_.attention.heads = shape.heads;
  machine_.attention.kv_heads = shape.kv_heads;
  machine_.attention.head_dim = shape.head_dim;
}

template <typename Real>
config::Machine Calibration<Real>::run() {
  double peak = matmul_rate<Real>(world_);
  world_.all_reduce(std::span(&peak, 1), comm::Reduction::min);
  machine_.peak_flops_per_second = rounded(peak);
  add_attention();
  add_products();
  add_operations();
  add_index();
  if (world_.size() > 1) add_messages();
  std::vector<const Work*> all;
  for (const Work& work : works_) all.push_back(&work);
  for (int round = 1; round <= kRounds; ++round) measure_round(round, all);
  for (int round = kRounds + 1; round <= kMostRounds && has_time(); ++round) {
    const std::vector<const Work*> again = noisy();
    if (again.empty()) break;
    measure_round(round, again);
  }
  fit_attention();
  fit_sparse();
  fit_products();
  fit_operations();
  fit_index();
  if (world_.size() > 1) fit_messages();
  check_attention();
  check_products();
  check_operations();
  check_index();
  machine_.source = source();
  return machine_;
}

template <typename Real>
bool Calibration<Real>::Work::noisy() const {
  return std::ranges::any_of(rounds, &Rounds::noisy);
}

/// Returns the spread of its noisiest measurement.
template <typename Real>
double Calibration<Real>::Work::spread() const {
  double most = 0;
  for (const Rounds* of : rounds) {
    if (of->noisy()) most = std::max(most, of->spread());
  }
  return most;
}

template <typename Real>
std::vector<const typename Calibration<Real>::Work*> Calibration<Real>::noisy() const {
  std::vector<const Work*> found;
  for (const Work& work : works_) {
    if (work.noisy()) found.push_back(&work);
  }
  return found;
}

template <typename Real>
void Calibration<Real>::measure_round(int round, std::vector<const Work*> works) {
  const std::string what = round <= kRounds ? fmt::format("round {} of {}:", round, kRounds)
                                            : fmt::format("round {}, noisy only:", round);
  Progress progress(world_.rank() == 0, static_cast<std::int64_t>(works.size()), what);
  std::int64_t done = 0;
  for (const Work* work : works) {
    if (round > kRounds && !has_time()) break;
    work->run();
    progress.show(++done, work->name);
  }
  progress.finish();
}

/// Whether the time budget allows more; the same on all ranks. Collective.
template <typename Real>
bool Calibration<Real>::has_time() const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
  double seconds = elapsed.count();
  world_.all_reduce(std::span(&seconds, 1), comm::Reduction::max);
  return seconds < kBudget;
}

template <typename Real>
std::string Calibration<Real>::doubts() const {
  std::vector<const Work*> works = noisy();
  std::ranges::sort(works, std::greater(), &Work::spread);
  std::vector<std::string> lines, differing, far;
  for (const Work* work : works) {
    differing.push_back(fmt::format("{} ({:.0f} %)", work->name, 100 * work->spread()));
  }
  for (const FitError* error : {&attention_error_, &product_error_, &operation_error_}) {
    far.insert(far.end(), error->far().begin(), error->far().end());
  }
  if (!differing.empty()) {
    lines.push_back(fmt::format("{} of {} measurements vary from round to round: {}",
                                differing.size(), works_.size(), some_of(differing)));
  }
  if (!far.empty()) {
    lines.push_back(
        fmt::format("{} predictions are far from the measurements: {}", far.size(), some_of(far)));
  }
  return fmt::format("{}", fmt::join(lines, "; "));
}

template <typename Real>
std::string Calibration<Real>::source() const {
  return fmt::format(
      "{}{}{} ranks x {} threads on {}, {}; errors of predictions: attention {}; products {}; "
      "operations {}{}",
      doubts().empty() ? "" : fmt::format("NOT RELIABLE: {}. Measured by ", doubts()), kBy,
      world_.size(), Device().concurrency(), machine_.name, utc_now(), attention_error_.text(),
      product_error_.text(), operation_error_.text(),
      world_.size() > 1 ? "" : "; copies and links need two ranks and were not measured");
}

/// Measures, writes the file and reports doubts.
template <typename Real>
void calibrate_as(comm::Communicator& world, const config::Experiment& experiment,
                  const CommandLine& line) {
  announce_kernels<Real>(world, config::attention_shape(experiment.model),
                         experiment.attention.kernel);
  Calibration<Real> calibration(world, experiment);
  const config::Machine machine = calibration.run();
  collectively(world, [&] {
    if (world.rank() != 0) return;
    require_machine_output(line.output, line.force);  // another process may have written meanwhile
    storage::write_whole(line.output, "# SPDX-License-Identifier: Apache-2.0\n" + to_yaml(machine));
  });
  const std::string doubts = calibration.doubts();
  if (!doubts.empty()) {
    throw CollectiveError(ExitCode::numerics,
                          fmt::format("{}: measurements too noisy to rely on: {}; calibrate again "
                                      "while nothing else runs on this machine",
                                      line.output, doubts));
  }
  if (world.rank() != 0) return;
  print(machine.source + "\n");
  spdlog::info("next      cadenza simulate {} --set cluster.machine={}", line.experiment,
               line.output);
}

void calibrate(comm::Communicator& world, const CommandLine& line) {
  config::Experiment experiment;
  const std::string host = comm::host_place(world).host;
  collectively(world, [&] {
    experiment = load_experiment(line.experiment, line.overrides);
    require_dtype(experiment.run.dtype, kernels::supports_bfloat16(), host);
    if (world.rank() == 0) require_machine_output(line.output, line.force);
  });
  world.set_timeout(experiment.run.timeout);
  experiment.run.transport = announce_devices(world, experiment.run);
  with_real(experiment.run.dtype,
            [&]<typename Real>(Real) { calibrate_as<Real>(world, experiment, line); });
}

}  // namespace cadenza::app
