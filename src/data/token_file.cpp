// SPDX-License-Identifier: Apache-2.0
#include "data/token_file.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "data/foreign.hpp"

namespace cadenza::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

[[noreturn]] void malformed(const std::string& path, const std::string& found) {
  fail(ExitCode::data, "data.path: '{}' is not a readable .npy file: {}", path, found);
}

// The header's text from the value of `key` on. NumPy writes each key once, sorted, as Python
// literals.
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

// The content of a quoted string; a list, which only structured types have, is left as it is.
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

// The n of a shape "(n,)"; nothing for any other number of dimensions.
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
  const std::size_t begin = major == 1 ? 10 : 12;  // the length has 2 bytes in version 1, else 4
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

namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie");

std::string_view name(TokenStorage storage) {
  constexpr std::string_view names[] = {"uint8", "int8",   "int16", "uint16",
                                        "int32", "uint32", "int64"};
  return names[at(storage)];
}

// Calls visit(value) with a value of the type that `storage` names.
template <typename Visit>
void with_type(TokenStorage storage, Visit&& visit) {
  switch (storage) {
    case TokenStorage::uint8:
      return visit(std::uint8_t{});
    case TokenStorage::int8:
      return visit(std::int8_t{});
    case TokenStorage::int16:
      return visit(std::int16_t{});
    case TokenStorage::uint16:
      return visit(std::uint16_t{});
    case TokenStorage::int32:
      return visit(std::int32_t{});
    case TokenStorage::uint32:
      return visit(std::uint32_t{});
    case TokenStorage::int64:
      return visit(std::int64_t{});
  }
}

// Copies a token out, because data after a header may begin at an odd address.
template <typename T>
T load(const unsigned char* tokens, std::int64_t index) {
  T value;
  std::memcpy(&value, tokens + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

[[noreturn]] void outside_vocabulary(const std::string& path, std::int64_t token,
                                     std::int64_t position, std::int64_t vocab) {
  fail(ExitCode::data,
       "data.path: '{}': token {} at position {} is outside the vocabulary (model.vocab: {}; "
       "valid are 0 to {})",
       path, token, position, vocab, vocab - 1);
}

struct Scan {
  const std::string& path;
  const unsigned char* tokens;
  Token end;
  std::int64_t vocab;
  std::vector<std::int64_t> ends;

  // Adds the ends in `range`; fails at the first token outside the vocabulary.
  template <typename T>
  void look_closely(Range range) {
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const auto token = static_cast<std::int64_t>(load<T>(tokens, i));
      if (token < 0 || token >= vocab) outside_vocabulary(path, token, i, vocab);
      if (token == end) ends.push_back(i + 1);
    }
  }

  // Checks a block with a fast, vectorized pass: most have neither an end nor an invalid token.
  template <typename T>
  void look_at(Range range) {
    T low = 0;
    T high = 0;
    bool found = false;
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const T token = load<T>(tokens, i);
      low = std::min(low, token);
      high = std::max(high, token);
      found |= static_cast<std::int64_t>(token) == end;
    }
    if (found || low < 0 || static_cast<std::int64_t>(high) >= vocab) look_closely<T>(range);
  }
};

std::int64_t data_bytes(const MappedFile& file, std::int64_t offset) {
  return static_cast<std::int64_t>(file.bytes().size()) - offset;
}

void check_count(const MappedFile& file, std::string_view header, std::int64_t count,
                 TokenStorage storage, std::int64_t found_bytes) {
  // Divide, do not multiply: a broken header may name any count.
  const std::int64_t size = width(storage);
  if (found_bytes % size == 0 && found_bytes / size == count) return;
  fail(ExitCode::data,
       "data.path: '{}': its {} header says {} tokens of {} bytes, but {} bytes follow it",
       file.path(), header, count, size, found_bytes);
}

}  // namespace

std::int64_t width(TokenStorage storage) {
  std::int64_t bytes = 0;
  with_type(storage, [&](auto type) { bytes = sizeof(type); });
  return bytes;
}

TokenFile::TokenFile(const std::string& path, config::TokenType dtype, std::int64_t vocab)
    : file_(path), vocab_(vocab) {
  if (path.ends_with(".npy") || is_npy(file_.bytes())) {
    open_npy();
  } else if (!open_shard()) {
    refuse_foreign(path, config::Source::tokens);
    storage_ = dtype == config::TokenType::uint16 ? TokenStorage::uint16 : TokenStorage::uint32;
    require_vocabulary();
    open_flat();
    require_type();
  }
  if (size_ == 0) fail_empty();
}

TokenFile::TokenFile(const std::string& path, TokenStorage storage, std::int64_t vocab)
    : file_(path), vocab_(vocab), storage_(storage) {
  open_flat();
  if (size_ == 0) fail_empty();
}

void TokenFile::fail_empty() const {
  fail(ExitCode::data, "data.path: '{}' is empty: it holds no token", file_.path());
}

