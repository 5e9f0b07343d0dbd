// SPDX-License-Identifier: Apache-2.0
#include "data/synthetic.hpp"

#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"
#include "data/lengths.hpp"

namespace cadenza::data {
namespace {

constexpr std::uint64_t kMapStream = Hasher().add("synthetic.map").value();
constexpr std::uint64_t kTokenStream = Hasher().add("synthetic.token").value();
constexpr double kFollow = 0.7;

}  // namespace

SyntheticCorpus::SyntheticCorpus(const config::Data& data, std::int64_t vocab, std::uint64_t seed)
    : vocab_(vocab), seed_(seed), lengths_(synthetic_lengths(data, seed)) {}

Token SyntheticCorpus::follow(Token previous) const {
  return static_cast<Token>(random_bits(seed_, kMapStream, static_cast<std::uint64_t>(previous)) %
                            static_cast<std::uint64_t>(vocab_));
}

void SyntheticCorpus::read(std::int64_t document, Range tokens, std::span<Token> out) const {
  const std::uint64_t stream = kTokenStream ^ mix64(static_cast<std::uint64_t>(document));
  Token token = 0;
  for (std::int64_t i = tokens.begin / kBlock * kBlock; i < tokens.end; ++i) {
    // Two draws a position: whether the chain is followed, and the token where it is not.
    const auto index = 2 * static_cast<std::uint64_t>(i);
    const bool follows = i % kBlock != 0 && random_uniform(seed_, stream, index) < kFollow;
    token = follows ? follow(token)
                    : static_cast<Token>(random_bits(seed_, stream, index + 1) %
                                         static_cast<std::uint64_t>(vocab_));
    if (i >= tokens.begin) out[static_cast<std::size_t>(i - tokens.begin)] = token;
  }
}

}  // namespace cadenza::data
