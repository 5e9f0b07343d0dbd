// SPDX-License-Identifier: Apache-2.0
#include "synthetic.hpp"

#include <algorithm>
#include <cmath>

#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"

namespace cadenza::data {
namespace {

constexpr std::uint64_t kLengthStream = Hasher().add("synthetic.length").value();
constexpr std::uint64_t kMapStream = Hasher().add("synthetic.map").value();
constexpr std::uint64_t kTokenStream = Hasher().add("synthetic.token").value();
constexpr double kFollow = 0.7;
constexpr double kLongest = 0x1.0p40;  // where neither lengths.max nor max_document bounds a length

// Length before it is clamped, in tokens.
double draw(const config::Lengths& lengths, double longest, std::uint64_t document,
            std::uint64_t seed) {
  switch (lengths.distribution) {
    case config::Distribution::constant:
      return lengths.median;
    case config::Distribution::uniform: {
      const auto low = static_cast<double>(lengths.min);
      return std::floor(low + (longest - low + 1) * random_uniform(seed, kLengthStream, document));
    }
    case config::Distribution::lognormal:
      return lengths.median *
             std::exp(lengths.sigma * random_normal(seed, kLengthStream, document));
    case config::Distribution::pareto:
      return static_cast<double>(lengths.min) *
             std::pow(1 - random_uniform(seed, kLengthStream, document), -1 / lengths.alpha);
    case config::Distribution::list:
      return static_cast<double>(lengths.values[document % lengths.values.size()]);
  }
  fail(ExitCode::usage, "data.lengths.distribution: not one of the known distributions");
}

}  // namespace

std::int64_t synthetic_length(const config::Data& data, std::int64_t document, std::uint64_t seed) {
  const config::Lengths& lengths = data.lengths;
  const bool named = lengths.distribution == config::Distribution::constant ||
                     lengths.distribution == config::Distribution::list;
  const std::int64_t bound = lengths.max > 0 ? lengths.max : data.max_document;
  const double longest = bound > 0 ? static_cast<double>(bound) : kLongest;
  const double length = draw(lengths, longest, static_cast<std::uint64_t>(document), seed);
  const double shortest = named ? 1 : std::max(1.0, static_cast<double>(lengths.min));
  // Clamped before it is rounded: a heavy tail draws numbers that no integer holds.
  return std::llround(std::max(shortest, std::min(length, named ? kLongest : longest)));
}

SyntheticCorpus::SyntheticCorpus(const config::Data& data, std::int64_t vocab, std::uint64_t seed)
    : vocab_(vocab), seed_(seed) {
  if (data.documents < 1) {
    fail(ExitCode::data, "data.documents: the corpus is empty: found {}, at least 1 is valid",
         data.documents);
  }
  if (data.lengths.distribution == config::Distribution::list && data.lengths.values.empty()) {
    fail(ExitCode::data, "data.lengths.values: the list of lengths is empty");
  }
  for (std::int64_t document = 0; document < data.documents; ++document) {
    lengths_.push_back(synthetic_length(data, document, seed));
  }
}

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
