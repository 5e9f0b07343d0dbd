// SPDX-License-Identifier: Apache-2.0
// Standard output: unchanged into files and pipes, wrapped on a terminal; progress on rank 0.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace cadenza::app {

/// Columns of the terminal at which `output` ends, also through a launcher; 0: no terminal.
std::size_t terminal_columns(std::FILE* output);

/// Wraps `text` to lines of at most `columns` characters, at spaces if possible. Continuation lines
/// are indented like the text after the line's first word.
std::string wrapped(std::string_view text, std::size_t columns);

/// Prints results, facts and progress on standard output, wrapped on a terminal.
void print(const std::string& text);

/// How much a command prints besides results, warnings and errors.
enum class Detail { quiet, usual, verbose };

/// Sets up spdlog: facts have level info, details level debug.
/// @param speaks  whether this process prints for the user
/// @param output  receives the lines: stdout as in print()
void set_up_logging(Detail detail, bool speaks, std::FILE* output);

// --- Progress of a run on rank 0 ---

/// Prints one line per step: rewritten in place on a terminal, plain lines (at most one per second)
/// elsewhere, nothing if the command is quiet.
class Progress {
 public:
  /// Steps are numbered from 0, as in metrics.jsonl and traces: "step 19/20" is the last of 20.
  /// Other things are counted: "point 20/20".
  static constexpr const char* kStep = "step";
  /// @param what   name of one of them
  /// @param first  number of those completed before
  /// @param stream  stderr if the program prints its result to stdout
  Progress(bool enabled, std::int64_t steps, std::string what = kStep, std::int64_t first = 0,
           std::FILE* stream = stdout);
  /// @param done  number completed
  /// @param stays  whether the line is printed and stays, however soon others follow
  void show(std::int64_t done, const std::string& text, bool stays = false);
  /// Ends the line being rewritten.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  bool enabled_;
  std::FILE* stream_;
  std::size_t columns_;  ///< of the terminal; 0: no terminal
  bool line_open_ = false;
  std::int64_t steps_;
  std::int64_t first_;
  std::string what_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_{};
};

}  // namespace cadenza::app
