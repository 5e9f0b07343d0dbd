// SPDX-License-Identifier: Apache-2.0
// Writers that are killed, or meet a full disk, leave every committed step readable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "cadenza/base/error.hpp"
#include "reading.hpp"
#include "samples.hpp"
#include "unit/storage/child.hpp"

namespace {

constexpr off_t kPage = 4096;  // or more
struct Writes {
  int count = 0;
  int across = 0;  ///< of them, over a border of pages
} writes;

}  // namespace

/// In place of the C library's, one of which HDF5 calls.
extern "C" ssize_t pwrite(int file, const void* data, std::size_t size, off_t at) {
  ++writes.count;
  if (size > 0 && at / kPage != (at + static_cast<off_t>(size) - 1) / kPage) ++writes.across;
  return syscall(SYS_pwrite64, file, data, size, at);
}
extern "C" ssize_t pwrite64(int file, const void* data, std::size_t size, off64_t at) {
  return pwrite(file, data, size, at);
}

namespace cadenza::trace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kEvents = 700;  // per step; not a divisor of the chunk size

/// What is wrong with the committed part of a trace of numbered steps; empty when nothing is.
/// @param[out] steps  committed steps
std::string fault_of(const std::string& path, std::size_t& steps) {
  const auto file = open_trace(path);
  if (!file) return "cannot be opened";
  const auto numbers = column<std::int64_t>(file.get(), "/steps", "step");
  const auto ends = column<std::int64_t>(file.get(), "/steps", "n_events_end");
  const auto losses = column<double>(file.get(), "/steps", "loss");
  steps = numbers.size();
  for (std::size_t i = 0; i < steps; ++i) {
    const auto step = static_cast<std::int64_t>(i);
    if (numbers[i] != step || ends[i] != (step + 1) * kEvents ||
        losses[i] != 10.0 - static_cast<double>(i)) {
      return "row " + std::to_string(i) + " of /steps is wrong";
    }
  }
  const auto flows = column<std::int64_t>(file.get(), "/events", "flow");
  const std::size_t committed = steps * static_cast<std::size_t>(kEvents);
  if (flows.size() < committed) return "committed events are missing";
  for (std::size_t i = 0; i < committed; ++i) {
    if (flows[i] != static_cast<std::int64_t>(i) * 7) {
      return "event " + std::to_string(i) + " of " + std::to_string(committed) + " is wrong";
    }
  }
  const auto last = column<std::int64_t>(file.get(), "/meta/status", "last_step").at(0);
  const auto count = static_cast<std::int64_t>(steps);
  if (last != count - 1 && last != count - 2) return "/meta/status is of another step";
  if (row_count(file.get(), "/memory/samples") < steps) return "committed samples are missing";
  if (row_count(file.get(), "/memory/highwater") < steps) return "committed marks are missing";
  return "";
}

/// Writes steps until a full disk says no, as a run does: one line, the error's exit code.
/// The line is preceded by the number of steps whose write_step returned.
int write_until_full(const std::string& path) {
  int steps = 0;
  try {
    Recorder recorder(kEvents);
    Writer writer(path, sample_run(), sample_rank(0, 1));
    for (std::uint32_t step = 0; step < 2000; ++step) {
      write_numbered_step(writer, recorder, step, kEvents);
      ++steps;
    }
    writer.finish();
  } catch (const Error& error) {
    std::printf("%d %s\n", steps, error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}

/// What is wrong with how write_until_full ended; empty when nothing is.
std::string fault_of(const test::ChildResult& result, const std::string& path,
                     const std::string& reason) {
  if (result.hung) return "the writer hung";
  if (result.signal != 0) return "the writer died of signal " + std::to_string(result.signal);
  if (result.exit_code != 3) return "exit code " + std::to_string(result.exit_code);
  if (std::count(result.output.begin(), result.output.end(), '\n') != 1 ||
      result.output.find(path) == std::string::npos ||
      result.output.find(reason) == std::string::npos) {
    return "it said: " + result.output;
  }
  const auto reported = static_cast<std::size_t>(std::atoi(result.output.c_str()));
  std::size_t committed = 0;
  if (reported == 0 && !open_trace(path)) return "";  // the disk was full before the first step
  const std::string fault = fault_of(path, committed);
  if (!fault.empty()) return fault;
  if (committed != reported && committed != reported + 1) {
    return std::to_string(reported) + " steps returned, " + std::to_string(committed) +
           " are there";
  }
  return "";
}

TEST(Durability, FileSizeLimitAnywhereIsOneErrorAndAReadableFile) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "rank-00000.h5";
  std::mt19937_64 random(5);
  std::vector<std::size_t> limits = {0, 48, 500, 2000, 4096, 8192, 12000, 16384, 20000};
  for (int i = 0; i < 30; ++i) limits.push_back(5000 + random() % 300000);
  for (const std::size_t limit : limits) {
    const auto result = test::run_child([&] {
      test::limit_file_size(limit);
      return write_until_full(path);
    });
    EXPECT_EQ(fault_of(result, path, "File too large"), "") << "limit " << limit;
  }
}

TEST(Durability, FullFileSystemIsOneErrorAndAReadableFile) {
  constexpr int kNoMount = 77;
  const test::TemporaryFolder folder;
  // The mount lives in the child's own name space and goes with it.
  const auto result = test::run_child([&] {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", folder.string().c_str(), "tmpfs", 0, "size=256k") != 0) {
      std::printf("%s", std::strerror(errno));
      return kNoMount;
    }
    const std::string path = folder / "rank-00000.h5";
    const auto writer = test::run_child([&] { return write_until_full(path); });
    std::printf("%s", fault_of(writer, path, "No space left on device").c_str());
    return 0;
  });
  if (result.exit_code == kNoMount) {
    GTEST_SKIP() << "a small file system cannot be mounted here: " << result.output;
  }
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output, "");
}

