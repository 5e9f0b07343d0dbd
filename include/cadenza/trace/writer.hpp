// SPDX-License-Identifier: Apache-2.0
// One HDF5 file per rank, written by that rank alone, readable to its last complete step always.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cadenza/trace/event.hpp"
#include "cadenza/trace/recorder.hpp"

namespace cadenza::trace {

class Writer {
 public:
  /// Creates `path` with every object of the schema; none is added later.
  /// @param events_per_step  about: decides how events are cut into chunks
  /// @throws Error(data) naming the path.
  Writer(const std::string& path, const RunInfo& run, const RankInfo& rank,
         std::size_t events_per_step = 1024);
  /// Goes on with a file whose writer paused.
  /// @throws Error(data) naming the path.
  explicit Writer(const std::string& path);
  ~Writer();  ///< without finish(): closes what it can with state "error", the file stays readable
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void write_clock(const ClockSync& sync);
  void write_plan(std::span<const PlannedTask> tasks, std::span<const PlannedStage> stages);

  void write_losses(std::span<const PositionLoss> positions, std::span<const AnswerLoss> answers);

  /// Appends the recorder's events and samples and new names, flushes them, then commits `step`
  /// (its n_events_end is filled in). Clears the recorder, which is the same one at every step.
  /// @throws Error(data) when the disk is full or the file was removed; it stays readable to the
  /// step before.
  void write_step(StepRecord step, const MemoryHighwater& memory, Recorder& recorder);

  /// Closes the file with state "open": for who writes the files of too many ranks to keep them
  /// open, an open one costs 0.8 MiB.
  void pause();

  /// Marks the file as complete and closes it. @param signal  that ended the run; 0: none did
  void finish(int signal = 0);

  std::int64_t overhead_ns() const;  ///< time spent in this class so far

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// `run.h5` beside the rank files: the table of ranks, and external links to them (/rank/00000
/// ...).
/// @param ranks  one per world rank, in order
/// @throws Error(data) naming the path
void write_run_index(const std::string& folder, const RunInfo& run,
                     const std::vector<RankInfo>& ranks);

std::string rank_file_name(int rank);  ///< "rank-00000.h5"

/// Ends the names of copies that a writer makes of its file to make it smaller, and renames.
inline constexpr std::string_view kUnfinished = ".compact";

}  // namespace cadenza::trace
