// SPDX-License-Identifier: Apache-2.0
// Files that have their names only once they are whole, and file systems without locks.
#include "cadenza/storage/new_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cadenza/base/error.hpp"
#include "unit/storage/child.hpp"

namespace {

int reason_of_no_lock = 0;  // 0: locks work

}  // namespace

/// In place of the C library's, for HDF5 too.
extern "C" int flock(int file, int operation) {
  if (reason_of_no_lock == 0) return static_cast<int>(syscall(SYS_flock, file, operation));
  errno = reason_of_no_lock;
  return -1;
}

namespace cadenza::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(WriteWhole, ReplacesAFileAtOnce) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "file";
  std::ofstream(path) << "old";
  const std::ifstream reader(path);
  write_whole(path, "new");
  std::ostringstream seen;
  seen << reader.rdbuf();
  EXPECT_EQ(seen.str(), "old") << "who had it open";
  EXPECT_EQ(text_of(path), "new");
  EXPECT_FALSE(fs::exists(path + ".partial"));
}

TEST(WriteWhole, NamesWhatCannotBeWritten) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "none/file";
  try {
    write_whole(path, "new");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_THAT(error.what(), HasSubstr(path + ": cannot be written: No such file"));
  }
}

TEST(NewFile, FollowsNoLink) {
  const test::TemporaryFolder folder;
  const std::string other = folder / "other";
  std::ofstream(other) << "somebody else's";
  for (const char* name : {"text", "hdf5"}) fs::create_symlink(other, folder / name + ".partial");
  write_whole(folder / "text", "new");
  NewFile file(folder / "hdf5");
  file.file().write_attribute("x", std::int64_t{1});
  file.finish();
  EXPECT_EQ(text_of(other), "somebody else's");
  EXPECT_EQ(text_of(folder / "text"), "new");
  EXPECT_EQ(File::open(folder / "hdf5").read_attribute("x"), 1);
}

TEST(Locks, AFileSystemWithoutThemIsNamedWithItsRemedy) {
  const test::TemporaryFolder folder;
  const auto refusal = [&](int reason) -> std::string {
    reason_of_no_lock = reason;
    try {
      File::create(folder / "x.h5");
    } catch (const Error& error) {
      reason_of_no_lock = 0;
      return error.what();
    }
    reason_of_no_lock = 0;
    return "";
  };
  EXPECT_EQ(refusal(0), "");
  EXPECT_THAT(refusal(ENOLCK), HasSubstr("No locks available: its file system has no locks; valid: "
                                         "one that has, or HDF5_USE_FILE_LOCKING=FALSE"));
  // Another process has it: no locks at all would be the wrong remedy.
  EXPECT_THAT(refusal(EWOULDBLOCK), testing::Not(HasSubstr("HDF5_USE_FILE_LOCKING")));
}

}  // namespace
}  // namespace cadenza::storage
