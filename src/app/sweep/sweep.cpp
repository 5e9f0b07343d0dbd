// SPDX-License-Identifier: Apache-2.0
// `cadenza sweep`: simulates the points of a grid on all cores.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "app/commands.hpp"
#include "app/files.hpp"
#include "app/planner/experiment_file.hpp"
#include "app/planner/simulate/simulation.hpp"
#include "app/planner/terminal.hpp"
#include "app/run_folder.hpp"
#include "app/runtime/failure.hpp"
#include "app/runtime/threads.hpp"
#include "app/sweep/sweep_table.hpp"
#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/storage/new_file.hpp"

namespace cadenza::app {
namespace {

namespace fs = std::filesystem;

/// Returns a hash of this program: numbers of another one are not reused.
std::uint64_t program_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return Hasher().add(bytes.str()).value();
}

struct PointTask {
  std::string text;  ///< of the sweep's file
  config::Sweep sweep;
  config::Base base;
  std::vector<std::string> overrides;
  std::vector<config::SweepPoint> points;
  std::uint64_t program = 0;
};

/// A point before its simulation.
struct Resolved {
  config::Experiment experiment;
  config::Machine machine;
  std::uint64_t hash = 0;
};

Resolved resolve(const PointTask& task, const config::SweepPoint& point,
                 config::UnusedKeys& unused) {
  Resolved resolved;
  resolved.experiment =
      with_budgets(config::experiment_of(point, task.base, task.overrides, &unused));
  config::check_faults(resolved.experiment, 0, task.sweep.steps);
  resolved.machine = load_machine(resolved.experiment.cluster);
  const config::Experiment& e = resolved.experiment;
  const auto corpus = data::open_corpus(e.data, e.model.vocab, e.seed);
  Hasher hash;
  hash.add(task.program)
      .add(static_cast<std::uint64_t>(task.sweep.steps))
      .add(config::to_yaml(e))
      .add(config::to_yaml(resolved.machine));
  for (const auto& [key, contents] : file_contents(e, *corpus)) hash.add(key).add(contents);
  resolved.hash = hash.value();
  return resolved;
}

PointResult simulate_point(const PointTask& task, const Resolved& resolved) {
  PointResult result;
  result.experiment = resolved.hash;
  result.summary = simulate_experiment(resolved.experiment, resolved.machine, 0, task.sweep.steps);
  const MemoryVerdict& memory = result.summary.memory;
  result.status = memory.fits() ? PointStatus::ok : PointStatus::out_of_memory;
  if (!memory.fits()) result.reason = memory.text();
  return result;
}

struct Row {
  SweepRow cells;
  bool kept = false;  ///< from an earlier run
};

Row work_on(const PointTask& task, const config::SweepPoint& point, const SweepLog& log,
            config::UnusedKeys& unused) {
  PointResult result;
  try {
    const Resolved resolved = resolve(task, point, unused);
    if (const SweepRow* row = log.find(point.labels, resolved.hash)) return {*row, true};
    result = simulate_point(task, resolved);
  } catch (...) {
    const Failure failure = current_failure();
    result.status = failure.code == ExitCode::usage ? PointStatus::refused : PointStatus::failed;
    result.reason = failure.message;
  }
  return {row_of(point.labels, result), false};
}

/// Shared by the threads of a sweep.
class Board {
 public:
  Board(const PointTask& task, SweepLog& log)
      : task_(task),
        log_(log),
        rows_(task.points.size()),
        progress_(true, static_cast<std::int64_t>(task.points.size()), "point") {}

  /// Takes points until none is left. An error that one thread cannot handle ends all of them.
  void work() noexcept {
    for (std::size_t i = next_++; i < rows_.size(); i = next_++) {
      try {
        take(i);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
        next_ = rows_.size();
      }
    }
  }

  std::vector<SweepRow> rows() {
    progress_.finish();
    if (failure_) std::rethrow_exception(failure_);
    tell_unused(unused_);
    return std::move(rows_);
  }

 private:
  void take(std::size_t i) {
    const config::SweepPoint& point = task_.points[i];
    Row row = work_on(task_, point, log_, unused_);
    const std::lock_guard lock(mutex_);
    if (!row.kept) log_.add(row.cells);
    std::string name;
    for (const std::string& label : point.labels) name += (name.empty() ? "" : " ") + label;
    progress_.show(++done_, fmt::format("{}: {}", name, row.cells[point.labels.size()]));
    rows_[i] = std::move(row.cells);
  }

