// SPDX-License-Identifier: Apache-2.0
#include "app/run_folder.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "app/planner/step_report.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/trace/writer.hpp"

namespace cadenza::app {
namespace {

namespace fs = std::filesystem;

/// Rejects `/`: a run would spread over the system, and no later one could rename it.
void refuse_root(const std::string& path) {
  std::error_code unseen;  // a missing path is another folder
  if (!fs::equivalent(path, "/", unseen)) return;
  fail(ExitCode::data, "{}: is the root folder of the system; valid: --output with another folder",
       path);
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return;
  fail(ExitCode::data, "{}: cannot be made: {}; valid: --output with a writable folder", path,
       error.message());
}

int open_lock(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file < 0 && errno != ENOENT) {
    fail(ExitCode::data, "{}: cannot be written: {}; valid: --output with a writable folder", path,
         std::strerror(errno));
  }
  return file;
}

/// Returns the holder that the lock file names. Closes it.
std::string holder(int file) {
  std::array<char, 256> text{};
  const ssize_t bytes = pread(file, text.data(), text.size() - 1, 0);
  close(file);
  return bytes > 0 ? text.data() : "another process";
}

/// Rejects links, which may lead anywhere, and pipes, which block the writer that opens them;
/// /dev/null and similar devices do neither.
void require_file(const fs::directory_entry& entry) {
  std::error_code error;
  if (entry.is_symlink(error)) {
    fail(ExitCode::data, "{}: is a link to {}; valid: an output folder without links",
         entry.path().string(), fs::read_symlink(entry.path(), error).string());
  }
  if (!fs::is_other(entry.symlink_status(error)) || entry.is_character_file(error)) return;
  fail(ExitCode::data, "{}: is a pipe, a socket or a device; valid: an output folder of files",
       entry.path().string());
}

}  // namespace

std::string OutputFolder::lock_of(const std::string& folder) {
  return folder + "/.lock";
}

OutputFolder::OutputFolder(const std::string& path) : place_(path) {
  refuse_root(path);
  do {
    make_folder(place_.path());
    place_ = storage::Place(place_.path());
  } while (!lock());
  sign();
}

bool OutputFolder::lock() {
  const std::string& folder = place_.path();
  file_ = open_lock(lock_of(folder));
  if (file_ < 0) return false;  // the process that renamed the folder just now no longer uses it
  if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      const std::string who = holder(std::exchange(file_, -1));
      fail(ExitCode::data, "{}: in use by {}; valid: another --output, or wait until it ends",
           folder, who);
    }
    spdlog::warn(
        "warning   {}: its file system has no locks ({}): a second run in this folder "
        "would not be noticed",
        folder, std::strerror(errno));
  }
  struct stat held {
  }, there{};
  const bool same = fstat(file_, &held) == 0 && stat(lock_of(folder).c_str(), &there) == 0 &&
                    held.st_ino == there.st_ino && held.st_dev == there.st_dev;
  if (!same) close(std::exchange(file_, -1));
  return same;
}

void OutputFolder::sign() const {
  std::array<char, 128> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string text = fmt::format("process {} on {}", getpid(), host.data());
  const bool written = ftruncate(file_, 0) == 0 && pwrite(file_, text.data(), text.size(), 0) ==
                                                       static_cast<ssize_t>(text.size());
  if (!written) {
    fail(ExitCode::data, "{}: cannot be written: {}", lock_of(path()), std::strerror(errno));
  }
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept
    : place_(other.place_), file_(std::exchange(other.file_, -1)) {}

OutputFolder& OutputFolder::operator=(OutputFolder&& other) noexcept {
  std::swap(place_, other.place_);
  std::swap(file_, other.file_);
  return *this;
}

OutputFolder::~OutputFolder() {
  if (file_ < 0) return;
  if (place_.holds()) unlink(lock_of(path()).c_str());
  close(file_);
}

void OutputFolder::require_files(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    const fs::directory_entry entry(fs::path(path()) / name);
    require_file(entry);
    std::error_code error;
    for (fs::directory_iterator below(entry.path(), error), end; !error && below != end;
         below.increment(error)) {
      require_file(*below);
    }
  }
}

