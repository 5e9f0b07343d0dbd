// SPDX-License-Identifier: Apache-2.0
#include "app/train/start.hpp"

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <deque>
#include <filesystem>
#include <optional>

#include "app/commands.hpp"
#include "app/experiment_file.hpp"
#include "app/runtime/failure.hpp"
#include "app/runtime/machine.hpp"
#include "app/runtime/signals.hpp"
#include "app/train/checkpoints.hpp"
#include "app/train/training.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/model/activations.hpp"
#include "cadenza/model/hugging_face.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::app {

namespace {

/// The candidate files, in the order in which to try them: a file that was damaged since it was
/// written must not end a chain of jobs. Used on rank 0.
class Candidates {
 public:
  explicit Candidates(const std::string& from) : from_(from) {
    std::error_code unseen;
    const auto type = std::filesystem::status(from, unseen).type();
    is_folder_ = storage::SafetensorsFolder::is_at(from);
    if (is_folder_) require_no_checkpoint();
    is_file_ = is_folder_ || (type != std::filesystem::file_type::not_found &&
                              type != std::filesystem::file_type::directory);
    if (is_file_) {  // or cannot be examined: reading it will report why
      left_ = {{from, false}};
    } else {
      const auto found = found_checkpoints(from);
      left_.assign(found.begin(), found.end());
    }
    if (left_.empty()) {
      fail(
          ExitCode::data,
          "{}: {}; valid: --from with a checkpoint, or with the folder of a run, of checkpoints or "
          "of safetensors",
          from_,
          type == std::filesystem::file_type::directory ? "holds no checkpoint"
                                                        : "no such file or folder");
    }
    has_own_ = !left_.front().of_earlier_run;
    if (!has_own_) spdlog::warn("skipped   {}: it holds no checkpoint", from_);
  }

  /// Returns the next file that is sound, as far as can be told without its numbers.
  Start next(const config::Experiment& experiment, const config::FileContents& contents) {
    while (!left_.empty()) {
      const FoundCheckpoint candidate = left_.front();
      left_.pop_front();
      try {
        return examine(candidate, experiment, contents);
      } catch (const model::OtherModel& error) {
        if (!candidate.of_earlier_run) throw;  // the file is sound
        pass_over(error);
      } catch (const Error& error) {
        if (error.code() != ExitCode::data) throw;
        pass_over(error);
      }
    }
    fail(ExitCode::data, "{}: no checkpoint to start from: {} skipped; the newest: {}", from_,
         skipped_, newest_);
  }

  /// Continues with an older file, if there may be one.
  void pass_over(const Error& error) {
    if (is_file_) throw error;
    spdlog::warn("skipped   {}", error.what());
    if (++skipped_ == 1) newest_ = error.what();
  }

  /// Notes on the last file, for the log.
  const std::string& notes() const { return notes_; }

 private:
  Start examine(const FoundCheckpoint& candidate, const config::Experiment& experiment,
                const config::FileContents& contents) {
    const std::string& path = candidate.path;
    if (is_folder_) {
      const model::HuggingFaceFolder folder(path);
      folder.require(experiment.model);
      notes_ = describe(folder.differences(experiment), {}, "config.json of the folder");
      return {path, 0, true, true};
    }
    const model::CheckpointReader checkpoint(path);
    if (candidate.of_earlier_run && has_own_) require_same_run(checkpoint, experiment, contents);
    checkpoint.require(experiment.model);
    if (!experiment.run.evaluates && checkpoint.step() >= experiment.run.steps) {
      fail(ExitCode::usage, "run.steps: found {}; valid: more than the {} steps already done in {}",
           experiment.run.steps, checkpoint.step(), path);
    }
    notes_ = describe(checkpoint.differences(experiment, contents), contents, "the checkpoint");
    return {path, checkpoint.step(), false, !checkpoint.has_moments()};
  }

  /// Requires the same settings: the renamed run may be any other one, but with them it has the
  /// same numbers.
  static void require_same_run(const model::CheckpointReader& checkpoint,
                               const config::Experiment& experiment,
                               const config::FileContents& contents) {
    std::vector<std::string> keys;
    for (const auto& difference : checkpoint.differences(experiment, contents)) {
      const bool is_goal = difference.key == "run.steps";  // more are a reason to continue
      if (!is_goal) keys.push_back(difference.key);
    }
    if (keys.empty()) return;
    fail(ExitCode::data, "{}: is of an earlier run with another {}; valid: --from with its folder",
         checkpoint.path(), fmt::join(keys, ", "));
  }

