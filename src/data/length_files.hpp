// SPDX-License-Identifier: Apache-2.0
// Files of document lengths: data.lengths.path.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace cadenza::data
