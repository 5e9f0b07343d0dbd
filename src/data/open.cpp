// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cadenza/base/error.hpp"
#include "cadenza/data/corpus.hpp"
#include "data/cut.hpp"
#include "data/retrieval.hpp"
#include "data/synthetic.hpp"
#include "data/text.hpp"
#include "data/tokens.hpp"

namespace cadenza::data {
namespace {

std::unique_ptr<Corpus> open_source(const config::Data& data, std::int64_t vocab,
                                    std::uint64_t seed) {
  switch (data.source) {
    case config::Source::text:
      if (vocab < kByteVocabulary) {
        fail(ExitCode::usage,
             "model.vocab: found {}; a text corpus needs at least {}: 256 bytes, 3 special tokens",
             vocab, kByteVocabulary);
      }
      return std::make_unique<TextCorpus>(data.path);
    case config::Source::tokens:
      return std::make_unique<TokensCorpus>(data, vocab);
    case config::Source::synthetic:
      return std::make_unique<SyntheticCorpus>(data, vocab, seed);
    case config::Source::retrieval:
      return std::make_unique<RetrievalCorpus>(data, vocab, seed);
  }
  fail(ExitCode::usage, "data.source: not one of the known sources");
}

}  // namespace

std::unique_ptr<Corpus> open_corpus(const config::Data& data, std::int64_t vocab,
                                    std::uint64_t seed) {
  return cut(open_source(data, vocab, seed), data.max_document);
}

}  // namespace cadenza::data
