// SPDX-License-Identifier: Apache-2.0
// Documents drawn from a histogram of lengths: data.lengths.distribution histogram.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "data/length_files.hpp"

namespace cadenza::data {

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
