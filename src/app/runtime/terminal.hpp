// SPDX-License-Identifier: Apache-2.0
// Standard output: as it is into files and pipes, within the lines of a terminal.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace cadenza::app {

/// Columns of the terminal that `output` ends at, through a launcher too; 0: it is none.
std::size_t terminal_columns(std::FILE* output);

/// `text` with lines of at most `columns` characters, broken at spaces where that is possible. What
/// follows a break is indented as the text behind the line's first word.
std::string wrapped(std::string_view text, std::size_t columns);

/// Results, facts and progress: `text` on standard output, wrapped on a terminal.
void print(const std::string& text);

/// How much a command says beside its results, warnings and errors.
enum class Detail { quiet, usual, verbose };

/// Facts are logged by spdlog at level info, detail at level debug.
/// @param speaks  whether this process is the one that users hear
/// @param output  takes the lines: stdout as print() does
void set_up_logging(Detail detail, bool speaks, std::FILE* output);

}  // namespace cadenza::app
