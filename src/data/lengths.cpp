// SPDX-License-Identifier: Apache-2.0
#include "data/lengths.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"
#include "cadenza/config/limits.hpp"

namespace cadenza::data {
namespace {

using config::Distribution;

constexpr std::uint64_t kLengthStream = Hasher().add("synthetic.length").value();
constexpr double kUnbounded =
    0x1.0p40;  // where neither lengths.max nor max_document bounds a length

// Draws a length in tokens, not yet clamped.
double draw(const config::Lengths& lengths, double longest, std::uint64_t document,
            std::uint64_t seed) {
  switch (lengths.distribution) {
    case Distribution::constant:
      return lengths.median;
    case Distribution::uniform: {
      const auto low = static_cast<double>(lengths.min);
      return std::floor(low + (longest - low + 1) * random_uniform(seed, kLengthStream, document));
    }
    case Distribution::lognormal:
      return lengths.median *
             std::exp(lengths.sigma * random_normal(seed, kLengthStream, document));
    case Distribution::pareto:
      return static_cast<double>(lengths.min) *
             std::pow(1 - random_uniform(seed, kLengthStream, document), -1 / lengths.alpha);
    case Distribution::list:
      return static_cast<double>(lengths.values[document % lengths.values.size()]);
    case Distribution::histogram:
    case Distribution::file:
      break;
  }
  fail(ExitCode::usage, "data.lengths.distribution: not one of the known distributions");
}

std::int64_t drawn_length(const config::Data& data, std::int64_t document, std::uint64_t seed) {
  const config::Lengths& lengths = data.lengths;
  const bool named =
      lengths.distribution == Distribution::constant || lengths.distribution == Distribution::list;
  const std::int64_t bound = lengths.max > 0 ? lengths.max : data.max_document;
  const double longest = bound > 0 ? static_cast<double>(bound) : kUnbounded;
  const double length = draw(lengths, longest, static_cast<std::uint64_t>(document), seed);
  const double shortest = named ? 1 : std::max(1.0, static_cast<double>(lengths.min));
  // Clamp before rounding, as a heavy tail draws numbers that no integer holds.
  return std::llround(std::max(shortest, std::min(length, named ? kUnbounded : longest)));
}

}  // namespace

std::vector<std::int64_t> synthetic_lengths(const config::Data& data, std::uint64_t seed) {
  const config::Lengths& options = data.lengths;
  if (options.distribution == Distribution::file) return read_lengths(options.path);
  if (data.documents < 1) {
    fail(ExitCode::data, "data.documents: found {}; valid: at least 1", data.documents);
  }
  if (options.distribution == Distribution::histogram) {
    return sample_lengths(read_histogram(options.path), data, seed);
  }
  if (options.distribution == Distribution::list && options.values.empty()) {
    fail(ExitCode::data, "data.lengths.values: the list of lengths is empty");
  }
  std::vector<std::int64_t> lengths;
  lengths.reserve(static_cast<std::size_t>(data.documents));
  for (std::int64_t document = 0; document < data.documents; ++document) {
    lengths.push_back(drawn_length(data, document, seed));
  }
  return lengths;
}

namespace {

constexpr std::uint64_t kDrawStream = Hasher().add("histogram.draw").value();
constexpr std::uint64_t kShortStream = Hasher().add("histogram.short").value();
constexpr std::uint64_t kLongStream = Hasher().add("histogram.long").value();
constexpr std::uint64_t kOrderStream = Hasher().add("histogram.order").value();
constexpr std::uint64_t kReplaceStream = Hasher().add("histogram.replace").value();

// Constants of the published rules.
constexpr std::int64_t kLong = 65536;  // tokens from which a document is long
constexpr int kCopies = 4;             // copies of a long document
constexpr std::size_t kDrawn = 10000;  // pretrain: number of documents
constexpr double kReplaced = 0.3;      // prolong: share of long documents that get one length
constexpr std::int64_t kMultiple = 16;

std::int64_t stretched(std::int64_t length, double factor) {
  return std::max<std::int64_t>(1, std::llround(static_cast<double>(length) * factor));
}

void shuffle(std::vector<std::int64_t>& values, std::uint64_t seed, std::uint64_t stream) {
  for (std::size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[random_bits(seed, stream, i) % i]);
  }
}

std::vector<std::int64_t> independent(std::span<const LengthCount> histogram,
                                      const config::Data& data, std::uint64_t seed) {
  std::vector<std::int64_t> until;  // number of documents up to each entry, inclusive
  for (const LengthCount& entry : histogram) {
    until.push_back((until.empty() ? 0 : until.back()) + entry.count);
  }
  std::vector<std::int64_t> lengths;
  lengths.reserve(static_cast<std::size_t>(data.documents));
  for (std::int64_t document = 0; document < data.documents; ++document) {
    const std::uint64_t bits = random_bits(seed, kDrawStream, static_cast<std::uint64_t>(document));
    const auto drawn = static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(until.back()));
    const auto entry = std::upper_bound(until.begin(), until.end(), drawn) - until.begin();
    lengths.push_back(stretched(histogram[at(entry)].length, data.lengths.stretch));
  }
  return lengths;
}

