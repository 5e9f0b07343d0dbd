// SPDX-License-Identifier: Apache-2.0
#include <random>

#include "support.hpp"

namespace cadenza::data::test_text {
namespace {

using ::testing::ElementsAre;

config::Data text(std::vector<std::string> paths) {
  config::Data data;
  data.source = config::Source::text;
  data.path = std::move(paths);
  return data;
}

std::unique_ptr<Corpus> open(const config::Data& data) {
  return open_corpus(data, kByteVocabulary, 1);
}

// The bytes of every document of an uncut text corpus.
std::vector<std::string> contents(const std::vector<std::string>& paths) {
  std::vector<std::string> all;
  for (const auto& tokens : documents(*open(text(paths)))) {
    EXPECT_EQ(tokens.front(), kBeginToken);
    EXPECT_EQ(tokens.back(), kEndToken);
    all.emplace_back(tokens.begin() + 1, tokens.end() - 1);
  }
  return all;
}

// A tree in which the bytes of a file tell its name.
class TextTree : public ::testing::Test {
 protected:
  TextTree() {
    for (const char* name : {"b.txt", "a.txt", "a.py", "sub/c.py", "sub/deep/d.py", "sub.py",
                             ".hidden.py", ".git/e.py", "sub/__pycache__/f.py", "x/[1].txt"}) {
      folder_.write(name, name);
    }
    folder_.write("sub/empty.py", "");
  }
  TemporaryFolder folder_;
};

TEST_F(TextTree, FolderIsItsFilesInOrderOfPath) {
  EXPECT_THAT(contents({folder_.path()}), ElementsAre("a.py", "a.txt", "b.txt", "sub.py",
                                                      "sub/c.py", "sub/deep/d.py", "x/[1].txt"));
  EXPECT_THAT(contents({folder_.path() + "/sub/"}), ElementsAre("sub/c.py", "sub/deep/d.py"));
}

TEST_F(TextTree, ManyWildcardsAreWalkedOnce) {
  // Without memory of where it was, each ** would double the ways.
  std::string deep = "deep";
  for (int i = 0; i < 12; ++i) deep += "/d";
  folder_.write(deep + "/last.txt", "last");
  std::string pattern = "deep/";
  for (int i = 0; i < 60; ++i) pattern += "**/";
  EXPECT_THAT(contents({folder_ / (pattern + "*.txt")}), ElementsAre("last"));
  pattern = "deep/";
  for (int i = 0; i < 6; ++i) pattern += "**/*/";
  EXPECT_THAT(contents({folder_ / (pattern + "*.txt")}), ElementsAre("last"));
}

TEST_F(TextTree, PatternsOfManyNames) {
  const auto repeated = [](const char* name, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += name;
    return text;
  };
  EXPECT_THAT(contents({folder_ / (repeated("./", 1900) + "a.p?")}), ElementsAre("a.py"));
  EXPECT_THAT(contents({folder_ / (repeated("sub/../", 500) + "?.txt")}),
              ElementsAre("a.txt", "b.txt"));
  expect_error(ExitCode::data, {"data.path", "wildcards in 501 of its names", "at most 64"},
               [&] { open(text({folder_ / (repeated("s?b/../", 500) + "*.py")})); });
}

TEST_F(TextTree, LinksThatLeadBackAreNotFollowed) {
  for (const char* name : {"one", "two", "three", "four"}) {
    std::filesystem::create_symlink(".", folder_ / ("sub/" + std::string(name)));
    std::filesystem::create_symlink("../sub", folder_ / ("x/" + std::string(name)));
  }
  std::string pattern = "*/";
  for (int i = 0; i < 30; ++i) pattern += "*/";
  EXPECT_THROW(contents({folder_ / (pattern + "*.py")}), Error);
  EXPECT_THAT(contents({folder_ / "x/*/*.py"}),
              ElementsAre("sub/c.py", "sub/c.py", "sub/c.py", "sub/c.py"))
      << "by four names";
}

TEST_F(TextTree, EntriesStayInTheirOrder) {
  EXPECT_THAT(contents({folder_ / "b.txt", folder_ / "a.txt", folder_ / "b.txt"}),
              ElementsAre("b.txt", "a.txt", "b.txt"));
}

TEST_F(TextTree, Patterns) {
  EXPECT_THAT(contents({folder_ / "*.py"}), ElementsAre("a.py", "sub.py"));
  EXPECT_THAT(contents({folder_ / "?.txt"}), ElementsAre("a.txt", "b.txt"));
  EXPECT_THAT(contents({folder_ / "[b-z].txt"}), ElementsAre("b.txt"));
  EXPECT_THAT(contents({folder_ / "[!b].txt"}), ElementsAre("a.txt"));
  EXPECT_THAT(contents({folder_ / "*/c.py"}), ElementsAre("sub/c.py"));
  EXPECT_THAT(contents({folder_ / "**/*.py"}),
              ElementsAre("a.py", "sub.py", "sub/c.py", "sub/deep/d.py"));
  EXPECT_THAT(contents({folder_ / "sub/*/*"}), ElementsAre("sub/deep/d.py"));
  EXPECT_THAT(contents({folder_ / "**/deep/*"}), ElementsAre("sub/deep/d.py"));
  EXPECT_THAT(contents({folder_ / "**/**/d.py"}), ElementsAre("sub/deep/d.py"));
  EXPECT_THAT(contents({folder_ / "sub/**"}), ElementsAre("sub/c.py", "sub/deep/d.py"));
  EXPECT_THAT(contents({folder_ / "s?b"}), ElementsAre("sub/c.py", "sub/deep/d.py"));
}

TEST_F(TextTree, HiddenFilesAreTakenWhenNamed) {
  EXPECT_THAT(contents({folder_ / ".hidden.py", folder_ / ".git", folder_ / "sub/__pycache__"}),
              ElementsAre(".hidden.py", ".git/e.py", "sub/__pycache__/f.py"));
  EXPECT_THAT(contents({folder_ / ".h*"}), ElementsAre(".hidden.py"));
  EXPECT_THAT(contents({folder_ / "sub/__pycache__/*"}), ElementsAre("sub/__pycache__/f.py"));
}

TEST_F(TextTree, NameWithBracketsIsAName) {
  EXPECT_THAT(contents({folder_ / "x/[1].txt"}), ElementsAre("x/[1].txt"));
}

TEST_F(TextTree, RelativePaths) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  EXPECT_THAT(contents({"sub"}), ElementsAre("sub/c.py", "sub/deep/d.py"));
  EXPECT_THAT(contents({"**/**/*.py"}), ElementsAre("a.py", "sub.py", "sub/c.py", "sub/deep/d.py"));
  EXPECT_THAT(contents({"**"}), ::testing::SizeIs(7));
  std::filesystem::current_path(before);
}

TEST_F(TextTree, LinksToFilesAreFollowedAndCyclesAreNot) {
  std::filesystem::create_symlink("../b.txt", folder_ / "sub/link.txt");
  std::filesystem::create_symlink("..", folder_ / "sub/up");
  std::filesystem::create_symlink("nowhere", folder_ / "sub/dangling");
  EXPECT_THAT(contents({folder_ / "sub"}), ElementsAre("sub/c.py", "sub/deep/d.py", "b.txt"));
  EXPECT_THAT(contents({folder_ / "sub/**/*.txt"}), ElementsAre("b.txt"));
}

TEST_F(TextTree, Errors) {
  const auto opening = [&](std::vector<std::string> paths) {
    return [paths] { open(text(paths)); };
  };
  expect_error(ExitCode::data, {"data.path", "gone.txt", "No such file"},
               opening({folder_ / "a.txt", folder_ / "gone.txt"}));
  expect_error(ExitCode::data, {"no file matches", "*.rs"}, opening({folder_ / "*.rs"}));
  expect_error(ExitCode::data, {"no file matches"}, opening({folder_ / "a.txt/*"}));
  expect_error(ExitCode::data, {"empty", "sub/empty.py"}, opening({folder_ / "sub/empty.py"}));
  expect_error(ExitCode::data, {"empty", "no file is named"}, opening({}));
  std::filesystem::create_directories(folder_ / "void/.hidden");
  expect_error(ExitCode::data, {"holds no files", "void"}, opening({folder_ / "void"}));
  expect_error(ExitCode::data, {"/dev/null", "neither"}, opening({"/dev/null"}));
  expect_error(ExitCode::usage, {"model.vocab", "258", "259"},
               [&] { open_corpus(text({folder_ / "a.txt"}), 258, 1); });
}

TEST_F(TextTree, UnreadableFileIsFoundAtOnce) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads every file";
  std::filesystem::permissions(folder_ / "b.txt", std::filesystem::perms::none);
  expect_error(ExitCode::data, {"b.txt", "Permission denied"}, [&] { contents({folder_.path()}); });
}

