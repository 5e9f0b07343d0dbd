// SPDX-License-Identifier: Apache-2.0
// Writes one HDF5 file per rank, which is readable up to its last complete step at any time.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cadenza/trace/events/event.hpp"
#include "cadenza/trace/recorder.hpp"

namespace cadenza::trace {

class Writer {
 public:
  /// Creates `path` with every object of the schema; none is added later.
  /// @param events_per_step  approximate number, which decides the size of chunks
  /// @throws Error(data) naming the path.
  Writer(const std::string& path, const RunInfo& run, const RankInfo& rank,
         std::size_t events_per_step = 1024);
  /// Continues a file whose writer paused.
  /// @throws Error(data) naming the path.
  explicit Writer(const std::string& path);
  ~Writer();  ///< without finish(): closes the file with state "error"; it stays readable
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void write_clock(const ClockSync& sync);
  void write_plan(std::span<const PlannedTask> tasks, std::span<const PlannedStage> stages);

  void write_losses(std::span<const PositionLoss> positions, std::span<const AnswerLoss> answers);
  void write_recall(std::span<const DistanceRecall> rows);

  /// Appends the recorder's events, samples and new names, flushes them, then commits `step` (its
  /// n_events_end is filled in). Clears the recorder, which must be the same at every step.
  /// @throws Error(data) when the disk is full or the file was removed; it stays readable up to the
  /// previous step.
  void write_step(StepRecord step, const MemoryHighwater& memory, Recorder& recorder);

  /// Closes the file for a while, with state "open". An open file costs 0.8 MiB, too much for one
  /// process that writes the files of many ranks.
  void pause();

  /// Marks the file as complete and closes it.
  /// @param signal  signal that ended the run; 0: none
  void finish(int signal = 0);

  std::int64_t overhead_ns() const;  ///< time spent in this class so far

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// Writes `run.h5` beside the rank files: the table of ranks, and external links to the files
/// (/rank/00000 ...).
/// @param ranks  by world rank
/// @throws Error(data) naming the path
void write_run_index(const std::string& folder, const RunInfo& run,
                     const std::vector<RankInfo>& ranks);

std::string rank_file_name(int rank);  ///< "rank-00000.h5"

/// Suffix of the smaller copy that a writer makes of its file and then renames.
inline constexpr std::string_view kUnfinished = ".compact";

}  // namespace cadenza::trace
