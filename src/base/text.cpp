// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/text.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <numeric>
#include <system_error>

#include "cadenza/base/units.hpp"

namespace cadenza {
namespace {

/// Characters that reorder or break a line although they are no control characters of ASCII:
/// separators and directions of text.
bool changes_line(char32_t code) {
  return (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

/// Bytes of the visible character that `text` begins with; 0: none, or no UTF-8.
std::size_t visible(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return static_cast<unsigned char>(i < text.size() ? text[i] : '\0');
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length == 0 || first > 0xf4) return 0;
  char32_t code = first & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  // Of two bytes, those below 0xa0 are control characters; others could be written shorter.
  constexpr std::array<char32_t, 5> kLeast = {0, 0, 0xa0, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < kLeast[length] || code > 0x10ffff || surrogate || changes_line(code) ? 0 : length;
}

class Descriptor {
 public:
  // A pipe without a writer would keep open() waiting.
  explicit Descriptor(const std::string& path)
      : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (number_ >= 0) ::fcntl(number_, F_SETFL, 0);
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

[[noreturn]] void refuse(const TextFile& expected, const std::string& reason) {
  fail(expected.code, "{}: cannot be read: {}; valid: {}", expected.name, reason, expected.valid);
}

}  // namespace

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string number_list(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t first = 0, next = 0; first < numbers.size(); first = next) {
    next = first + 1;
    while (next < numbers.size() && numbers[next] == numbers[next - 1] + 1) ++next;
    text += text.empty() ? "" : ",";
    text += next - first == 1 ? fmt::format("{}", numbers[first])
                              : fmt::format("{}-{}", numbers[first], numbers[next - 1]);
  }
  return text;
}

std::string printable(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t length = visible(text);
    if (length > 0) {
      line += text.substr(0, length);
    } else if (text.front() == '\n') {
      line += "\\n";
    } else {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    }
    text.remove_prefix(length > 0 ? length : 1);
  }
  return line;
}

bool is_plain(std::string_view text) {
  while (!text.empty()) {
    const bool space = text.front() == '\n' || text.front() == '\t';
    const std::size_t length = space ? 1 : visible(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string rank_table(std::string_view header, const std::vector<std::string>& rows,
                       const std::vector<double>& weights, std::string_view what) {
  constexpr std::size_t kAll = 16, kMost = 8, kLeast = 4;
  struct Line {
    std::size_t first, last;
  };
  std::vector<Line> lines;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    const bool alike = rows.size() > kAll && rank > 0 && rows[rank] == rows[rank - 1];
    if (!alike) lines.push_back({rank, rank});
    lines.back().last = rank;
  }
  const std::size_t count = lines.size();
  if (count > kAll) {
    std::ranges::stable_sort(lines, std::greater{},
                             [&](const Line& line) { return weights[line.first]; });
    lines.erase(lines.begin() + kMost, lines.end() - kLeast);
    std::ranges::sort(lines, {}, &Line::first);
  }
  const auto label = [](const Line& line) {
    return line.first == line.last ? fmt::format("{}", line.first)
                                   : fmt::format("{}-{}", line.first, line.last);
  };
  std::size_t width = 4;
  for (const Line& line : lines) width = std::max(width, label(line).size());
  std::string text = fmt::format("{:>{}}{}\n", "rank", width, header);
  for (const Line& line : lines) {
    text += fmt::format("{:>{}}{}\n", label(line), width, rows[line.first]);
  }
  if (count > kAll) {
    text += fmt::format("... of {} ranks the {} rows with most and the {} with least {}\n",
                        rows.size(), kMost, kLeast, what);
  }
  return text;
}

std::string read_text(const std::string& path, const TextFile& expected) {
  const auto reason = [] { return std::generic_category().message(errno); };
  const Descriptor file(path);
  if (file.number() < 0) refuse(expected, reason());
  const auto too_large = [&] {
    const auto most = static_cast<double>(expected.most);
    refuse(expected, fmt::format("it holds more than {}", format_bytes(most)));
  };
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) refuse(expected, reason());
  const bool regular = S_ISREG(status.st_mode);
  if (regular && status.st_size > expected.most) too_large();
  std::string text;
  if (regular) text.reserve(static_cast<std::size_t>(status.st_size));
  std::array<char, 65536> buffer;
  while (true) {
    const ::ssize_t count = ::read(file.number(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(expected, errno == EISDIR ? "it is a folder" : reason());
    if (count == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (static_cast<std::int64_t>(text.size()) > expected.most) too_large();
  }
  if (text.empty()) {
    refuse(expected,
           S_ISFIFO(status.st_mode) ? "it is a pipe that nobody has written to" : "it is empty");
  }
  return text;
}

}  // namespace cadenza
