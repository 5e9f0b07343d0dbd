// SPDX-License-Identifier: Apache-2.0
// How much an experiment may ask for, beyond the ranges of single keys: each far above what is
// used, and low enough for memory and seconds.
#pragma once

#include <cstdint>

namespace cadenza::config {

/// Of a file of YAML, in bytes; of its text where an alias counts as what it stands for.
inline constexpr std::int64_t kMostYamlBytes = std::int64_t{1} << 20;

/// Trainers and dedicated servers: programs of all of them are held in a simulation.
inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 17;

/// Of a corpus, after cutting to data.max_document: their lengths are held in memory.
inline constexpr std::int64_t kMostDocuments = 100'000'000;
inline constexpr std::int64_t kMaxFacts = 1000;  // of a document

/// Tokens of a corpus, so that sums of positions are far from overflow.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 60;

/// Documents of a step: its plans are held in memory.
inline constexpr std::int64_t kMostStepDocuments = std::int64_t{1} << 20;

/// What attention.capacity counts in: the speed of a usual rank, percent.
inline constexpr std::int64_t kFullCapacity = 100;

}  // namespace cadenza::config