void TokenFile::open_npy() {
  const std::string& path = file_.path();
  if (file_.bytes().empty()) return;
  const NpyHeader header = parse_npy(path, file_.bytes());
  if (header.descr == "<u2") {
    storage_ = TokenStorage::uint16;
  } else if (header.descr == "<u4") {
    storage_ = TokenStorage::uint32;
  } else if (header.descr == "<i4") {
    storage_ = TokenStorage::int32;
  } else if (header.descr == "<i8") {
    storage_ = TokenStorage::int64;
  } else {
    fail(ExitCode::data,
         "data.path: '{}': its .npy type is '{}'; tokens are little-endian uint16 '<u2', uint32 "
         "'<u4', int32 '<i4' or int64 '<i8'",
         path, header.descr);
  }
  if (!header.count || header.fortran_order) {
    fail(ExitCode::data,
         "data.path: '{}': its .npy array has shape {} in {} order; tokens are one-dimensional in "
         "C order",
         path, header.shape, header.fortran_order ? "Fortran" : "C");
  }
  check_count(file_, ".npy", *header.count, storage_, data_bytes(file_, header.data_offset));
  tokens_ = file_.bytes().data() + header.data_offset;
  size_ = *header.count;
}

bool TokenFile::open_shard() {
  // Shards of llm.c begin with 256 int32: magic number, version, count of tokens, zeros.
  constexpr std::int64_t kHeaderBytes = 1024;
  struct Kind {
    std::int32_t magic;
    std::int32_t version;
    TokenStorage storage;
  };
  constexpr Kind kinds[] = {{20240520, 1, TokenStorage::uint16},
                            {20240801, 7, TokenStorage::uint32}};
  if (data_bytes(file_, kHeaderBytes) < 0) return false;
  const unsigned char* header = file_.bytes().data();
  for (const Kind& kind : kinds) {
    if (load<std::int32_t>(header, 0) != kind.magic) continue;
    const auto version = load<std::int32_t>(header, 1);
    if (version != kind.version) {
      fail(ExitCode::data,
           "data.path: '{}': its llm.c header (magic {}) has version {}; version {} is known",
           file_.path(), kind.magic, version, kind.version);
    }
    storage_ = kind.storage;
    size_ = load<std::int32_t>(header, 2);
    check_count(file_, "llm.c", size_, storage_, data_bytes(file_, kHeaderBytes));
    tokens_ = header + kHeaderBytes;
    return true;
  }
  return false;
}

/// Checks that data.dtype holds the vocabulary.
void TokenFile::require_vocabulary() const {
  constexpr std::int64_t kMostNarrow = 0x10000;
  if (storage_ != TokenStorage::uint16 || vocab_ <= kMostNarrow) return;
  fail(ExitCode::usage,
       "data.dtype: found uint16 for '{}' with model.vocab = {}, of which it holds the first {}; "
       "valid: uint32, or a .npy file, which names its type",
       file_.path(), vocab_, kMostNarrow);
}

void TokenFile::open_flat() {
  const std::int64_t bytes = data_bytes(file_, 0);
  const std::int64_t rest = bytes % width(storage_);
  if (rest != 0) {
    fail(ExitCode::data,
         "data.path: '{}': its {} bytes are not a multiple of {}, the size of a {} token "
         "(remainder {})",
         file_.path(), bytes, width(storage_), name(storage_), rest);
  }
  tokens_ = file_.bytes().data();
  size_ = bytes / width(storage_);
}

/// Checks the type of a flat file, which does not name it, by the tokens themselves.
void TokenFile::require_type() const {
  constexpr std::int64_t kLooked = 1 << 16, kLeast = 16;
  const std::string_view read_as = name(storage_);
  const std::int64_t looked = std::min(size_, kLooked) / 2 * 2;
  bool low = false;
  bool high = false;
  with_type(storage_, [&](auto type) {
    for (std::int64_t i = 0; i < looked; i += 2) {
      low |= load<decltype(type)>(tokens_, i) != 0;
      high |= load<decltype(type)>(tokens_, i + 1) != 0;
    }
  });
  if (looked < kLeast || size_ % 2 != 0 || high || !low) return;
  const bool narrow = storage_ == TokenStorage::uint16;
  fail(ExitCode::data,
       "data.path: '{}': every second {} in it is 0, as if it held {}; valid: {}, or a .npy file, "
       "which names its type",
       file_.path(), read_as, narrow ? "int32 (Megatron-LM's)" : "int64",
       narrow ? "data.dtype: uint32" : "token ids of 4 bytes");
}

std::vector<std::int64_t> TokenFile::find_ends(Token end) const {
  constexpr std::int64_t kBlock = 512;
  Scan scan{file_.path(), tokens_, end, vocab_, {}};
  with_type(storage_, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t begin = 0; begin < size_; begin += kBlock) {
      scan.look_at<T>({begin, std::min(size_, begin + kBlock)});
    }
  });
  return std::move(scan.ends);
}

void TokenFile::read(Range tokens, std::span<Token> out) const {
  // Check the size: reading a mapping beyond the end of a file that shrank kills the process.
  check_size(file_.path(), data_bytes(file_, 0));
  with_type(storage_, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t i = tokens.begin; i < tokens.end; ++i) {
      const auto token = static_cast<std::int64_t>(load<T>(tokens_, i));
      if (token < 0 || token >= vocab_) outside_vocabulary(path(), token, i, vocab_);
      out[at(i - tokens.begin)] = static_cast<Token>(token);
    }
  });
}

}  // namespace cadenza::data