namespace {

namespace fs = std::filesystem;

std::string reason() {
  return errno != 0 ? std::strerror(errno) : "unknown reason";
}

/// Removes files that a run left when it was killed while compacting a trace.
void remove_unfinished(const fs::path& traces) {
  std::error_code error;
  for (fs::directory_iterator entry(traces, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;  // a file that stays does no harm
    if (entry->path().extension() == trace::kUnfinished) fs::remove(entry->path(), ignored);
  }
}

/// Rejects folders that no run wrote: a folder is renamed, and its files are replaced, only if a
/// run made it: trace/ first, then experiment.yaml, metrics.jsonl and evaluation.json. @throws
/// Error(data) if somebody else did
void refuse_files_of_others(const fs::path& folder) {
  for (const auto& [name, before] :
       {std::pair("experiment.yaml", "trace"), std::pair("metrics.jsonl", "experiment.yaml"),
        std::pair("evaluation.json", "metrics.jsonl")}) {
    std::error_code unseen;
    if (!fs::is_regular_file(folder / name, unseen) || fs::exists(folder / before, unseen))
      continue;
    fail(ExitCode::data,
         "{}: was not written by a run, which would replace it; valid: --output with a new folder, "
         "or with that of an earlier run",
         (folder / name).string());
  }
}

/// Rejects traces and checkpoints without experiment.yaml, after which a run writes them: without
/// it no run is renamed, and their files would be replaced. @throws Error(data) if there are any
void refuse_files_without_run(const fs::path& folder) {
  for (const char* name : {"trace", "checkpoints"}) {
    std::error_code error;  // of a missing folder
    for (fs::directory_iterator entry(folder / name, error), end; !error && entry != end;
         entry.increment(error)) {
      std::error_code unseen;
      if (!entry->is_regular_file(unseen)) continue;
      fail(ExitCode::data,
           "{}: belongs to no run, as there is no experiment.yaml beside its folder, and might be "
           "replaced; valid: --output with a new folder, or with that of an earlier run",
           entry->path().string());
    }
  }
}

/// Renames an earlier run in the folder, so that nothing of it is lost or mixed with this one.
/// @return the folder, without an earlier run
OutputFolder keep_earlier_run(OutputFolder held) {
  const fs::path path = held.path();
  refuse_files_of_others(path);
  std::error_code error;  // if access is denied, writing will report it
  if (!fs::exists(path / "experiment.yaml", error)) return held;
  model::remove_partial_checkpoints(path / "checkpoints");
  remove_unfinished(path / "trace");
  fs::path kept;
  for (int number = 1; kept.empty() || fs::exists(kept, error); ++number) {
    kept = fmt::format("{}.{}", path.string(), number);
  }
  fs::rename(path, kept, error);
  if (error) {
    fail(ExitCode::data, "{}: holds an earlier run that cannot be renamed to {}: {}", path.string(),
         kept.string(), error.message());
  }
  spdlog::info("the earlier run in {} is now {}", path.string(), kept.string());
  fs::remove(OutputFolder::lock_of(kept.string()), error);
  return OutputFolder(path.string());
}

/// Makes a folder inside the run's.
storage::Place made(const std::string& path) {
  std::error_code error;
  fs::create_directory(path, error);
  if (error) fail(ExitCode::data, "{}: cannot be made: {}", path, error.message());
  return storage::Place(path);
}

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

void write(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path);
  if (!(file << text << std::flush)) {
    fail(ExitCode::data, "{}: cannot be written: {}", path, reason());
  }
}

}  // namespace

RunFolder RunFolder::create(const std::string& path, const config::Experiment& experiment) {
  RunFolder folder(without_trailing_slash(path));
  folder.held_ = keep_earlier_run(OutputFolder(folder.path()));
  folder.held_->require_files(
      {"experiment.yaml", "metrics.jsonl", "evaluation.json", "trace", "checkpoints"});
  refuse_files_without_run(folder.path());
  folder.places_.push_back(made(folder.trace()));
  if (experiment.run.checkpoint.every > 0) folder.places_.push_back(made(folder.checkpoints()));
  write(folder.path() + "/experiment.yaml", config::to_yaml(experiment));
  errno = 0;
  folder.metrics_.open(folder.metrics(), std::ios::trunc);
  if (!folder.metrics_) {
    fail(ExitCode::data, "{}: cannot be written: {}", folder.metrics(), reason());
  }
  folder.places_.emplace_back(folder.metrics());
  return folder;
}

void RunFolder::require() const {
  if (held_) held_->require();
  for (const storage::Place& place : places_) place.require();
}

void RunFolder::append(const StepMetrics& m) {
  nlohmann::ordered_json line = {{"step", m.step},
                                 {"loss", m.result.loss},
                                 {"tokens", m.tokens},
                                 {"seconds", m.seconds},
                                 {"tokens_per_second", m.tokens_per_second},
                                 {"model_flops_utilization", m.model_flops_utilization},
                                 {"hardware_flops_utilization", m.hardware_flops_utilization},
                                 {"attention_imbalance", m.attention_imbalance},
                                 {"attention_imbalance_by_layer", m.attention_imbalance_by_layer},
                                 {"attention_flops", m.attention_flops},
                                 {"dense_attention_flops", m.dense_attention_flops},
                                 {"bytes_moved", m.bytes_moved},
                                 {"peak_memory_bytes", m.peak_memory_bytes},
                                 {"gradient_norm", m.result.gradient_norm},
                                 {"learning_rate", m.result.learning_rate}};
  if (m.validation_loss) {
    line["validation_loss"] = *m.validation_loss;
    line["validation_perplexity"] = std::exp(*m.validation_loss);
  }
  if (m.result.answers > 0) {
    line["answers"] = m.result.answers;
    line["hits"] = m.result.hits;
  }
  if (m.sparsity) line["sparsity"] = *m.sparsity;
  if (m.result.recall) {
    line["recall"] = m.result.recall->recall.total().share();
    line["recall_layer"] = m.result.recall->layer;
    for (const trace::DistanceRecall& row : recall_rows(m.step, *m.result.recall)) {
      line["recall_by_distance"].push_back({{"distance", row.distance},
                                            {"kept", row.kept},
                                            {"attention", row.attention},
                                            {"keys", row.keys},
                                            {"unseen", row.unseen}});
    }
  }
  errno = 0;
  if (!(metrics_ << line.dump() << '\n' << std::flush)) {
    fail(ExitCode::data, "{}: cannot be written: {}", metrics(), reason());
  }
}

void RunFolder::write_evaluation(const std::string& json) const {
  write(evaluation(), json + "\n");
}

}  // namespace cadenza::app
