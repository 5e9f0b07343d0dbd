// SPDX-License-Identifier: Apache-2.0
// Corpora: ordered documents of tokens. All lengths are known; tokens are read on demand.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cadenza/base/range.hpp"
#include "cadenza/config/experiment.hpp"

namespace cadenza::data {

using Token = std::int32_t;

/// Tokens of the byte tokenizer: a byte is its own token; three special tokens follow.
inline constexpr Token kBeginToken = 256;
inline constexpr Token kEndToken = 257;
inline constexpr Token kPaddingToken = 258;
inline constexpr std::int64_t kByteVocabulary = 259;

/// A token of the answer to a question that a document asks after it has told the answer.
struct Question {
  std::int64_t token = 0;       ///< place in the document of the token whose target is the answer
  std::int64_t fact = 0;        ///< place in the document where the answer is told
  std::int64_t fact_begin = 0;  ///< first token of the fact that tells it
  std::int32_t number = 0;  ///< of the question in its document; the tokens of an answer share it
  friend bool operator==(const Question&, const Question&) = default;
};

/// Documents in file order (Packer permutes them), none empty, none longer than max_document
/// (a longer one was cut into documents of at most max_document tokens).
class Corpus {
 public:
  virtual ~Corpus() = default;
  /// Lengths of all documents in tokens, in order.
  virtual std::span<const std::int64_t> lengths() const = 0;
  /// Copies `tokens` (a range inside the document) to `out` (tokens.size() long). Thread-safe.
  /// @throws Error(data) when the file changed or cannot be read.
  virtual void read(std::int64_t document, Range tokens, std::span<Token> out) const = 0;
  /// The questions of a document, ascending. Thread-safe.
  virtual std::vector<Question> questions(std::int64_t) const { return {}; }
};

/// Told, by one thread at a time, how many large files of tokens have been scanned, from 0 on, and
/// how many are to be.
using ScanProgress = std::function<void(std::int64_t done, std::int64_t all)>;

/// What documents are for: those that `data` names, without what data.validation holds out of them,
/// or those that data.validation holds out or names.
enum class Part { training, validation };

/// Opens a part of the corpus that `data` names. `vocab` bounds its tokens.
/// @throws Error(data): missing or empty corpus, size not a multiple of the token size,
///         token outside the vocabulary (names file and position), malformed .npy;
///         Error(usage): text with a vocabulary smaller than kByteVocabulary.
std::unique_ptr<Corpus> open_corpus(const config::Data& data, std::int64_t vocab,
                                    std::uint64_t seed, const ScanProgress& progress = {},
                                    Part part = Part::training);

}  // namespace cadenza::data