/// The lengths from which both published rules start, each list in random order.
struct Kept {
  std::vector<std::int64_t> shorter;  // half of those below kLong
  std::vector<std::int64_t> longer;   // kCopies of each other
};

Kept keep(std::span<const LengthCount> histogram, std::uint64_t seed) {
  std::int64_t documents = 0;
  for (const LengthCount& entry : histogram) {
    documents += entry.count * (entry.length >= kLong ? kCopies : 1);
  }
  if (documents > config::kMostDocuments) {
    fail(ExitCode::data,
         "data.lengths.rule: found a rule that makes {} documents; valid: at most {}", documents,
         config::kMostDocuments);
  }
  Kept kept;
  for (const LengthCount& entry : histogram) {
    const bool is_long = entry.length >= kLong;
    std::vector<std::int64_t>& list = is_long ? kept.longer : kept.shorter;
    list.insert(list.end(), static_cast<std::size_t>(entry.count * (is_long ? kCopies : 1)),
                entry.length);
  }
  shuffle(kept.shorter, seed, kShortStream);
  shuffle(kept.longer, seed, kLongStream);
  kept.shorter.resize((kept.shorter.size() + 1) / 2);
  return kept;
}

std::vector<std::int64_t> pretrain(Kept kept, double stretch, std::uint64_t seed) {
  std::vector<std::int64_t> lengths = std::move(kept.longer);
  lengths.insert(lengths.end(), kept.shorter.begin(), kept.shorter.end());
  shuffle(lengths, seed, kOrderStream);
  lengths.resize(std::min(lengths.size(), kDrawn));
  for (std::int64_t& length : lengths) length = stretched(length, stretch);
  return lengths;
}

std::vector<std::int64_t> prolong(Kept kept, double stretch, std::uint64_t seed) {
  std::vector<std::int64_t> lengths = std::move(kept.longer);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const bool replaced = random_uniform(seed, kReplaceStream, i) < kReplaced;
    if (replaced) lengths[i] = stretched(kLong, stretch);
  }
  lengths.insert(lengths.end(), kept.shorter.begin(), kept.shorter.end());
  return lengths;
}

}  // namespace

std::vector<std::int64_t> sample_lengths(std::span<const LengthCount> histogram,
                                         const config::Data& data, std::uint64_t seed) {
  const config::Lengths& options = data.lengths;
  if (options.rule == config::DrawRule::independent) return independent(histogram, data, seed);
  Kept kept = keep(histogram, seed);
  std::vector<std::int64_t> lengths = options.rule == config::DrawRule::pretrain
                                          ? pretrain(std::move(kept), options.stretch, seed)
                                          : prolong(std::move(kept), options.stretch, seed);
  for (std::int64_t& length : lengths) length = (length + kMultiple - 1) / kMultiple * kMultiple;
  return lengths;
}

}  // namespace cadenza::data
