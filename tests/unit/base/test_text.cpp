// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace cadenza {
namespace {

using testing::HasSubstr;

TEST(Printable, LeavesVisibleTextAlone) {
  for (const std::string text : {"", "a b", "Grüße", "日本", "😀", "\\n 'x' \"y\""}) {
    EXPECT_EQ(printable(text), text);
    EXPECT_TRUE(is_plain(text)) << text;
  }
}

TEST(Printable, EscapesWhatMovesTheCursor) {
  EXPECT_EQ(printable("a\nb\r\t\x1b[2J\x7f"), "a\\nb\\x0d\\x09\\x1b[2J\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\u009b31m"), "\\xc2\\x9b31m") << "a control character of two bytes";
  EXPECT_EQ(printable("\u2028\u202e\u2066"), "\\xe2\\x80\\xa8\\xe2\\x80\\xae\\xe2\\x81\\xa6");
}

TEST(Printable, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("\x9b"), "\\x9b");
  EXPECT_EQ(printable("\xc3"), "\\xc3") << "cut";
  EXPECT_EQ(printable("\xc3(\xe2\x82"), "\\xc3(\\xe2\\x82");
  EXPECT_EQ(printable("\xc0\x8a\xe0\x80\x8a"), "\\xc0\\x8a\\xe0\\x80\\x8a") << "longer than needed";
  EXPECT_EQ(printable("\xed\xa0\x80\xf4\x90\x80\x80\xff"),
            "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80\\xff");
}

TEST(RankTable, HasAllOfFew) {
  const std::string table = rank_table(" x", {" a", " a"}, {1, 1}, "memory");
  EXPECT_EQ(table, "rank x\n   0 a\n   1 a\n");
}

TEST(RankTable, JoinsNeighboursOfMany) {
  std::vector<std::string> rows(64, " a");
  rows[9] = " b";
  EXPECT_EQ(rank_table(" x", rows, std::vector<double>(64, 1.0), "memory"),
            " rank x\n  0-8 a\n    9 b\n10-63 a\n");
}

TEST(RankTable, OfManyThatDifferHasThoseWithMostAndLeast) {
  std::vector<std::string> rows;
  std::vector<double> weights(64, 2.0);
  for (std::size_t rank = 0; rank < weights.size(); ++rank) rows.push_back(rank % 2 ? " a" : " b");
  weights[50] = 9;
  weights[20] = 1;
  EXPECT_EQ(rank_table(" x", rows, weights, "memory"),
            "rank x\n   0 b\n   1 a\n   2 b\n   3 a\n   4 b\n   5 a\n   6 b\n"
            "  20 b\n  50 b\n  61 a\n  62 b\n  63 a\n"
            "... of 64 ranks the 8 rows with most and the 4 with least memory\n");
}

TEST(Plain, HasLineEndsAndTabsButNothingElse) {
  EXPECT_TRUE(is_plain("a\n\tb\n"));
  for (const std::string text : {"\r", "\x1b", "\x7f", "\u0085", "\xff", "a\x01"}) {
    EXPECT_FALSE(is_plain(text)) << printable(text);
  }
}

class ReadText : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "cadenza-text-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }

  /// The complaint about a file of at most ten bytes; empty where there is none.
  std::string complaint(const std::string& path) const {
    try {
      read_text(path, {ExitCode::data, "the file", "ten bytes", 10});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::data);
      return error.what();
    }
    return "";
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(ReadText, ReadsWhatFits) {
  const std::string content("0123\0\n789", 9);
  std::ofstream(path("a"), std::ios::binary) << content;
  EXPECT_EQ(read_text(path("a"), {ExitCode::data, "", "", 10}), content);
  std::ofstream(path("b")) << "0123456789";
  EXPECT_EQ(complaint(path("b")), "");
}

TEST_F(ReadText, RefusesWhatIsLargerOrNoFile) {
  std::ofstream(path("large")) << "0123456789x";
  EXPECT_EQ(complaint(path("large")),
            "the file: cannot be read: it holds more than 10 B; valid: ten bytes");
  std::ofstream(path("empty")).flush();
  EXPECT_THAT(complaint(path("empty")), HasSubstr("it is empty"));
  EXPECT_THAT(complaint(path("none")), HasSubstr("No such file"));
  EXPECT_THAT(complaint(path("")), HasSubstr("it is a folder"));
  EXPECT_THAT(complaint("/dev/zero"), HasSubstr("more than 10 B"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(complaint(path("pipe")), HasSubstr("it is a pipe that nobody has written to"));
}

TEST(Counted, OneIsNotPlural) {
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1, "attention server"), "1 attention server");
  EXPECT_EQ(counted(2, "rank"), "2 ranks");
}

}  // namespace
}  // namespace cadenza