  const PointTask& task_;
  SweepLog& log_;
  std::vector<SweepRow> rows_;
  config::UnusedKeys unused_;
  Progress progress_;
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;
  std::int64_t done_ = 0;
  std::exception_ptr failure_;
};

std::vector<SweepRow> run_points(const PointTask& task, SweepLog& log) {
  const auto cores = static_cast<std::size_t>(usable_cores());
  Board board(task, log);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < std::min(cores, task.points.size()); ++i) {
      threads.emplace_back([&board] { board.work(); });
    }
  }
  return board.rows();
}

PointTask read_task(const CommandLine& line) {
  PointTask task;
  task.text = read_yaml(line.experiment, "a sweep's YAML file");
  task.sweep = config::parse_sweep(task.text, line.experiment);
  if (line.steps > 0) task.sweep.steps = line.steps;
  const std::string base = (fs::path(line.experiment).parent_path() / task.sweep.base).string();
  task.base = config::parse_base(read_yaml(base, "an experiment's YAML file"), base);
  task.overrides = line.overrides;
  task.points = config::points_of(task.sweep);
  task.program = program_hash();
  return task;
}

/// Opens the folder of a sweep. A sweep makes its table before its other files: without a table,
/// they belong to somebody else.
OutputFolder open_folder(const std::string& path, const std::string& sweep_file) {
  OutputFolder folder(path);
  folder.require_files({"sweep.yaml", "sweep.csv", "sweep.h5"});
  std::error_code unseen;
  for (const char* name : {"sweep.yaml", "sweep.h5"}) {
    const fs::path file = fs::path(path) / name;
    if (fs::exists(fs::path(path) / "sweep.csv", unseen) || !fs::exists(file, unseen) ||
        fs::equivalent(file, sweep_file, unseen)) {
      continue;
    }
    fail(ExitCode::data,
         "{}: was not written by a sweep, which would replace it; valid: --output with a new "
         "folder, or with that of an earlier sweep",
         file.string());
  }
  return folder;
}

void keep_sweep_file(const std::string& path, const PointTask& task,
                     const std::string& sweep_file) {
  std::error_code unseen;
  if (!fs::equivalent(path, sweep_file, unseen)) storage::write_whole(path, task.text);
}

/// Reports the outcome. @throws Error(data) if a point failed, Error(usage) if none was simulated
void report(const PointTask& task, std::span<const SweepRow> rows, const std::string& folder) {
  std::array<std::size_t, 4> counts{};
  const SweepRow* worst = nullptr;
  for (const SweepRow& row : rows) {
    const PointStatus status = status_of(task.sweep, row);
    ++counts[at(status)];
    if (worst == nullptr || status > status_of(task.sweep, *worst)) worst = &row;
  }
  print(fmt::format("{}: {}: {} ok, {} out of memory, {} refused, {} failed; {}/sweep.csv\n",
                    task.sweep.name, counted(std::ssize(rows), "point"), counts[0], counts[1],
                    counts[2], counts[3], folder));
  if (worst == nullptr) fail(ExitCode::usage, "{}: found no point; valid: one or more", folder);
  const std::string& reason = (*worst)[task.sweep.axes.size() + 1];
  if (counts[3] > 0)
    fail(ExitCode::data, "{} failed: {}", counted(static_cast<std::int64_t>(counts[3]), "point"),
         reason);
  if (counts[0] + counts[1] == 0) fail(ExitCode::usage, "all points were refused: {}", reason);
}

}  // namespace

void sweep(const CommandLine& line) {
  const PointTask task = read_task(line);
  const std::string folder = line.output.empty() ? "runs/" + task.sweep.name : line.output;
  const std::vector<std::string> columns = columns_of(task.sweep);
  const OutputFolder held = open_folder(folder, line.experiment);
  SweepLog log(folder + "/sweep.csv", columns);
  keep_sweep_file(folder + "/sweep.yaml", task, line.experiment);
  const std::vector<SweepRow> rows = run_points(task, log);
  held.require();
  log.finish(rows);
  write_hdf5(folder + "/sweep.h5", task.sweep, rows);
  report(task, rows, folder);
}

}  // namespace cadenza::app
