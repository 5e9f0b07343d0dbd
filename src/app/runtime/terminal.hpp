// SPDX-License-Identifier: Apache-2.0
// Standard output: as it is into files and pipes, within the lines of a terminal; progress on rank
// 0.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

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

// What a person sees on rank 0 while a run goes on, and at its end.

/// One line per step: rewritten in place on a terminal, plain lines (at most one a second)
/// elsewhere, nothing where a command is to be quiet.
class Progress {
 public:
  /// Steps have their numbers, from 0, as in metrics.jsonl and traces: "step 19/20" is the last one
  /// of 20. Anything else is counted: "point 20/20".
  static constexpr const char* kStep = "step";
  /// @param what   one of them
  /// @param first  how many were over before
  /// @param stream  stderr where what a program prints is a result
  Progress(bool enabled, std::int64_t steps, std::string what = kStep, std::int64_t first = 0,
           std::FILE* stream = stdout);
  /// @param done  how many are over
  void show(std::int64_t done, const std::string& text);
  /// Ends the line that is being rewritten.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  bool enabled_;
  std::FILE* stream_;
  std::size_t columns_;  ///< of the terminal that it is; 0: it is none
  bool line_open_ = false;
  std::int64_t steps_;
  std::int64_t first_;
  std::string what_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_{};
};

}  // namespace cadenza::app
