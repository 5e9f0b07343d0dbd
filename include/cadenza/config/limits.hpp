// SPDX-License-Identifier: Apache-2.0
// Limits of an experiment beyond the ranges of single keys: far above normal use, and low enough
// for memory and time.
#pragma once

#include <cstdint>

namespace cadenza::config {

/// Bytes of a YAML file, and of its text with aliases expanded.
inline constexpr std::int64_t kMostYamlBytes = std::int64_t{1} << 20;

/// Trainers and dedicated servers: a simulation holds the programs of all of them.
inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 17;

/// Documents of a corpus, after cutting to data.max_document: their lengths are held in memory.
inline constexpr std::int64_t kMostDocuments = 100'000'000;
/// The same where files hold the documents, so that what is held in memory is in the files, too.
inline constexpr std::int64_t kMostFileDocuments = 250'000'000;
inline constexpr std::int64_t kMaxFacts = 1000;  // facts of a document
inline constexpr std::int64_t kMaxAnswers = 64;  ///< words of an answer, hops of a chain

/// Tokens of a corpus, so that sums of positions are far from overflow.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 60;

/// Documents of a step: its plans are held in memory.
inline constexpr std::int64_t kMostStepDocuments = std::int64_t{1} << 20;

/// The speed of a usual rank in attention.capacity, percent.
inline constexpr std::int64_t kFullCapacity = 100;

}  // namespace cadenza::config
