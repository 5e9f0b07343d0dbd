// SPDX-License-Identifier: Apache-2.0
#include "cadenza/app/start.hpp"

#include <spdlog/spdlog.h>

#include <filesystem>

#include "cadenza/app/run_folder.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/model/checkpoint.hpp"

namespace cadenza::app {
namespace {

/// The newest that can be opened: one that was damaged since it was written must not end a chain of
/// jobs.
model::CheckpointReader newest_in(const std::string& folder) {
  std::string reason = "it holds none";
  for (const std::string& path : model::checkpoints_in(folder)) {
    try {
      return model::CheckpointReader(path);
    } catch (const Error& error) {
      spdlog::info("skipped   {}", error.what());
      reason = error.what();
    }
  }
  fail(ExitCode::data, "{}: no checkpoint to start from: {}", folder, reason);
}

model::CheckpointReader open_start(const std::string& from) {
  std::error_code unseen;  // what cannot be looked at is told by the attempt to read it
  const std::string below = RunFolder(from).checkpoints();
  if (std::filesystem::is_directory(below, unseen)) return newest_in(below);
  if (std::filesystem::is_directory(from, unseen)) return newest_in(from);
  return model::CheckpointReader(from);
}

}  // namespace

Start find_start(const std::string& from, const config::Experiment& experiment) {
  if (from.empty()) return {};
  const model::CheckpointReader checkpoint = open_start(from);
  checkpoint.require(experiment.model);
  if (checkpoint.step() >= experiment.run.steps) {
    fail(ExitCode::usage, "run.steps: found {}; valid: more than the {} that {} has behind it",
         experiment.run.steps, checkpoint.step(), checkpoint.path());
  }
  return {checkpoint.path(), checkpoint.step()};
}

}  // namespace cadenza::app
