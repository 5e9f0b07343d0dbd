// SPDX-License-Identifier: Apache-2.0
// A folder that a command writes into alone, and the folder of a run: experiment.yaml,
// metrics.jsonl, trace/, checkpoints/.
#pragma once

#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/program/step_plan.hpp"
#include "cadenza/storage/new_file.hpp"

namespace cadenza::app {

/// Made where there is none, and locked as long as the object lives. The kernel ends the lock with
/// the process, however that ends; the file .lock in the folder, which carries it, says who has it.
/// Where the file system has no locks, a warning says so.
class OutputFolder {
 public:
  /// @throws Error(data) where it cannot be made, or another process writes into it
  explicit OutputFolder(const std::string& path);
  ~OutputFolder();
  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&& other) noexcept;

  const std::string& path() const { return place_.path(); }
  static std::string lock_of(const std::string& folder);  ///< path of the file
  /// @param names  files and folders of it that will be written, the latter with what is in them
  /// @throws Error(data) where one of them is there and neither: a link, a pipe, a device
  void require_files(std::initializer_list<const char*> names) const;
  /// @throws Error(data) when the folder was removed, renamed or replaced
  void require() const { place_.require(); }

 private:
  /// @return whether the folder is this process's
  bool lock();
  void sign() const;

  storage::Place place_;
  int file_ = -1;
};

// The folder of a run: experiment.yaml, metrics.jsonl, trace/, checkpoints/.

/// One line of metrics.jsonl.
struct StepMetrics {
  std::int64_t step = 0;
  program::StepResult result;  ///< NaN where the step was simulated
  std::int64_t tokens = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  /// FLOPs that the step asks for / (seconds * measured matrix-product rate of all ranks)
  double model_flops_utilization = 0;
  /// The same of those that all ranks executed
  double hardware_flops_utilization = 0;
  double attention_imbalance = 1;  ///< max / mean of busy attention time over serving ranks
  /// sum of max / sum of mean over layers and passes
  double attention_imbalance_by_layer = 1;
  double attention_flops = 0;          ///< executed for core attention by all ranks
  double dense_attention_flops = 0;    ///< the same of all pairs that the mask allows
  std::int64_t bytes_moved = 0;        ///< attention messages of all ranks
  std::int64_t peak_memory_bytes = 0;  ///< largest rank
  std::optional<double> sparsity;      ///< share of the pairs of sparse documents that was left out
};

class RunFolder {
 public:
  /// Makes the folder and locks it; an earlier run there is renamed to <folder>.1, .2, ...
  /// @throws Error(data), also where another run is at it or a link leads out of it
  static RunFolder create(const std::string& path, const config::Experiment& experiment);
  /// Names the folder without touching it (ranks other than 0).
  explicit RunFolder(std::string path) : path_(std::move(path)) {}

  std::string path() const { return path_; }
  std::string trace() const { return path_ + "/trace"; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }

  /// Of a folder that create() made.
  /// @throws Error(data) when it or what is written in it was removed, renamed or replaced
  void require() const;

  /// Appends and flushes one line. @throws Error(data), e.g. when the disk is full.
  void append(const StepMetrics& metrics);

 private:
  std::string path_;
  std::optional<OutputFolder> held_;
  std::vector<storage::Place> places_;  ///< in it
  std::ofstream metrics_;
};

}  // namespace cadenza::app
