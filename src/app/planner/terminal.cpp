// SPDX-License-Identifier: Apache-2.0
#include "app/planner/terminal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <utility>

#include "cadenza/base/launcher.hpp"
#include "cadenza/base/text.hpp"

namespace cadenza::app {
namespace {

constexpr std::size_t kUsualColumns = 80;  ///< of a terminal that does not tell its width

std::size_t columns_of(int descriptor) {
  winsize size{};
  const bool known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsualColumns;
}

/// Returns the columns of the launcher's terminal: mpirun gives ranks a pseudo-terminal whatever
/// its own output is, so its own counts.
std::size_t columns_of_launcher(int number) {
  const std::string path = fmt::format("/proc/{}/fd/{}", getppid(), number);
  std::error_code error;
  const auto output = std::filesystem::read_symlink(path, error);
  if (error || !output.string().starts_with("/dev/pts/")) return 0;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC);
  if (descriptor < 0) return kUsualColumns;
  const std::size_t columns = columns_of(descriptor);
  ::close(descriptor);
  return columns;
}

/// Counts the characters of UTF-8.
std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

/// Returns the begin of the text after the first word.
std::size_t second_word(std::string_view line) {
  const std::size_t first = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t space = std::min(line.find(' ', first), line.size());
  return std::min(line.find_first_not_of(' ', space), line.size());
}

void add_wrapped(std::string& out, std::string_view line, std::size_t columns) {
  const std::string indent(std::min(characters(line.substr(0, second_word(line))), columns / 3),
                           ' ');
  std::size_t used = 0;
  bool fresh = true;
  while (!line.empty()) {
    const std::size_t spaces = std::min(line.find_first_not_of(' '), line.size());
    const std::size_t end = std::min(line.find(' ', spaces), line.size());
    const std::string_view word = line.substr(spaces, end - spaces);
    const std::size_t length = spaces + characters(word);
    line.remove_prefix(end);
    if (fresh || used + length <= columns) {
      out.append(spaces, ' ').append(word);
      used += length;
    } else {
      out.append("\n").append(indent).append(word);
      used = indent.size() + characters(word);
    }
    fresh = false;
  }
}

class Sink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit Sink(std::FILE* output) : output_(output) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (output_ == stdout) {
      print(fmt::to_string(line));
    } else {
      fmt::print(output_, "{}", fmt::to_string(line));
    }
    flush_();
  }
  void flush_() override { std::fflush(output_); }

  std::FILE* output_;
};

}  // namespace

std::size_t terminal_columns(std::FILE* output) {
  const int number = ::fileno(output);
  if (isatty(number) == 0) return 0;
  return has_launcher() ? columns_of_launcher(number) : columns_of(number);
}

std::string wrapped(std::string_view text, std::size_t columns) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    add_wrapped(out, text.substr(0, end), columns);
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

void print(const std::string& text) {
  static const std::size_t columns = terminal_columns(stdout);
  fmt::print("{}", columns > 0 ? wrapped(text, columns) : text);
}

void set_up_logging(Detail detail, bool speaks, std::FILE* output) {
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("cadenza", std::make_shared<Sink>(output)));
  spdlog::set_pattern("%v");
  const bool quiet = detail == Detail::quiet || !speaks;
  spdlog::set_level(quiet                       ? spdlog::level::warn
                    : detail == Detail::verbose ? spdlog::level::debug
                                                : spdlog::level::info);
}

namespace {

/// Cuts `text` to `most` characters, with dots at the cut.
std::string within(const std::string& text, std::size_t most) {
  return text.size() <= most ? text : text.substr(0, std::max<std::size_t>(most, 3) - 3) + "...";
}

}  // namespace

Progress::Progress(bool enabled, std::int64_t steps, std::string what, std::int64_t first,
                   std::FILE* stream)
    : enabled_(enabled && spdlog::should_log(spdlog::level::info)),
      stream_(stream),
      columns_(terminal_columns(stream)),
      steps_(steps),
      first_(first),
      what_(std::move(what)) {}

void Progress::show(std::int64_t done, const std::string& text, bool stays) {
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  const bool due =
      now - shown_ >= std::chrono::seconds(1) || done == first_ + 1 || done == steps_ || stays;
  if (columns_ == 0 && !due) return;
  shown_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double left =
      elapsed / static_cast<double>(done - first_) * static_cast<double>(steps_ - done);
  const std::int64_t number = what_ == kStep ? done - 1 : done;
  const std::string head =
      fmt::format("{} {:>{}}/{}  ", what_, number, fmt::formatted_size("{}", steps_), steps_);
  const std::string tail = fmt::format("  left {}", format_duration(left));
  if (columns_ > 0) {  // a line that wraps could not be rewritten
    const std::size_t taken = head.size() + tail.size() + 1;
    fmt::print(stream_, "\r\x1b[K{}{}{}", head, within(text, columns_ - std::min(columns_, taken)),
               tail);
    line_open_ = true;
  } else {
    fmt::print(stream_, "{}{}{}\n", head, text, tail);
  }
  std::fflush(stream_);
  if (stays) finish();
}

void Progress::finish() {
  if (line_open_) fmt::print(stream_, "\n");
  line_open_ = false;
  std::fflush(stream_);
}

}  // namespace cadenza::app