TEST(Durability, AfterAFullDiskTheWriterRefusesEverything) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "rank-00000.h5";
  const auto result = test::run_child([&] {
    test::limit_file_size(40000);
    Recorder recorder(kEvents);
    Writer writer(path, sample_run(), sample_rank(0, 1));
    int errors = 0;
    const auto attempt = [&](auto work) {
      try {
        work();
      } catch (const Error&) {
        ++errors;
      }
    };
    std::uint32_t step = 0;
    while (errors == 0) attempt([&] { write_numbered_step(writer, recorder, step++, kEvents); });
    attempt([&] { write_numbered_step(writer, recorder, step, kEvents); });
    attempt([&] { writer.write_clock({}); });
    attempt([&] { writer.write_plan(std::vector<PlannedTask>(3), {}); });
    attempt([&] { writer.finish(); });
    return errors;
  });
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(result.output, "");
}

TEST(Durability, ReadersMayWatchTheWriter) {
  const test::TemporaryFolder folder;
  const std::string path = folder / rank_file_name(0);
  write_run_index(folder.string(), sample_run(), {sample_rank(0, 1)});
  int steps[2], answers[2];
  ASSERT_EQ(pipe(steps) + pipe(answers), 0);
  std::fflush(nullptr);
  const pid_t child = fork();  // the writer, which waits after each step until it has been read
  if (child == 0) {
    Recorder recorder(kEvents);
    Writer writer(path, sample_run(), sample_rank(0, 1));
    char answer;
    for (std::uint32_t step = 0; step < 8; ++step) {
      write_numbered_step(writer, recorder, step, kEvents);
      if (write(steps[1], "s", 1) != 1 || read(answers[0], &answer, 1) != 1) std::abort();
    }
    writer.finish();
    std::_Exit(0);
  }
  for (std::size_t step = 0; step < 8; ++step) {
    char report;
    ASSERT_EQ(read(steps[0], &report, 1), 1);
    std::size_t committed = 0;
    EXPECT_EQ(fault_of(path, committed), "");
    EXPECT_EQ(committed, step + 1);
    const auto index = open_trace(folder / "run.h5", Access::beside_writer);
    EXPECT_EQ(row_count(index.get(), "/rank/00000/steps"), step + 1) << "through run.h5";
    ASSERT_EQ(write(answers[1], "a", 1), 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(open_trace(path, Access::plain)) << "a finished file opens everywhere";
  for (const int end : {steps[0], steps[1], answers[0], answers[1]}) close(end);
}

/// A kill may part a write where it goes over a border of pages, and with it a header of HDF5.
TEST(Durability, NoWriteOfAStepCanBeParted) {
  const test::TemporaryFolder folder;
  constexpr std::int64_t kFew = 150;
  Recorder recorder(kFew);
  Writer writer(folder / "rank-00000.h5", sample_run(), sample_rank(0, 1), kFew);
  writes = {};
  for (std::uint32_t step = 0; step < 300; ++step) {
    recorder.intern("name of step " + std::to_string(step));
    writer.write_clock({});
    writer.write_plan(std::vector<PlannedTask>(step % 5), std::vector<PlannedStage>(step % 7));
    writer.write_losses(std::vector<PositionLoss>(step % 50), std::vector<AnswerLoss>(step % 3));
    write_numbered_step(writer, recorder, step, kFew);
  }
  if (writes.count == 0) GTEST_SKIP() << "this HDF5 does not write by pwrite";
  EXPECT_GE(writes.count, 300 * 10);
  EXPECT_EQ(writes.across, 0);
}

TEST(Durability, KilledWriterLeavesEveryCommittedStep) {
  std::mt19937_64 random(13);
  for (int trial = 0; trial < 25; ++trial) {
    const test::TemporaryFolder folder;
    const std::string path = folder / "rank-00000.h5";
    int reports[2];
    ASSERT_EQ(pipe(reports), 0);
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      Recorder recorder(kEvents);
      Writer writer(path, sample_run(), sample_rank(0, 1));
      for (std::uint32_t step = 0;; ++step) {
        write_numbered_step(writer, recorder, step, kEvents);
        if (write(reports[1], "s", 1) != 1) std::abort();
      }
    }
    close(reports[1]);
    char report;
    std::size_t reported = 0;
    for (const std::size_t wanted = 1 + random() % 8; reported < wanted; ++reported) {
      ASSERT_EQ(read(reports[0], &report, 1), 1);
    }
    // To be anywhere in the next step, or in one after it.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
    while (read(reports[0], &report, 1) == 1) ++reported;
    close(reports[0]);

    std::size_t committed = 0;
    EXPECT_EQ(fault_of(path, committed), "") << "trial " << trial;
    EXPECT_GE(committed, reported);
    EXPECT_LE(committed, reported + 1);
  }
}

}  // namespace
}  // namespace cadenza::trace
