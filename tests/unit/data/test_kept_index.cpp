// SPDX-License-Identifier: Apache-2.0
// The kept indexes of large files: made once, used, and never trusted.
#include "data/kept_index.hpp"

#include <stdlib.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <thread>

#include "support.hpp"

namespace cadenza::data::test_kept_index {
namespace {

namespace fs = std::filesystem;
using Lengths = std::vector<std::int64_t>;

constexpr std::int64_t kVocabulary = 100;
constexpr Token kEnd = 9;
constexpr std::int64_t kTokens = (std::int64_t{1} << 25) + 1000;  // 64 MiB and more of uint16

class KeptIndex : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    corpus_ = std::make_unique<TemporaryFolder>();
    // Files of holes, all zeros but for a few tokens.
    for (const char* name : {"a.bin", "wrong.bin"}) {
      std::fstream file(corpus_->write(name, ""), std::ios::binary | std::ios::in | std::ios::out);
      const auto put = [&](std::int64_t at, std::int64_t token) {
        file.seekp(2 * at);
        file << as_bytes<std::uint16_t>({token});
      };
      put(3, 1);  // not only even places have tokens, as those of int32 would
      put(10, kEnd);
      put(kTokens / 2, kEnd);
      put(kTokens - 1, 1);
      if (std::string(name) == "wrong.bin") put(kTokens / 2 + 1, kVocabulary);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3100));  // what just changed is not kept
  }
  static void TearDownTestSuite() { corpus_.reset(); }

  void SetUp() override { set_cache(cache_.path()); }
  void TearDown() override { ::unsetenv("CADENZA_CACHE"); }
  static void set_cache(const std::string& path) { ::setenv("CADENZA_CACHE", path.c_str(), 1); }

  /// The lengths of the documents of `name`; `scans_` counts files that were scanned.
  Lengths read(const std::string& name, std::int64_t vocab = kVocabulary, Token end = kEnd) {
    config::Data data;
    data.source = config::Source::tokens;
    data.path = {*corpus_ / name};
    data.document_end = end;
    scans_ = 0;
    const auto corpus = open_corpus(data, vocab, 1, [&](std::int64_t done, std::int64_t all) {
      EXPECT_LE(done, all);
      scans_ = done;
    });
    return {corpus->lengths().begin(), corpus->lengths().end()};
  }
  std::vector<fs::path> kept() const {
    std::vector<fs::path> found;
    if (!fs::exists(cache_ / "documents")) return found;
    for (const auto& entry : fs::directory_iterator(cache_ / "documents")) {
      found.push_back(entry.path());
    }
    return found;
  }

  const Lengths expected_{11, kTokens / 2 - 10, kTokens - kTokens / 2 - 1};
  static std::unique_ptr<TemporaryFolder> corpus_;
  TemporaryFolder cache_;
  std::int64_t scans_ = 0;
};

std::unique_ptr<TemporaryFolder> KeptIndex::corpus_;

TEST_F(KeptIndex, AFolderThatOthersMayWriteToIsLeftAlone) {
  fs::create_directory(cache_ / "documents");
  fs::permissions(cache_ / "documents", fs::perms::all);
  EXPECT_EQ(read("a.bin"), expected_);
  EXPECT_TRUE(kept().empty());
  fs::permissions(cache_ / "documents", fs::perms::owner_all);
  EXPECT_EQ(read("a.bin"), expected_);
  EXPECT_EQ(kept().size(), 1U);
}

TEST_F(KeptIndex, IsMadeOnce) {
  EXPECT_EQ(read("a.bin"), expected_);
  EXPECT_EQ(scans_, 1);
  ASSERT_EQ(kept().size(), 1U);
  EXPECT_EQ(kept()[0].extension(), ".idx") << "and no part of one";
  EXPECT_EQ(read("a.bin"), expected_);
  EXPECT_EQ(scans_, 0);
  EXPECT_EQ(kept().size(), 1U);
}

TEST_F(KeptIndex, IsReadAgain) {
  read("a.bin");
  ASSERT_EQ(kept().size(), 1U);
  const Lengths others{5, kTokens};
  std::ofstream file(kept()[0], std::ios::binary);
  write_megatron_index(file, others, TokenStorage::uint16);
  file.close();
  EXPECT_EQ(read("a.bin"), (Lengths{5, kTokens - 5})) << "a sound one is taken";
}

