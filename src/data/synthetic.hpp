// SPDX-License-Identifier: Apache-2.0
// Documents made up from the seed: lengths of a named distribution, tokens a model can learn.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::data {

/// Tokens follow each other as in an order-1 Markov chain: with probability 0.7 the next token is
/// f(previous), f a map drawn from the seed; otherwise it is uniform in [0, vocab). A model that
/// knows f reaches a loss of about 0.25 + 0.3 (ln vocab + 1.2) nats, one that does not, ln vocab.
/// The chain starts anew every kBlock tokens, so a range costs as much to read anywhere in a
/// document.
class SyntheticCorpus : public Corpus {
 public:
  static constexpr std::int64_t kBlock = 64;

  SyntheticCorpus(const config::Data& data, std::int64_t vocab, std::uint64_t seed);
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t document, Range tokens, std::span<Token> out) const override;

 private:
  Token follow(Token previous) const;

  std::int64_t vocab_;
  std::uint64_t seed_;
  std::vector<std::int64_t> lengths_;
};

}  // namespace cadenza::data
