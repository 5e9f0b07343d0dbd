// SPDX-License-Identifier: Apache-2.0
// The table of a sweep: one row per point, as text (CSV, RFC 4180) and as HDF5.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/planner/simulate/simulation.hpp"
#include "cadenza/config/sweep.hpp"

namespace cadenza::app {

/// Outcome of a point.
enum class PointStatus {
  ok,
  out_of_memory,  ///< simulated, but a rank needs more memory than it has
  refused,        ///< experiment, layout or plan is invalid
  failed,         ///< another error, e.g. a missing file
};

struct PointResult {
  PointStatus status = PointStatus::failed;
  std::string reason;            ///< empty if status is ok
  SimulationSummary summary;     ///< set if the point was simulated
  std::uint64_t experiment = 0;  ///< hash of all that determines the numbers; 0: do not reuse
};

/// Cells in the order of columns(): labels of the axes, status, numbers.
using SweepRow = std::vector<std::string>;

/// Returns the names of all columns. @throws Error(usage) if an axis has the name of a result
std::vector<std::string> columns_of(const config::Sweep& sweep);
SweepRow row_of(const std::vector<std::string>& labels, const PointResult& result);

/// Returns the status in a row that was read from a file.
PointStatus status_of(const config::Sweep& sweep, const SweepRow& row);

/// DIR/sweep.csv during a sweep: rows are appended as points end, in any order. However the process
/// ends, only the row being written can be lost.
class SweepLog {
 public:
  /// Reads the rows of an earlier run.
  /// @throws Error(data) if the file is another sweep's, or cannot be written
  SweepLog(std::string path, std::vector<std::string> columns);

  /// Returns the row of an earlier run with this hash and these labels, or null.
  const SweepRow* find(const std::vector<std::string>& labels, std::uint64_t experiment) const;
  /// @throws Error(data), e.g. if the disk is full
  void add(const SweepRow& row);
  /// Replaces the file by one with these rows, in this order.
  void finish(std::span<const SweepRow> rows);

 private:
  void replace(std::span<const SweepRow> rows);

  std::string path_;
  std::vector<std::string> columns_;
  std::vector<SweepRow> kept_;
  std::ofstream file_;
};

/// Writes a dataset [points] per column: text for labels, status and reasons, numbers otherwise
/// (NaN if missing).
void write_hdf5(const std::string& path, const config::Sweep& sweep,
                std::span<const SweepRow> rows);

// --- Comma-separated values (RFC 4180, cells on one line) ---

/// Joins cells to a line, without its end.
std::string to_csv(const std::vector<std::string>& cells);

/// Returns the cells of a line without its end; nothing if quotes are not closed.
std::optional<std::vector<std::string>> from_csv(std::string_view line);

}  // namespace cadenza::app
