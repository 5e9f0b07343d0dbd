// SPDX-License-Identifier: Apache-2.0
// Text: one file is one document, one byte is one token.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cadenza/data/corpus.hpp"
#include "data/file.hpp"

namespace cadenza::data {

/// Document i: kBeginToken, the bytes of the i-th file that is not empty, kEndToken.
class TextCorpus : public Corpus {
 public:
  /// @param paths entries of data.path
  explicit TextCorpus(const std::vector<std::string>& paths);
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override;

 private:
  void read_bytes(std::int64_t document, std::int64_t offset, std::span<Token> out) const;

  std::vector<std::string> files_;
  std::vector<std::int64_t> lengths_;
  // The pieces of a long document are read one after another: its file stays open meanwhile.
  mutable std::mutex mutex_;
  mutable File open_;
  mutable std::int64_t open_document_ = -1;
};

}  // namespace cadenza::data
