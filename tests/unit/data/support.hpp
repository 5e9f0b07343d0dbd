// SPDX-License-Identifier: Apache-2.0
// What the tests of data share: temporary files, whole documents, corpora in memory.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::data {

/// A folder that lives as long as the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "cadenza-data-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  /// Writes a file, with the folders above it. @return its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return *this / name;
  }

 private:
  std::filesystem::path path_;
};

/// The bytes of `values` as numbers of type T.
template <typename T>
std::string as_bytes(const std::vector<std::int64_t>& values) {
  std::string bytes;
  for (const std::int64_t value : values) {
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(value >> (8 * i));
  }
  return bytes;
}

inline std::vector<Token> document(const Corpus& corpus, std::int64_t index) {
  const std::int64_t length = corpus.lengths()[static_cast<std::size_t>(index)];
  std::vector<Token> tokens(static_cast<std::size_t>(length));
  corpus.read(index, {0, length}, tokens);
  return tokens;
}

inline std::vector<std::vector<Token>> documents(const Corpus& corpus) {
  std::vector<std::vector<Token>> all;
  for (std::size_t i = 0; i < corpus.lengths().size(); ++i) {
    all.push_back(document(corpus, static_cast<std::int64_t>(i)));
  }
  return all;
}

/// By microbatch, the lengths of its documents.
inline std::vector<std::vector<std::int64_t>> lengths(const Batch& batch) {
  std::vector<std::vector<std::int64_t>> all;
  for (const Microbatch& microbatch : batch.microbatches) {
    all.emplace_back();
    for (const BatchDocument& document : microbatch.documents) {
      all.back().push_back(document.length());
    }
  }
  return all;
}

/// Lengths as in texts: lognormal with median `longest` / `fraction`, at most `longest`.
inline std::vector<std::int64_t> long_tailed(std::uint32_t seed, std::size_t count,
                                             std::int64_t longest, double fraction, double sigma) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> draw(std::log(static_cast<double>(longest) / fraction),
                                           sigma);
  std::vector<std::int64_t> all(count);
  for (auto& length : all) {
    length = std::clamp<std::int64_t>(static_cast<std::int64_t>(draw(random)), 1, longest);
  }
  return all;
}

/// Documents held in memory: what a corpus is, at its simplest.
class MemoryCorpus : public Corpus {
 public:
  explicit MemoryCorpus(std::vector<std::vector<Token>> documents)
      : documents_(std::move(documents)) {
    for (const auto& tokens : documents_) {
      lengths_.push_back(static_cast<std::int64_t>(tokens.size()));
    }
  }
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override {
    const auto& all = documents_.at(static_cast<std::size_t>(document));
    std::copy(all.begin() + tokens.begin, all.begin() + tokens.end, out.begin());
  }

 private:
  std::vector<std::vector<Token>> documents_;
  std::vector<std::int64_t> lengths_;
};

/// Documents whose tokens number the whole corpus, so that a token tells where it was.
inline MemoryCorpus numbered(const std::vector<std::int64_t>& lengths) {
  std::vector<std::vector<Token>> all;
  Token next = 0;
  for (const std::int64_t length : lengths) {
    all.emplace_back(static_cast<std::size_t>(length));
    std::iota(all.back().begin(), all.back().end(), next);
    next += static_cast<Token>(length);
  }
  return MemoryCorpus(std::move(all));
}

/// Expects `call` to throw Error(code) whose message holds every one of `parts`.
template <typename Call>
void expect_error(ExitCode code, const std::vector<std::string>& parts, Call call) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    for (const std::string& part : parts) EXPECT_THAT(message, ::testing::HasSubstr(part));
  }
}

}  // namespace cadenza::data
