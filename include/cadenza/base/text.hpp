// SPDX-License-Identifier: Apache-2.0
// Text for people: files of bounded size, text that is safe on a terminal, suggestions for misspelt
// words, numbers with units.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cadenza/base/error.hpp"

namespace cadenza {

/// `text` on one line: replaces line ends, control characters and bytes that are no UTF-8 by \n or
/// \xNN.
std::string printable(std::string_view text);

/// The same of at most `most` bytes, with an ellipsis where there are more.
std::string printable(std::string_view text, std::size_t most);

/// Whether `text` is UTF-8 without control characters other than line ends and tabs.
bool is_plain(std::string_view text);

/// A count with its noun: "1 rank", "2 ranks".
std::string counted(std::int64_t count, std::string_view noun);

/// Ascending numbers as ranges: "0-3,8".
std::string number_list(const std::vector<int>& numbers);

/// A table by rank. Up to 16 ranks have a row each. Of more ranks, equal neighbours share a row; if
/// more than 16 rows remain, the table shows the 8 with most and the 4 with least of `what`, e.g.
/// "memory", and says so in a last line.
/// @param header   names of the columns after the rank's
/// @param rows     by rank: the columns after the rank's
/// @param weights  by rank: its amount of `what`
std::string rank_table(std::string_view header, const std::vector<std::string>& rows,
                       const std::vector<double>& weights, std::string_view what);

/// Expectations of a text file, for reading it and for error messages.
struct TextFile {
  ExitCode code;          ///< exit code of a file that cannot be read
  std::string name;       ///< name in messages
  std::string valid;      ///< "an experiment's YAML file"
  std::int64_t most = 0;  ///< largest size, bytes
};

/// Reads all bytes of the file at `path`, which may be a pipe; a pipe without a writer is empty. A
/// path of inputs/ that is not here may be that of an input that comes with the program: installed
/// with it, or in the repository that it was built in.
/// @throws Error(expected.code): it cannot be read, is empty or holds more than `expected.most`.
std::string read_text(const std::string& path, const TextFile& expected);

/// The names, without extension and sorted, of the files of a folder of inputs/, here or with
/// the program; empty where there is none.
std::vector<std::string> input_names(const std::string& folder);

// --- Suggestions for misspelt words ---

/// The candidate that was probably meant by `word`: the one that other programs call so, else the
/// first of those with the smallest edit distance. Empty where that distance is half of the letters
/// or more, as the hint would be wrong. Ignores case.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// ", nearest is 'layers'", to append to what was found; empty where nothing is near.
std::string nearest_hint(std::string_view word, const std::vector<std::string>& candidates);

// --- Numbers with units ---

std::string format_bytes(double bytes);       ///< "12.3 MiB"
std::string format_count(double count);       ///< "1.2M"
std::string format_tokens(double tokens);     ///< "128K" and "2M", of 1024; else "850", "24.8K"
std::string format_duration(double seconds);  ///< "12 us", "3.4 ms", "2.4 s", "3m12s", "2h05m"

}  // namespace cadenza
