// SPDX-License-Identifier: Apache-2.0
// Lengths of synthetic documents: named distributions, files of lengths, draws from a histogram
// (data.lengths).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"

namespace cadenza::data {

/// How many documents of a corpus have a length.
struct LengthCount {
  std::int64_t length = 0;  ///< tokens
  std::int64_t count = 0;   ///< documents
  friend bool operator==(const LengthCount&, const LengthCount&) = default;
};

/// Lengths in order: one per line, or a JSON list of integers.
/// @throws Error(data): missing, empty or broken file; a length outside [1, 2^40] (names the place)
std::vector<std::int64_t> read_lengths(const std::string& path);

/// A JSON list of [length, count], in the order of the file.
/// @throws Error(data) likewise, and where counts add up to more than 10^8 documents
std::vector<LengthCount> read_histogram(const std::string& path);

// Lengths of synthetic documents: data.lengths.

/// Lengths (>= 1) of a synthetic corpus's documents, in order. `constant` and `list` give the
/// lengths they name, `file` those of its file, `histogram` what its rule draws; what the others
/// draw is clamped to [min, max], max 0 being data.max_document.
/// @throws Error(data): no documents; a file of lengths that is missing or malformed
std::vector<std::int64_t> synthetic_lengths(const config::Data& data, std::uint64_t seed);

// Documents drawn from a histogram of lengths: data.lengths.distribution histogram.

/// Lengths of a corpus's documents, in order, by data.lengths.rule:
/// - `independent`: data.documents draws, each of a document's length;
/// - `pretrain`, `prolong`: the workloads of DistCA (arXiv 2510.18121, its sampling code). Half of
///   the documents shorter than 65536 and four copies of each other one, lengths rounded up to a
///   multiple of 16. `pretrain`: 10000 of these (all, where there are fewer) in random order, every
///   length times `stretch`. `prolong`: all of them, long ones first; every long one is, with
///   probability 0.3, 65536 x `stretch` tokens long instead; no other length is stretched.
/// A histogram has no order: which half stays and who follows whom is drawn from the seed.
std::vector<std::int64_t> sample_lengths(std::span<const LengthCount> histogram,
                                         const config::Data& data, std::uint64_t seed);

}  // namespace cadenza::data
