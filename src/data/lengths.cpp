// SPDX-License-Identifier: Apache-2.0
#include "data/lengths.hpp"

#include <algorithm>
#include <cmath>

#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"
#include "data/length_files.hpp"
#include "data/sampling.hpp"

namespace cadenza::data {
namespace {

using config::Distribution;

constexpr std::uint64_t kLengthStream = Hasher().add("synthetic.length").value();
constexpr double kUnbounded =
    0x1.0p40;  // where neither lengths.max nor max_document bounds a length

// Length before it is clamped, in tokens.
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
  // Clamped before it is rounded: a heavy tail draws numbers that no integer holds.
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

}  // namespace cadenza::data
