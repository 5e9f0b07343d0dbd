// SPDX-License-Identifier: Apache-2.0
#include "app/run_folder.hpp"

#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/trace/writer.hpp"

namespace cadenza::app {
namespace {

namespace fs = std::filesystem;

std::string reason() {
  return errno != 0 ? std::strerror(errno) : "unknown reason";
}

/// What a run that was killed while it made a trace smaller has left.
void remove_unfinished(const fs::path& traces) {
  std::error_code error;
  for (fs::directory_iterator entry(traces, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;  // it is in nobody's way
    if (entry->path().extension() == trace::kUnfinished) fs::remove(entry->path(), ignored);
  }
}

/// A folder is renamed and files in it are replaced where a run wrote them: it makes trace/ first,
/// then experiment.yaml, then metrics.jsonl. @throws Error(data) where somebody else did
void refuse_files_of_others(const fs::path& folder) {
  for (const auto& [name, before] :
       {std::pair("experiment.yaml", "trace"), std::pair("metrics.jsonl", "experiment.yaml")}) {
    std::error_code unseen;
    if (!fs::is_regular_file(folder / name, unseen) || fs::exists(folder / before, unseen))
      continue;
    fail(ExitCode::data,
         "{}: was not written by a run, which would replace it; valid: --output with a new folder, "
         "or with that of an earlier run",
         (folder / name).string());
  }
}

/// Traces and checkpoints come after experiment.yaml: without one, no run is renamed, and files in
/// these folders would be replaced. @throws Error(data) where there are any
void refuse_files_without_run(const fs::path& folder) {
  for (const char* name : {"trace", "checkpoints"}) {
    std::error_code error;  // of a folder that is not there
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

/// Nothing of an earlier run is lost or mixed with this one.
/// @return the folder, empty of it
OutputFolder keep_earlier_run(OutputFolder held) {
  const fs::path path = held.path();
  refuse_files_of_others(path);
  std::error_code error;  // where one may not look, writing will say so
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

/// A folder in it.
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

}  // namespace

RunFolder RunFolder::create(const std::string& path, const config::Experiment& experiment) {
  RunFolder folder(without_trailing_slash(path));
  folder.held_ = keep_earlier_run(OutputFolder(folder.path()));
  folder.held_->require_files({"experiment.yaml", "metrics.jsonl", "trace", "checkpoints"});
  refuse_files_without_run(folder.path());
  folder.places_.push_back(made(folder.trace()));
  if (experiment.run.checkpoint.every > 0) folder.places_.push_back(made(folder.checkpoints()));
  errno = 0;
  std::ofstream yaml(folder.path() + "/experiment.yaml");
  if (!(yaml << config::to_yaml(experiment) << std::flush)) {
    fail(ExitCode::data, "{}/experiment.yaml: cannot be written: {}", folder.path(), reason());
  }
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
                                 {"loss", m.loss},
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
                                 {"gradient_norm", m.gradient_norm},
                                 {"learning_rate", m.learning_rate}};
  if (m.answers > 0) {
    line["answers"] = m.answers;
    line["hits"] = m.hits;
  }
  if (m.sparsity) line["sparsity"] = *m.sparsity;
  if (m.recall) {
    line["recall"] = *m.recall;
    line["recall_layer"] = m.recall_layer;
  }
  errno = 0;
  if (!(metrics_ << line.dump() << '\n' << std::flush)) {
    fail(ExitCode::data, "{}: cannot be written: {}", metrics(), reason());
  }
}

}  // namespace cadenza::app
