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

#include "app/simulate/simulation.hpp"
#include "cadenza/config/sweep.hpp"

namespace cadenza::app {

/// What became of a point.
enum class PointStatus {
  ok,
  out_of_memory,  ///< simulated, but a rank needs more memory than it has
  refused,        ///< no experiment, layout or plan
  failed,         ///< something else, e.g. a missing file
};

struct PointResult {
  PointStatus status = PointStatus::failed;
  std::string reason;            ///< empty where status is ok
  SimulationSummary summary;     ///< where it was simulated
  std::uint64_t experiment = 0;  ///< hash of all that the numbers depend on; 0: never kept
};

/// Cells in the order of columns(): labels of the axes, status, numbers.
using SweepRow = std::vector<std::string>;

/// @throws Error(usage) where an axis has the name of a result
std::vector<std::string> columns_of(const config::Sweep& sweep);
SweepRow row_of(const std::vector<std::string>& labels, const PointResult& result);

/// The status of a row that was read back.
PointStatus status_of(const config::Sweep& sweep, const SweepRow& row);

/// DIR/sweep.csv while a sweep runs: rows are added as points end, in any order. Whatever ends the
/// process leaves all of them but the one that was being written.
class SweepLog {
 public:
  /// Keeps the rows that are there.
  /// @throws Error(data) where the file is another sweep's, or cannot be written
  SweepLog(std::string path, std::vector<std::string> columns);

  /// The row of an earlier run with this hash and these labels, or null.
  const SweepRow* find(const std::vector<std::string>& labels, std::uint64_t experiment) const;
  /// @throws Error(data), e.g. when the disk is full
  void add(const SweepRow& row);
  /// Replaces the file by one with these rows in this order.
  void finish(std::span<const SweepRow> rows);

 private:
  void replace(std::span<const SweepRow> rows);

  std::string path_;
  std::vector<std::string> columns_;
  std::vector<SweepRow> kept_;
  std::ofstream file_;
};

/// A dataset [points] per column, texts for labels, status and reasons, numbers otherwise (NaN
/// where there is none).
void write_hdf5(const std::string& path, const config::Sweep& sweep,
                std::span<const SweepRow> rows);

// Lines of comma-separated values (RFC 4180, cells on one line).

/// Without the line's end.
std::string to_csv(const std::vector<std::string>& cells);

/// The cells of a line without its end; none where quotes do not close.
std::optional<std::vector<std::string>> from_csv(std::string_view line);

}  // namespace cadenza::app
