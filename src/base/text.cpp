// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/text.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iterator>
#include <numeric>
#include <system_error>

namespace cadenza {
namespace {

/// Whether a character beyond ASCII breaks or reorders a line: Unicode separators and directions.
bool changes_line(char32_t code) {
  return (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

/// Bytes of the first character of `text`; 0 where it is not visible or no UTF-8.
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
  // Least code by number of bytes: a smaller one has a shorter form or, of two bytes, is a control
  // character.
  constexpr std::array<char32_t, 5> kLeast = {0, 0, 0xa0, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < kLeast[length] || code > 0x10ffff || surrogate || changes_line(code) ? 0 : length;
}

class Descriptor {
 public:
  // O_NONBLOCK: open() would wait for the writer of a pipe.
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

bool is_there(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

/// Returns the path to read. One of inputs/ that is not here may come with the program: bin/cadenza
/// has share/cadenza/inputs, build/release/cadenza the inputs/ of the repository.
std::string found(const std::string& path) {
  if (!path.starts_with("inputs/") || is_there(path)) return path;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return path;
  const auto above = program.parent_path().parent_path();
  for (const auto& root : {above / "share/cadenza", above.parent_path()}) {
    const std::string other = (root / path).string();
    if (is_there(other)) return other;
  }
  return path;
}

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

std::string printable(std::string_view text, std::size_t most) {
  return printable(text.substr(0, most)) + (text.size() > most ? "..." : "");
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

std::vector<std::string> input_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code missing;
  const std::filesystem::path path = found("inputs/" + folder);
  for (const auto& file : std::filesystem::directory_iterator(path, missing)) {
    names.push_back(file.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

std::string read_text(const std::string& path, const TextFile& expected) {
  const auto reason = [] { return std::generic_category().message(errno); };
  const Descriptor file(found(path));
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

namespace {

struct Synonym {
  std::string_view word;
  std::string_view meant;  ///< empty: nothing, whatever the word resembles
};

/// Words of other programs that share too few letters with ours, or too many, for the distance.
constexpr Synonym kSynonyms[] = {{"bf16", "bfloat16"},
                                 {"fp32", "float32"},
                                 {"fp64", "float64"},
                                 {"fp16", ""},
                                 {"float16", ""},
                                 {"dp", "parallel.data"},
                                 {"pp", "parallel.pipeline"},
                                 {"tp", "parallel.tensor"},
                                 {"cp", "parallel.context"},
                                 {"max_doc", "data.max_document"}};

std::string lower(std::string_view word) {
  std::string letters(word);
  for (char& letter : letters) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return letters;
}

/// Levenshtein distance, row by row: row[j] is the distance of the letters so far to other[:j].
std::size_t distance(std::string_view word, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < word.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < other.size(); ++j) {
      const std::size_t replaced = diagonal + (word[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view given, const std::vector<std::string>& candidates) {
  // 64 letters are more than any candidate has: the rest cannot change the answer.
  const std::string word = lower(given.substr(0, 64));
  const auto synonym = std::ranges::find(kSynonyms, word, &Synonym::word);
  if (synonym != std::end(kSynonyms)) {
    const auto meant = std::ranges::find(candidates, synonym->meant);
    return meant == candidates.end() ? "" : *meant;
  }
  std::string best;
  std::size_t least = (word.size() + 1) / 2;  // half of the letters is too many
  for (const std::string& candidate : candidates) {
    const std::size_t changes = distance(word, lower(candidate));
    if (changes >= least) continue;
    least = changes;
    best = candidate;
  }
  return best;
}

std::string nearest_hint(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string best = nearest(word, candidates);
  return best.empty() ? "" : fmt::format(", nearest is '{}'", best);
}

namespace {

/// Three significant digits, or a whole number from 100 on; never an exponent.
std::string short_number(double value) {
  return std::abs(value) >= 100.0 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

template <std::size_t N>
std::string scaled(double value, double factor, const std::array<const char*, N>& units,
                   const char* separator) {
  std::size_t unit = 0;
  // The rounded value decides, as it is printed: 1023.9 KiB becomes 1 MiB.
  while (std::round(std::abs(value)) >= factor && unit + 1 < N) {
    value /= factor;
    ++unit;
  }
  return short_number(value) + separator + units[unit];
}

}  // namespace

std::string format_bytes(double bytes) {
  return scaled<6>(bytes, 1024.0, {"B", "KiB", "MiB", "GiB", "TiB", "PiB"}, " ");
}

std::string format_count(double count) {
  return scaled<6>(count, 1000.0, {"", "K", "M", "G", "T", "P"}, "");
}

std::string format_tokens(double tokens) {
  constexpr double kKibi = 1024;
  const double kibi = tokens / kKibi, mebi = kibi / kKibi;
  if (mebi >= 1 && mebi == std::floor(mebi)) return fmt::format("{:.0f}M", mebi);
  if (kibi >= 1 && kibi < kKibi && kibi == std::floor(kibi)) return fmt::format("{:.0f}K", kibi);
  return tokens < 10000 ? fmt::format("{:.0f}", tokens) : format_count(tokens);
}

std::string format_duration(double seconds) {
  // A bound is the value that the smaller unit would print as one of the larger unit.
  if (seconds > 0 && seconds < 0.9995e-3) return short_number(seconds * 1e6) + " us";
  if (seconds < 0.9995) return short_number(seconds * 1e3) + " ms";
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

}  // namespace cadenza