TEST_F(TextTree, FileThatChangedIsAnError) {
  const auto corpus = open(text({folder_ / "a.txt", folder_ / "b.txt"}));
  document(*corpus, 0);
  folder_.write("a.txt", "longer than before");
  expect_error(ExitCode::data, {"a.txt", "changed", "5 bytes", "18 now"},
               [&] { document(*corpus, 0); });
  std::filesystem::remove(folder_ / "b.txt");
  expect_error(ExitCode::data, {"b.txt", "No such file"}, [&] { document(*corpus, 1); });
}

TEST(Text, EveryRangeOfRandomBytes) {
  TemporaryFolder folder;
  std::mt19937 random(5);
  std::vector<std::vector<Token>> expected;
  for (const int size : {1, 2, 257, 16384, 40000}) {
    std::string bytes;
    std::vector<Token> tokens{kBeginToken};
    for (int i = 0; i < size; ++i) {
      const auto byte = static_cast<unsigned char>(1 + random() % 255);  // no text has zeros
      bytes += static_cast<char>(byte);
      tokens.push_back(byte);
    }
    tokens.push_back(kEndToken);
    folder.write(std::to_string(expected.size()), bytes);
    expected.push_back(tokens);
  }
  const auto corpus = open(text({folder.path()}));
  ASSERT_EQ(documents(*corpus), expected);
  for (int trial = 0; trial < 500; ++trial) {
    const std::size_t index = random() % expected.size();
    const auto length = static_cast<std::int64_t>(expected[index].size());
    std::int64_t begin = random() % (length + 1);
    std::int64_t end = random() % (length + 1);
    if (begin > end) std::swap(begin, end);
    std::vector<Token> tokens(static_cast<std::size_t>(end - begin));
    corpus->read(static_cast<std::int64_t>(index), {begin, end}, tokens);
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected[index].begin() + begin));
  }
}