TEST_F(KeptIndex, IsOfOneVocabularyAndOneEnd) {
  read("a.bin");
  EXPECT_EQ(read("a.bin", kVocabulary + 1), expected_);
  EXPECT_EQ(scans_, 1);
  EXPECT_EQ(read("a.bin", kVocabulary, 1), (Lengths{4, kTokens - 4}));
  EXPECT_EQ(scans_, 1);
  EXPECT_EQ(kept().size(), 3U);
}

TEST_F(KeptIndex, IsMadeAgainWhereItIsDamaged) {
  read("a.bin");
  ASSERT_EQ(kept().size(), 1U);
  const std::string path = kept()[0];
  std::stringstream good;
  good << std::ifstream(path, std::ios::binary).rdbuf();
  const auto index = [](const Lengths& ends) {
    std::ostringstream out;
    write_megatron_index(out, ends, TokenStorage::uint16);
    return out.str();
  };
  std::string moved = good.str();
  moved[34 + 12 + 8] ^= 2;  // where the second sequence begins
  for (const std::string& bytes :
       {std::string(), good.str().substr(0, 20), good.str().substr(0, 90), good.str() + "x",
        std::string("not an index"), index({10}), index({10, kTokens - 1}),
        index({10, kTokens + 1}), moved}) {
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_EQ(read("a.bin"), expected_);
    EXPECT_EQ(scans_, 1);
    std::stringstream now;
    now << std::ifstream(path, std::ios::binary).rdbuf();
    EXPECT_EQ(now.str(), good.str());
  }
}

TEST_F(KeptIndex, IsNotMadeOfWrongTokens) {
  for (int round = 0; round < 2; ++round) {
    expect_error(ExitCode::data,
                 {"wrong.bin': token 100 at position " + std::to_string(kTokens / 2 + 1),
                  "outside the vocabulary"},
                 [&] { read("wrong.bin"); });
  }
  for (const fs::path& path : kept()) EXPECT_NE(path.extension(), ".idx");
}

TEST_F(KeptIndex, IsNotMadeOfSmallOrChangingFiles) {
  corpus_->write("small.bin", as_bytes<std::uint16_t>({1, kEnd, 2}));
  EXPECT_EQ(read("small.bin"), (Lengths{2, 1}));
  fs::copy_file(*corpus_ / "a.bin", *corpus_ / "new.bin");
  EXPECT_EQ(read("new.bin"), expected_);
  EXPECT_TRUE(kept().empty());
  fs::remove(*corpus_ / "new.bin");
}

TEST_F(KeptIndex, NeedsNoFolder) {
  set_cache(cache_.write("file", ""));
  EXPECT_EQ(read("a.bin"), expected_);
  EXPECT_EQ(read("a.bin"), expected_);
  EXPECT_EQ(scans_, 1) << "scanned each time";
}

TEST_F(KeptIndex, IsSharedByThreads) {
  std::vector<Lengths> found(6);
  std::vector<std::thread> threads;
  for (Lengths& lengths : found) {
    threads.emplace_back([&lengths] {
      const TokenFile file(*corpus_ / "a.bin", TokenStorage::uint16, kVocabulary);
      auto documents = find_documents({&file, &file}, kEnd, {});
      Lengths begins;
      for (auto& one : documents) one.index.value().add_documents(kTokens, begins, lengths);
    });
  }
  for (auto& thread : threads) thread.join();
  Lengths twice = expected_;
  twice.insert(twice.end(), expected_.begin(), expected_.end());
  for (const Lengths& lengths : found) EXPECT_EQ(lengths, twice);
  EXPECT_EQ(kept().size(), 1U);
}

TEST(WrittenIndex, OfDocumentsLongerThanAnInt32) {
  TemporaryFolder folder;
  constexpr std::int64_t kLong = (std::int64_t{1} << 33) + 5;
  const std::string path = folder / "a.idx";
  std::ofstream out(path, std::ios::binary);
  write_megatron_index(out, Lengths{3, kLong, kLong + 1}, TokenStorage::uint32);
  out.close();
  const MegatronIndex index(path);
  EXPECT_EQ(width(index.storage()), 4);
  EXPECT_TRUE(index.fills(kLong + 1));
  EXPECT_FALSE(index.fills(kLong));
  Lengths begins, lengths;
  index.add_documents(kLong + 1, begins, lengths);
  EXPECT_EQ(lengths, (Lengths{3, kLong - 3, 1}));
  EXPECT_EQ(index.places(begins[1], {kLong - 8, kLong - 3}),
            (std::vector<Range>{{kLong - 5, kLong}}));
}

}  // namespace
}  // namespace cadenza::data::test_kept_index
