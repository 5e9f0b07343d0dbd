// SPDX-License-Identifier: Apache-2.0
// Text that people write and read: files of bounded size, what of them may reach a terminal, words
// with a typing error, numbers with their units.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cadenza/base/error.hpp"

namespace cadenza {

/// `text` on one line: what ends a line, moves a cursor or is no UTF-8 stands there as \n or \xNN.
std::string printable(std::string_view text);

/// Whether `text` is UTF-8 without control characters, line ends and tabs aside.
bool is_plain(std::string_view text);

/// "1 rank", "2 ranks".
std::string counted(std::int64_t count, std::string_view noun);

/// "0-3,8" of ascending numbers.
std::string number_list(const std::vector<int>& numbers);

/// A table by rank for a person: all of up to 16 ranks; of more, neighbours that are alike in one
/// row, and if that is not enough the 8 rows with most and the 4 with least of `what`, e.g.
/// "memory", which a last line says.
/// @param header   names of the columns behind that of the rank
/// @param rows     by rank, likewise
/// @param weights  by rank
std::string rank_table(std::string_view header, const std::vector<std::string>& rows,
                       const std::vector<double>& weights, std::string_view what);

/// What a file of text should be.
struct TextFile {
  ExitCode code;          ///< of a file that cannot be read
  std::string name;       ///< as messages call it
  std::string valid;      ///< "an experiment's YAML file"
  std::int64_t most = 0;  ///< bytes that it may hold
};

/// All bytes of the file at `path`, which may be a pipe; one that nobody writes to counts as empty.
/// @throws Error(expected.code): it cannot be read, is empty or holds more than `expected.most`.
std::string read_text(const std::string& path, const TextFile& expected);

// What was probably meant by a word with a typing error.

/// What other programs call a candidate is that candidate; else the one with the smallest edit
/// distance to `word`, the first of several; empty where that changes half of the letters or more:
/// then it is another word, and a wrong hint. Capital letters count as small ones.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// ", nearest is 'layers'", for after what was found; empty where nothing is near.
std::string nearest_hint(std::string_view word, const std::vector<std::string>& candidates);

// Numbers as people read them.

std::string format_bytes(double bytes);       ///< "12.3 MiB"
std::string format_count(double count);       ///< "1.2M"
std::string format_duration(double seconds);  ///< "12 us", "3.4 ms", "2.4 s", "3m12s", "2h05m"

}  // namespace cadenza
