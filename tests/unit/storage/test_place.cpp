// SPDX-License-Identifier: Apache-2.0
// What is written to is missed when it, or a folder around it, is gone.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "cadenza/base/error.hpp"
#include "cadenza/storage/new_file.hpp"
#include "child.hpp"

namespace cadenza::storage {
namespace {

namespace fs = std::filesystem;

/// run/trace/file in a folder of its own.
class PlaceTest : public testing::Test {
 protected:
  PlaceTest() {
    fs::create_directories(run / "trace");
    write(file);
  }

  static void write(const fs::path& path) { std::ofstream(path) << "text"; }
  /// What the place complains of; empty: of nothing.
  static std::string missed(const Place& place) {
    try {
      place.require();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::data);
      const std::string text = error.what();
      return text.substr(0, text.find(": was removed, renamed or replaced"));
    }
    return {};
  }

  const test::TemporaryFolder temporary;
  const fs::path folder = temporary.string();
  const fs::path run = folder / "run";
  const fs::path file = run / "trace" / "file";
};

TEST_F(PlaceTest, NamesTheFirstThatIsGone) {
  const Place place(file);
  EXPECT_EQ(missed(place), "");
  fs::rename(file, run / "other");
  EXPECT_EQ(missed(place), file);
  write(file);  // another one
  EXPECT_EQ(missed(place), file);
  fs::rename(run, folder / "elsewhere");
  EXPECT_EQ(missed(place), run);
  fs::create_directories(run / "trace");
  write(file);
  EXPECT_EQ(missed(place), run);
}

TEST_F(PlaceTest, TheSameByAnotherWayHolds) {
  const Place place(file);
  fs::rename(run, folder / "elsewhere");
  fs::create_directory_symlink(folder / "elsewhere", run);
  EXPECT_EQ(missed(place), "");
}

TEST_F(PlaceTest, WhatWasNotThereDoesNotHold) {
  const Place place(run / "nothing");
  EXPECT_EQ(missed(place), run / "nothing");
  write(run / "nothing");
  EXPECT_EQ(missed(place), run / "nothing");
}

TEST_F(PlaceTest, NamesWithoutFolders) {
  const fs::path before = fs::current_path();
  fs::current_path(run);
  const Place place("trace");
  EXPECT_EQ(missed(place), "");
  fs::remove_all("trace");
  EXPECT_EQ(missed(place), "trace");
  fs::current_path(before);
}

}  // namespace
}  // namespace cadenza::storage
