// SPDX-License-Identifier: Apache-2.0
// Files of tokens: flat .bin, llm.c shard or NumPy's .npy, mapped into memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"
#include "data/file.hpp"

namespace cadenza::data {

/// The header of a .npy file.
struct NpyHeader {
  std::string descr;  ///< type, e.g. "<u2"
  bool fortran_order = false;
  std::string shape;                  ///< as written, e.g. "(1000,)"
  std::optional<std::int64_t> count;  ///< elements, where the array has one dimension
  std::int64_t data_offset = 0;       ///< bytes before the data
};

/// Whether `bytes` begin with the magic string of .npy files.
bool is_npy(std::span<const unsigned char> bytes);

/// Parses a header of format version 1.0, 2.0 or 3.0.
/// @param path for messages
/// @throws Error(data) saying what was found.
NpyHeader parse_npy(const std::string& path, std::span<const unsigned char> bytes);

// --- One file of tokens, mapped into memory ---

/// The type of tokens in a file; little-endian.
enum class TokenStorage { uint8, int8, int16, uint16, int32, uint32, int64 };

/// Bytes of a token.
std::int64_t width(TokenStorage storage);

class TokenFile {
 public:
  /// Opens the file and detects its format: .npy by name or first bytes, llm.c by its magic number,
  /// otherwise flat tokens of `dtype`.
  /// @throws Error(data): missing, empty, size not a multiple of the token size, a header that is
  ///         malformed, unsupported or names another count than the file holds; flat bytes that are
  ///         another program's file, or tokens of another type than `dtype`.
  /// @throws Error(usage): flat tokens of a type that does not hold the vocabulary
  TokenFile(const std::string& path, config::TokenType dtype, std::int64_t vocab);
  /// Opens a file of nothing but tokens of a type that something else has named.
  /// @throws Error(data): missing, empty, size not a multiple of the token size
  TokenFile(const std::string& path, TokenStorage storage, std::int64_t vocab);

  const std::string& path() const { return file_.path(); }
  TokenStorage storage() const { return storage_; }
  std::int64_t vocab() const { return vocab_; }
  /// Number of tokens.
  std::int64_t size() const { return size_; }
  /// Checks every token. @return the ends of documents: positions after each token `end`.
  /// @throws Error(data) at the first token outside [0, vocab).
  std::vector<std::int64_t> find_ends(Token end) const;
  /// Copies `tokens` to `out`. @throws Error(data) when the file's size has changed, or at the
  /// first of them outside [0, vocab).
  void read(Range tokens, std::span<Token> out) const;

 private:
  void open_npy();
  bool open_shard();
  void open_flat();
  void require_vocabulary() const;
  void require_type() const;
  [[noreturn]] void fail_empty() const;

  MappedFile file_;
  std::int64_t vocab_;
  TokenStorage storage_ = TokenStorage::uint16;
  const unsigned char* tokens_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace cadenza::data
