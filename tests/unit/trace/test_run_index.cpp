// SPDX-License-Identifier: Apache-2.0
// The index of a run, and its links to the files of the ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "cadenza/base/error.hpp"
#include "reading.hpp"
#include "samples.hpp"
#include "unit/storage/child.hpp"

namespace cadenza::trace {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RunIndex, LinksEveryRank) {
  const test::TemporaryFolder folder;
  const RunInfo run = sample_run();
  std::vector<RankInfo> ranks;
  std::vector<std::unique_ptr<Writer>> writers;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(sample_rank(rank, 3));
    writers.push_back(std::make_unique<Writer>(folder / rank_file_name(rank), run, ranks.back()));
    Recorder recorder(100);
    write_numbered_step(*writers.back(), recorder, 0, 10 + rank);
  }
  write_run_index(folder.string(), run, ranks);
  for (auto& writer : writers) writer->finish();

  const auto file = open_trace(folder / "run.h5");
  EXPECT_EQ(text_attribute(file.get(), "schema"), "cadenza-trace/1");
  EXPECT_EQ(text_attribute(file.get(), "run_id"), "run-7");
  EXPECT_EQ(integer_attribute(file.get(), "rank"), -1);
  EXPECT_EQ(integer_attribute(file.get(), "world"), 3);
  EXPECT_EQ(row_count(file.get(), "/meta/config_yaml"), run.config_yaml.size());
  EXPECT_THAT(column<std::int64_t>(file.get(), "/ranks", "rank"), ElementsAre(0, 1, 2));
  EXPECT_THAT(column<std::int64_t>(file.get(), "/ranks", "world"), Each(3));
  EXPECT_THAT(text_column(file.get(), "/ranks", 64, "host"),
              ElementsAre("node0", "node1", "node2"));
  for (int rank = 0; rank < 3; ++rank) {
    const std::string link = "/rank/0000" + std::to_string(rank);
    EXPECT_EQ(row_count(file.get(), link + "/events"), static_cast<std::size_t>(10 + rank));
    EXPECT_THAT(column<std::int64_t>(file.get(), link + "/meta/rank", "rank"), ElementsAre(rank));
  }
  EXPECT_EQ(rank_file_name(12345), "rank-12345.h5");
}

TEST(RunIndex, IsRefusedInAMissingFolder) {
  const test::TemporaryFolder folder;
  try {
    write_run_index(folder / "missing", sample_run(), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("missing/run.h5"), HasSubstr("No such file")));
  }
}

}  // namespace
}  // namespace cadenza::trace
