// SPDX-License-Identifier: Apache-2.0
#include "cadenza/app/run_folder.hpp"

#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/model/checkpoint.hpp"

namespace cadenza::app {
namespace {

namespace fs = std::filesystem;

std::string reason() {
  return errno != 0 ? std::strerror(errno) : "unknown reason";
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    fail(ExitCode::data, "{}: cannot be made: {}; valid: --output with a writable folder",
         path.string(), error.message());
  }
}

/// Nothing of an earlier run is lost or mixed with this one.
void keep_earlier_run(const fs::path& path) {
  model::remove_partial_checkpoints(path / "checkpoints");
  std::error_code error;  // where one may not look, making the folder will say so
  if (!fs::exists(path / "experiment.yaml", error)) return;
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
}

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

RunFolder RunFolder::create(const std::string& path, const config::Experiment& experiment) {
  RunFolder folder(without_trailing_slash(path));
  keep_earlier_run(folder.path());
  make_folder(folder.trace());
  if (experiment.run.checkpoint.every > 0) make_folder(folder.checkpoints());
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
  return folder;
}

void RunFolder::append(const StepMetrics& m) {
  nlohmann::ordered_json line = {{"step", m.step},
                                 {"loss", m.loss},
                                 {"tokens", m.tokens},
                                 {"seconds", m.seconds},
                                 {"tokens_per_second", m.tokens_per_second},
                                 {"model_flops_utilization", m.model_flops_utilization},
                                 {"attention_imbalance", m.attention_imbalance},
                                 {"bytes_moved", m.bytes_moved},
                                 {"peak_memory_bytes", m.peak_memory_bytes},
                                 {"gradient_norm", m.gradient_norm},
                                 {"learning_rate", m.learning_rate}};
  errno = 0;
  if (!(metrics_ << line.dump() << '\n' << std::flush)) {
    fail(ExitCode::data, "{}: cannot be written: {}", metrics(), reason());
  }
}

}  // namespace cadenza::app