  static std::string describe(const std::vector<model::Difference>& differences,
                              const config::FileContents& contents, const char* since) {
    std::vector<std::string> keys;
    for (const auto& [key, stored, asked] : differences) {
      const bool file = contents.contains(key) && contents.at(key) == asked;
      keys.push_back(file ? fmt::format("{} (it holds {}, then {})", key, asked, printable(stored))
                          : key);
    }
    return keys.empty() ? "" : fmt::format("changed   since {}: {}", since, fmt::join(keys, ", "));
  }

  /// The two would start at different steps.
  void require_no_checkpoint() const {
    for (const FoundCheckpoint& found : found_checkpoints(from_)) {
      if (found.of_earlier_run) continue;
      fail(ExitCode::data,
           "{}: holds safetensors and the checkpoint {}; valid: a folder with one of both, or the "
           "checkpoint itself",
           from_, found.path);
    }
  }

  std::string from_;
  bool is_folder_ = false;  ///< of tensors of Hugging Face's
  bool is_file_ = false;    ///< or such a folder: there is no other candidate
  bool has_own_ = false;    ///< the folder has files of its own, not of an earlier run
  std::deque<FoundCheckpoint> left_;
  int skipped_ = 0;
  std::string newest_;  ///< why the newest was skipped
  std::string notes_;
};

}  // namespace

std::string describe(const Start& start) {
  return fmt::format("{}, {}", start.path,
                     start.parameters_only
                         ? std::string("parameters alone: step 0 with a new optimizer")
                         : fmt::format("step {}", start.step));
}

SparseEstimates estimates_in(const model::CheckpointReader& checkpoint,
                             const config::Experiment& experiment) {
  SparseEstimates found = checkpoint.estimates(experiment.model);
  return experiment.attention.sparse_rule().block > 0 ? found : SparseEstimates{};
}

std::string describe_weights(const config::Experiment& experiment, const Start& start,
                             const SparseEstimates& estimates) {
  const std::string by = program::describe_estimate(experiment, start.step, estimates.next);
  if (by.empty()) return "";
  const bool lacks =
      start.step > experiment.attention.sparse.dense_steps && estimates.after.empty();
  return fmt::format("sparse    step {} is planned by {}{}", start.step, by,
                     lacks ? ": the checkpoint has no counts of earlier steps" : "");
}

Start find_start(comm::Communicator& world, const std::string& from,
                 const config::Experiment& experiment, const config::FileContents& contents,
                 const std::function<void(const Start& found)>& read) {
  Start start;
  if (from.empty()) return start;
  const bool first = world.rank() == 0;
  std::optional<Candidates> candidates;
  collectively(world, [&] {
    if (first) candidates.emplace(from);
  });
  for (bool found = false; !found;) {
    collectively(world, [&] {
      if (first) start = candidates->next(experiment, contents);
    });
    start.path = comm::broadcast(world, start.path, 0);
    world.broadcast(std::as_writable_bytes(std::span(&start.step, 1)), 0);
    world.broadcast(std::as_writable_bytes(std::span(&start.is_folder, 1)), 0);
    world.broadcast(std::as_writable_bytes(std::span(&start.parameters_only, 1)), 0);
    try {
      collectively(world, [&] { read(start); });
      found = true;
    } catch (const CollectiveError& error) {  // on any rank: each has read its own part
      if (error.code() != ExitCode::data) throw;
      collectively(world, [&] {
        if (first) candidates->pass_over(error);
      });
    }
  }
  if (first && !candidates->notes().empty()) spdlog::info("{}", candidates->notes());
  return start;
}

namespace {

void announce(const config::Experiment& e) {
  spdlog::info("{}: {} parameters, {} ({}, {}), {} of {} tokens", e.name,
               format_count(static_cast<double>(model::parameter_elements(e.model))),
               counted(e.ranks(), "rank"), counted(e.parallel.trainers(), "trainer"),
               e.attention.servers == 0 ? std::string("attention served in place")
                                        : counted(e.attention.servers, "attention server"),
               counted(e.run.steps, "step"), e.batch.tokens);
}

}  // namespace

int train(comm::Communicator& world, const CommandLine& line) {
  const config::Experiment experiment = load_experiment(world, line.experiment, line.overrides);
  if (world.rank() == 0) announce(experiment);
  int signal = 0;
  with_real(experiment.run.dtype, [&]<typename Real>(Real) {
    signal = Training<Real>(world, experiment, line.from, line.output).run();
  });
  return exit_code_of(signal);
}

}  // namespace cadenza::app
