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

/// A length and the number of documents of a corpus that have it.
struct LengthCount {
  std::int64_t length = 0;  ///< tokens
  std::int64_t count = 0;   ///< documents
  friend bool operator==(const LengthCount&, const LengthCount&) = default;
};

/// Reads lengths in order: one per line, or a JSON list of integers.
/// @throws Error(data): missing, empty or broken file; a length outside [1, 2^40] (names the place)
std::vector<std::int64_t> read_lengths(const std::string& path);

/// Reads a JSON list of [length, count], in the order of the file.
/// @throws Error(data): as read_lengths, and where counts add up to more than 10^8 documents
std::vector<LengthCount> read_histogram(const std::string& path);

// --- Lengths of synthetic documents: data.lengths ---

/// Lengths (>= 1) of a synthetic corpus's documents, in order. `constant` and `list` give the
/// lengths that they name, `file` those of its file, `histogram` those that its rule draws. Lengths
/// drawn from other distributions are clamped to [min, max]; max 0 is data.max_document.
/// @throws Error(data): no documents; a file of lengths that is missing or malformed
std::vector<std::int64_t> synthetic_lengths(const config::Data& data, std::uint64_t seed);

// --- Documents drawn from a histogram of lengths: data.lengths.distribution histogram ---

/// Lengths of a corpus's documents, in order, by data.lengths.rule:
/// - `independent`: data.documents independent draws;
/// - `pretrain`, `prolong`: the workloads of DistCA (arXiv 2510.18121, its sampling code). Half of
///   the documents shorter than 65536 and four copies of each other one, lengths rounded up to a
///   multiple of 16. `pretrain`: 10000 of these (all, where there are fewer) in random order, every
///   length times `stretch`. `prolong`: all of them, long ones first; every long one is, with
///   probability 0.3, 65536 x `stretch` tokens long instead; no other length is stretched.
/// As a histogram has no order, the seed decides which half stays and the order of documents.
std::vector<std::int64_t> sample_lengths(std::span<const LengthCount> histogram,
                                         const config::Data& data, std::uint64_t seed);

}  // namespace cadenza::data
