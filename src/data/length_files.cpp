// SPDX-License-Identifier: Apache-2.0
#include "data/lengths.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <span>
#include <sstream>
#include <string_view>

#include <nlohmann/json.hpp>

#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/limits.hpp"

namespace cadenza::data {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kLongest = std::int64_t{1} << 40;  // the same as for data.lengths.values
constexpr const char* kValidLengths = "one length per line, or a JSON list of lengths";
constexpr const char* kValidHistogram = "a JSON list of [length, count]";

[[noreturn]] void fail_in(const std::string& path, const std::string& found, const char* valid) {
  fail(ExitCode::data, "data.lengths.path: '{}': found {}; valid: {}", path, found, valid);
}

void check_documents(const std::string& path, std::int64_t documents) {
  if (documents <= config::kMostDocuments) return;
  fail_in(path, fmt::format("more than {} documents", config::kMostDocuments), "fewer");
}

constexpr std::int64_t kMostBytes = std::int64_t{1} << 27;

std::string read_file(const std::string& path, const char* valid) {
  return read_text(
      path, {ExitCode::data, fmt::format("data.lengths.path: '{}'", path), valid, kMostBytes});
}

std::string shortened(std::string_view text) {
  constexpr std::size_t kShown = 40;
  return text.size() <= kShown ? std::string(text) : std::string(text.substr(0, kShown)) + "...";
}

/// Takes a JSON list of integers, or of rows of `width` integers, while it is parsed, so that no
/// input, however deep or long, is held in memory.
class Listener : public Json::json_sax_t {
 public:
  /// @param take  called with the row (one number where `width` is 0) and its index
  using Take = std::function<void(std::span<const std::int64_t>, std::size_t)>;
  Listener(const std::string& path, std::string_view text, std::size_t width, const char* valid,
           Take take)
      : path_(path), text_(text), width_(width), valid_(valid), take_(std::move(take)) {}

  std::size_t entries() const { return entries_; }

  bool number_integer(std::int64_t value) override { return number(value); }
  bool number_unsigned(std::uint64_t value) override {
    // Numbers that no signed integer holds are too large for any reader.
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return number(static_cast<std::int64_t>(std::min(value, kMost)));
  }
  bool number_float(double, const std::string& text) override { refuse(text); }
  bool null() override { refuse("null"); }
  bool boolean(bool value) override { refuse(value ? "true" : "false"); }
  bool string(std::string& text) override { refuse(fmt::format("\"{}\"", text)); }
  bool binary(Json::binary_t&) override { refuse("bytes"); }
  bool start_object(std::size_t) override { refuse("an object"); }
  bool key(std::string&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override {
    if (++depth_ > (width_ == 0 ? 1 : 2)) refuse("a list");
    row_.clear();
    return true;
  }
  bool end_array() override {
    if (--depth_ == 1) {
      if (row_.size() != width_) refuse(fmt::format("a row of {}", row_.size()));
      take_(row_, entries_++);
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const std::string_view read = text_.substr(0, std::min(position, text_.size()));
    const auto line = 1 + std::count(read.begin(), read.end(), '\n');
    // The only error besides syntax is a number that no double holds.
    const bool too_large = dynamic_cast<const Json::out_of_range*>(&error) != nullptr;
    fail_in(path_,
            fmt::format("{} in line {}", too_large ? "a number out of range" : "broken JSON", line),
            valid_);
  }

 private:
  bool number(std::int64_t value) {
    if (depth_ != (width_ == 0 ? 1 : 2) || row_.size() > width_) refuse(fmt::format("{}", value));
    if (width_ > 0) {
      row_.push_back(value);
    } else {
      take_({&value, 1}, entries_++);
    }
    return true;
  }
  [[noreturn]] void refuse(const std::string& found) const {
    if (depth_ == 0) fail_in(path_, "no list", valid_);
    fail_in(path_, fmt::format("{} as entry {}", shortened(found), entries_), valid_);
  }

  const std::string& path_;
  std::string_view text_;
  std::size_t width_;
  const char* valid_;
  Take take_;
  int depth_ = 0;
  std::size_t entries_ = 0;
  std::vector<std::int64_t> row_;
};

void parse_json(const std::string& path, const std::string& text, std::size_t width,
                const char* valid, const Listener::Take& take) {
  Listener listener(path, text, width, valid, take);
  Json::sax_parse(text, &listener);
  if (listener.entries() == 0) fail_in(path, "an empty list", valid);
}

std::int64_t checked(const std::string& path, const char* what, std::size_t entry,
                     std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    fail_in(path, fmt::format("{} as {} {}", value, what, entry),
            fmt::format("an integer in [{}, {}] there", low, high).c_str());
  }
  return value;
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
    check_documents(path, number);
  }
  if (lengths.empty()) fail_in(path, "no length", kValidLengths);
  return lengths;
}

}  // namespace

std::vector<std::int64_t> read_lengths(const std::string& path) {
  const std::string text = read_file(path, kValidLengths);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] != '[') return lengths_of_lines(path, text);
  std::vector<std::int64_t> lengths;
  parse_json(path, text, 0, kValidLengths, [&](std::span<const std::int64_t> row, std::size_t i) {
    lengths.push_back(checked(path, "entry", i, row[0], 1, kLongest));
    check_documents(path, static_cast<std::int64_t>(lengths.size()));
  });
  return lengths;
}

std::vector<LengthCount> read_histogram(const std::string& path) {
  std::vector<LengthCount> counts;
  std::int64_t documents = 0;
  const auto take = [&](std::span<const std::int64_t> row, std::size_t i) {
    counts.push_back({checked(path, "length of entry", i, row[0], 1, kLongest),
                      checked(path, "count of entry", i, row[1], 0, config::kMostDocuments)});
    documents += counts.back().count;
    check_documents(path, documents);
  };
  parse_json(path, read_file(path, kValidHistogram), 2, kValidHistogram, take);
  if (documents == 0) fail_in(path, "no document", kValidHistogram);
  return counts;
}

}  // namespace cadenza::data