TEST(Text, FilesWithZerosAreNoText) {
  TemporaryFolder folder;
  using namespace std::string_literals;
  const std::string riff = "RIFF\x24\x08\0\0WEBPVP8 "s;
  const std::pair<std::string, int> cases[] = {
      {std::string(5000, '\0'), 0}, {riff, 6}, {std::string(1023, 'x') + '\0', 1023}};
  for (const auto& [bytes, at] : cases) {
    folder.write("file", bytes);
    expect_error(ExitCode::data, {"file' is not text: byte " + std::to_string(at) + " is zero;"},
                 [&] { open(text({folder.path()})); });
  }
  folder.write("file", std::string(1024, 'x') + '\0');
  EXPECT_EQ(documents(*open(text({folder.path()})))[0].size(), 1027u);
}

TEST(Text, LongDocumentsAreCutWithoutLoss) {
  TemporaryFolder folder;
  folder.write("a", "0123456789");  // 12 tokens
  folder.write("b", "x");
  folder.write("c", "01234567");
  const auto whole = documents(*open(text({folder.path()})));
  config::Data data = text({folder.path()});
  for (const std::int64_t max_document : {1, 2, 3, 4, 5, 11, 12, 13}) {
    data.max_document = max_document;
    std::vector<std::vector<Token>> expected;
    for (const auto& tokens : whole) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (i % static_cast<std::size_t>(max_document) == 0) expected.emplace_back();
        expected.back().push_back(tokens[i]);
      }
    }
    EXPECT_EQ(documents(*open(data)), expected) << max_document;
  }
}

}  // namespace
}  // namespace cadenza::data::test_text
