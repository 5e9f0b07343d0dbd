// SPDX-License-Identifier: Apache-2.0
// The table of a sweep: cells on lines, rows that survive an interrupted run, HDF5.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "app/sweep/sweep_table.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "unit/storage/child.hpp"

namespace cadenza::app::test_sweep_table {
namespace {

using ::testing::HasSubstr;

using Cells = std::vector<std::string>;

TEST(Csv, CellsComeBack) {
  for (const Cells& cells :
       {Cells{"a", "b"}, Cells{"", ""}, Cells{"a,b", "say \"no\"", "\""}, Cells{"only"}}) {
    EXPECT_EQ(from_csv(to_csv(cells)), cells);
  }
  EXPECT_EQ(to_csv({"two\nlines", "x"}), "\"two lines\",x");
  EXPECT_EQ(from_csv("a,\"b"), std::nullopt);
}

config::Sweep grid() {
  config::Sweep sweep;
  sweep.axes = {{"system", {{"a", {}}, {"b", {}}}}};
  return sweep;
}

PointResult result(double seconds, std::uint64_t hash) {
  PointResult point;
  point.status = PointStatus::ok;
  point.experiment = hash;
  point.summary.seconds = seconds;
  return point;
}

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(SweepTable, HasAxesFirstAndNumbersOfWhatWasSimulatedAlone) {
  const auto columns = columns_of(grid());
  EXPECT_EQ(columns.front(), "system");
  PointResult refused;
  refused.status = PointStatus::refused;
  refused.reason = "no";
  const SweepRow row = row_of({"a"}, refused);
  ASSERT_EQ(row.size(), columns.size());
  EXPECT_EQ(row[1], "refused");
  EXPECT_EQ(row[2], "no");
  for (std::size_t i = 3; i < row.size(); ++i) EXPECT_EQ(row[i], "") << columns[i];
  EXPECT_EQ(status_of(grid(), row), PointStatus::refused);

  config::Sweep sweep = grid();
  sweep.axes[0].name = "seconds";
  EXPECT_THROW(columns_of(sweep), Error);
}

TEST(SweepLog, KeepsRowsOfAnInterruptedRun) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "sweep.csv";
  const SweepRow a = row_of({"a"}, result(1.5, 7));
  const SweepRow b = row_of({"b"}, result(2.5, 8));
  {
    SweepLog log(path, columns_of(grid()));
    EXPECT_EQ(log.find({"a"}, 7), nullptr);
    log.add(b);
    log.add(a);
  }
  // The line that was being written when the process ended.
  std::ofstream(path, std::ios::app) << to_csv(b).substr(0, 20);
  SweepLog log(path, columns_of(grid()));
  ASSERT_NE(log.find({"a"}, 7), nullptr);
  EXPECT_EQ(*log.find({"a"}, 7), a);
  EXPECT_NE(log.find({"b"}, 8), nullptr);
  EXPECT_EQ(log.find({"a"}, 8), nullptr) << "another experiment";
  EXPECT_EQ(log.find({"c"}, 7), nullptr) << "another point";
  log.finish(std::vector{a, b});
  EXPECT_EQ(text_of(path), to_csv(columns_of(grid())) + '\n' + to_csv(a) + '\n' + to_csv(b) + '\n');
}

TEST(SweepLog, RefusesAnotherSweepsTable) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "sweep.csv";
  std::ofstream(path) << "something,else\n1,2\n";
  try {
    SweepLog log(path, columns_of(grid()));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_THAT(error.what(), HasSubstr("another sweep"));
  }
  EXPECT_EQ(text_of(path), "something,else\n1,2\n") << "left as it was";
}

TEST(SweepTable, IsWrittenAsColumns) {
  const test::TemporaryFolder folder;
  PointResult refused;
  refused.status = PointStatus::refused;
  const std::vector<SweepRow> rows = {row_of({"a"}, result(1.5, 7)), row_of({"b"}, refused)};
  write_hdf5(folder / "sweep.h5", grid(), rows);
  const storage::File file = storage::File::open(folder / "sweep.h5");
  const auto seconds = file.read<double>("seconds", {2});
  EXPECT_EQ(seconds[0], 1.5);
  EXPECT_NE(seconds[1], seconds[1]) << "not a number";
  for (const std::string& column : columns_of(grid())) {
    EXPECT_EQ(file.shape(column), storage::Shape{2}) << column;
  }
}

}  // namespace
}  // namespace cadenza::app::test_sweep_table
