// SPDX-License-Identifier: Apache-2.0
#include "length_files.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

#include <nlohmann/json.hpp>

#include "cadenza/base/error.hpp"

namespace cadenza::data {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kLongest = std::int64_t{1} << 40;  // as data.lengths.values
constexpr std::int64_t kMostDocuments = 100'000'000;      // they are held in memory
constexpr const char* kValidLengths = "one length per line, or a JSON list of lengths";
constexpr const char* kValidHistogram = "a JSON list of [length, count]";

[[noreturn]] void fail_in(const std::string& path, const std::string& found, const char* valid) {
  fail(ExitCode::data, "data.lengths.path: '{}': found {}; valid: {}", path, found, valid);
}

std::string read_text(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  std::error_code folder;
  const bool is_folder = std::filesystem::is_directory(path, folder);
  if (is_folder || !file || (file.peek() != EOF && !(text << file.rdbuf()))) {
    fail(ExitCode::data, "data.lengths.path: cannot read '{}': {}", path,
         is_folder ? "it is a folder" : std::generic_category().message(errno));
  }
  return text.str();
}

Json parse_json(const std::string& path, const std::string& text, const char* valid) {
  try {
    Json json = Json::parse(text);
    if (!json.is_array()) fail_in(path, "no list", valid);
    if (json.empty()) fail_in(path, "an empty list", valid);
    return json;
  } catch (const Json::parse_error& error) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size()));
    const auto line = 1 + std::count(text.begin(), end, '\n');
    fail_in(path, fmt::format("broken JSON in line {}", line), valid);
  }
}

std::string shortened(std::string_view text) {
  constexpr std::size_t kShown = 40;
  return text.size() <= kShown ? std::string(text) : std::string(text.substr(0, kShown)) + "...";
}

std::int64_t checked(const std::string& path, const std::string& place, const Json& value,
                     std::int64_t low, std::int64_t high) {
  const bool whole = value.is_number_integer();
  const bool fits = whole && (!value.is_number_unsigned() ||
                              value.get<std::uint64_t>() <= static_cast<std::uint64_t>(high));
  if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
    fail_in(path, fmt::format("{} {}", shortened(value.dump()), place),
            fmt::format("an integer in [{}, {}] there", low, high).c_str());
  }
  return value.get<std::int64_t>();
}

std::string_view strip(std::string_view line) {
  const std::size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<std::int64_t> lengths_of_lines(const std::string& path, const std::string& text) {
  std::vector<std::int64_t> lengths;
  std::istringstream lines(text);
  std::string line;
  for (std::int64_t number = 1; std::getline(lines, line); ++number) {
    const std::string_view word = strip(line);
    if (word.empty()) continue;
    std::int64_t length = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), length);
    if (error != std::errc{} || rest != word.data() + word.size() || length < 1 ||
        length > kLongest) {
      fail_in(path, fmt::format("'{}' in line {}", shortened(word), number),
              fmt::format("an integer in [1, {}] there", kLongest).c_str());
    }
    lengths.push_back(length);
  }
  if (lengths.empty()) fail_in(path, "no length", kValidLengths);
  return lengths;
}

}  // namespace

std::vector<std::int64_t> read_lengths(const std::string& path) {
  const std::string text = read_text(path);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] != '[') return lengths_of_lines(path, text);
  std::vector<std::int64_t> lengths;
  for (const Json& item : parse_json(path, text, kValidLengths)) {
    lengths.push_back(checked(path, fmt::format("as entry {}", lengths.size()), item, 1, kLongest));
  }
  return lengths;
}

std::vector<LengthCount> read_histogram(const std::string& path) {
  std::vector<LengthCount> counts;
  std::int64_t documents = 0;
  for (const Json& item : parse_json(path, read_text(path), kValidHistogram)) {
    if (!item.is_array() || item.size() != 2) {
      fail_in(path, fmt::format("{} as entry {}", shortened(item.dump()), counts.size()),
              kValidHistogram);
    }
    const std::string entry = fmt::format("entry {}", counts.size());
    counts.push_back({checked(path, "as length of " + entry, item[0], 1, kLongest),
                      checked(path, "as count of " + entry, item[1], 0, kMostDocuments)});
    documents += counts.back().count;
    if (documents > kMostDocuments) {
      fail_in(path, fmt::format("more than {} documents up to {}", kMostDocuments, entry), "fewer");
    }
  }
  if (documents == 0) fail_in(path, "no document", kValidHistogram);
  return counts;
}

}  // namespace cadenza::data
