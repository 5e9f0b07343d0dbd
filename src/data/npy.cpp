// SPDX-License-Identifier: Apache-2.0
#include "data/npy.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "cadenza/base/error.hpp"

namespace cadenza::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

[[noreturn]] void malformed(const std::string& path, const std::string& found) {
  fail(ExitCode::data, "data.path: '{}' is not a readable .npy file: {}", path, found);
}

// The value of `key` in the header's dictionary, from its first character to the end of the text.
// NumPy writes the keys once each, sorted, as Python literals.
std::string_view value_of(const std::string& path, std::string_view header, std::string_view key) {
  for (const char quote : {'\'', '"'}) {
    const std::string quoted = fmt::format("{}{}{}", quote, key, quote);
    std::size_t at = header.find(quoted);
    if (at == header.npos) continue;
    at = header.find_first_not_of(" \t", at + quoted.size());
    if (at == header.npos || header[at] != ':') continue;
    at = header.find_first_not_of(" \t", at + 1);
    if (at != header.npos) return header.substr(at);
  }
  malformed(path, fmt::format("its header has no '{}'", key));
}

// A quoted string as its content; a list, which only structured types have, as it stands.
std::string parse_descr(const std::string& path, std::string_view value) {
  const char quote = value.front();
  if (quote == '[') return std::string(value.substr(0, value.find(']') + 1));
  const std::size_t end = value.find(quote, 1);
  if ((quote != '\'' && quote != '"') || end == value.npos) {
    malformed(path, "the 'descr' of its header is no string");
  }
  return std::string(value.substr(1, end - 1));
}

bool parse_bool(const std::string& path, std::string_view value) {
  if (value.starts_with("True")) return true;
  if (value.starts_with("False")) return false;
  malformed(path, "the 'fortran_order' of its header is neither True nor False");
}

std::string parse_shape(const std::string& path, std::string_view value) {
  const std::size_t end = value.find(')');
  if (value.front() != '(' || end == value.npos) {
    malformed(path, "the 'shape' of its header is no tuple");
  }
  return std::string(value.substr(0, end + 1));
}

// "(n,)" → n; nothing for any other number of dimensions.
std::optional<std::int64_t> one_dimension(std::string_view shape) {
  std::int64_t count = 0;
  const char* begin = shape.data() + 1;
  const char* end = shape.data() + shape.size();
  while (begin != end && *begin == ' ') ++begin;
  const auto [rest, error] = std::from_chars(begin, end, count);
  if (error != std::errc{} || count < 0) return std::nullopt;
  std::string tail(rest, end);
  std::erase(tail, ' ');
  return tail == ",)" ? std::optional(count) : std::nullopt;
}

}  // namespace

bool is_npy(std::span<const unsigned char> bytes) {
  return bytes.size() >= kMagic.size() &&
         std::equal(kMagic.begin(), kMagic.end(), bytes.begin(),
                    [](char a, unsigned char b) { return static_cast<unsigned char>(a) == b; });
}

NpyHeader parse_npy(const std::string& path, std::span<const unsigned char> bytes) {
  if (!is_npy(bytes)) malformed(path, "it does not begin with \\x93NUMPY");
  if (bytes.size() < 8) malformed(path, "it ends inside its header");
  const int major = bytes[6];
  if (major < 1 || major > 3 || bytes[7] != 0) {
    malformed(path, fmt::format("format version {}.{}; 1.0, 2.0 and 3.0 are known", major,
                                static_cast<int>(bytes[7])));
  }
  const std::size_t begin = major == 1 ? 10 : 12;  // version 1 has a length of 2 bytes, others 4
  if (bytes.size() < begin) malformed(path, "it ends inside its header");
  std::size_t length = 0;
  for (std::size_t i = begin; i-- > 8;) length = length << 8 | bytes[i];
  if (bytes.size() - begin < length) malformed(path, "it ends inside its header");

  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + begin, length);
  NpyHeader result;
  result.descr = parse_descr(path, value_of(path, header, "descr"));
  result.fortran_order = parse_bool(path, value_of(path, header, "fortran_order"));
  result.shape = parse_shape(path, value_of(path, header, "shape"));
  result.count = one_dimension(result.shape);
  result.data_offset = static_cast<std::int64_t>(begin + length);
  return result;
}

}  // namespace cadenza::data
