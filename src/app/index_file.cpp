// SPDX-License-Identifier: Apache-2.0
#include "app/index_file.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/storage/hdf5.hpp"

namespace cadenza::app {
namespace {

constexpr const char* kBlock = "index/block";
constexpr const char* kLengths = "index/document_lengths";
constexpr const char* kOffsets = "index/offsets";
constexpr const char* kOffsetBegins = "index/offset_begins";
constexpr const char* kColumns = "index/columns";
constexpr const char* kColumnBegins = "index/column_begins";
constexpr const char* kBits = "index/bits";
constexpr const char* kBitBegins = "index/bit_begins";

/// Concatenated lists and the begin of each.
template <typename T>
struct Lists {
  std::vector<std::int64_t> begins{0};
  std::vector<T> numbers;

  void end_list() { begins.push_back(std::ssize(numbers)); }
  std::span<const T> of(std::size_t list) const {
    return std::span(numbers).subspan(static_cast<std::size_t>(begins[list]),
                                      static_cast<std::size_t>(begins[list + 1] - begins[list]));
  }
};

template <typename T>
void write_lists(storage::File& file, const char* begins, const char* numbers,
                 const Lists<T>& lists) {
  file.write<std::int64_t>(begins, {lists.begins.size()}, lists.begins.data());
  file.write<T>(numbers, {lists.numbers.size()}, lists.numbers.data());
}

/// @param most  numbers that all lists may have together: a small (compressed) file may claim any
/// number
template <typename T>
Lists<T> read_lists(const storage::File& file, const char* begins, const char* numbers,
                    std::size_t count, std::int64_t most) {
  Lists<T> lists;
  lists.begins = file.read<std::int64_t>(begins, {count + 1});
  const std::int64_t end = lists.begins.back();
  if (lists.begins.front() != 0 || !std::ranges::is_sorted(lists.begins) || end > most) {
    fail(ExitCode::data,
         "{}: {}: found numbers from {} to {}; valid: from 0 on, never falling, to at most {}, the "
         "numbers that {} can have",
         file.path(), begins, lists.begins.front(), end, most, numbers);
  }
  lists.numbers = file.read<T>(numbers, {static_cast<storage::Shape::value_type>(end)});
  return lists;
}

/// Sums of(length) over all documents and heads. Dense documents are rejected later.
template <typename Of>
std::int64_t most_numbers(std::span<const std::int64_t> lengths, std::size_t heads, const Of& of) {
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) sum += static_cast<std::int64_t>(heads) * of(length);
  return sum;
}

/// Requires that the numbers of one list ascend in [0, end).
void require_ascending(const storage::File& file, const char* dataset,
                       std::span<const std::int64_t> numbers, std::int64_t end,
                       std::size_t document, std::size_t head) {
  std::int64_t least = 0;
  for (const std::int64_t number : numbers) {
    if (number < least || number >= end) {
      fail(ExitCode::data, "{}: {}: found {} for document {} head {}; valid: ascending in [0, {})",
           file.path(), dataset, number, document, head, end);
    }
    least = number + 1;
  }
}

void require_lengths(const storage::File& file, std::span<const std::int64_t> lengths) {
  const std::vector<std::int64_t> found = file.read<std::int64_t>(kLengths, file.shape(kLengths));
  const auto [other, valid] = std::ranges::mismatch(found, lengths);
  if (other == found.end() && valid == lengths.end()) return;
  const auto text = [](const auto& at, const auto& end) {
    return at == end ? "none" : fmt::format("one of {} tokens", *at);
  };
  fail(ExitCode::data, "{}: {}: found {} as document {}; valid: {}", file.path(), kLengths,
       text(other, found.end()), other - found.begin(), text(valid, lengths.end()));
}

/// Whether in rows of blocks, row r with r + 1 bits, each row has its last bit set, and no bit lies
/// behind the last row.
bool has_diagonal(std::span<const std::uint64_t> words, std::int64_t rows) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t bit = row * (row + 1) / 2 + row;
    if ((words[at(bit / 64)] >> (bit % 64) & 1) == 0) return false;
  }
  const std::int64_t used = rows * (rows + 1) / 2 % 64;
  return used == 0 || words.back() >> used == 0;
}

/// Requires a list to be empty if and only if the document is dense.
void require_dense(const storage::File& file, const char* dataset, std::int64_t found,
                   const SparseRule& rule, std::int64_t length, std::size_t document,
                   std::size_t head) {
  if ((found == 0) == rule.is_dense(length)) return;
  fail(ExitCode::data, "{}: {}: found {} numbers for document {} head {} of {} tokens; valid: {}",
       file.path(), dataset, found, document, head, length,
       found == 0 ? "1 or more, as attention.sparse.dense_below makes it sparse"
                  : "none, as attention.sparse.dense_below makes it dense");
}

/// [documents, heads], with length 0 for dense documents.
using Patterns = std::vector<SparsePattern>;

Patterns read_vertical_slash(const storage::File& file, std::span<const std::int64_t> lengths,
                             std::size_t heads, const SparseRule& rule) {
  Patterns patterns(lengths.size() * heads);
  const auto rows = [&](std::int64_t length) { return rule.block_rows({0, length}).end; };
  const auto keys = [](std::int64_t length) { return length; };
  const auto offsets = read_lists<std::int64_t>(file, kOffsetBegins, kOffsets, patterns.size(),
                                                most_numbers(lengths, heads, rows));
  const auto columns = read_lists<std::int64_t>(file, kColumnBegins, kColumns, patterns.size(),
                                                most_numbers(lengths, heads, keys));
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const std::size_t document = i / heads;
    const std::int64_t length = lengths[document];
    require_ascending(file, kOffsets, offsets.of(i), rule.block_rows({0, length}).end, document,
                      i % heads);
    require_ascending(file, kColumns, columns.of(i), length, document, i % heads);
    require_dense(file, kOffsets, std::ssize(offsets.of(i)), rule, length, document, i % heads);
    if (!offsets.of(i).empty() && offsets.of(i).front() != 0) {
      fail(ExitCode::data, "{}: {}: found {} first for document {} head {}; valid: 0", file.path(),
           kOffsets, offsets.of(i).front(), document, i % heads);
    }
    if (std::ssize(columns.of(i)) > rule.columns) {
      fail(ExitCode::data,
           "{}: {}: found {} for document {} head {}; valid: at most {}, "
           "attention.sparse.columns",
           file.path(), kColumns, columns.of(i).size(), document, i % heads, rule.columns);
    }
    if (rule.is_dense(length)) continue;
    // A slash makes at most two blocks of a row active, besides the diagonal one.
    const std::int64_t most = 1 + 2 * rule.slashes;
    if (std::ssize(offsets.of(i)) > most) {
      fail(ExitCode::data,
           "{}: {}: found {} for document {} head {}; valid: at most {}, for attention.sparse."
           "slashes = {}",
           file.path(), kOffsets, offsets.of(i).size(), document, i % heads, most, rule.slashes);
    }
    std::vector<std::int64_t> slashes(offsets.of(i).begin(), offsets.of(i).end());
    for (std::int64_t& slash : slashes) slash *= rule.block;
    patterns[i] = SparsePattern::vertical_slash(length, rule.block, slashes, columns.of(i));
  }
  return patterns;
}

Patterns read_blocks(const storage::File& file, std::span<const std::int64_t> lengths,
                     std::size_t heads, const SparseRule& rule) {
  Patterns patterns(lengths.size() * heads);
  const auto bits =
      read_lists<std::uint64_t>(file, kBitBegins, kBits, patterns.size(),
                                most_numbers(lengths, heads, [&](std::int64_t length) {
                                  return rule.pattern_words(length, {0, length});
                                }));
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const std::int64_t length = lengths[i / heads];
    const Range tokens{0, length};
    require_dense(file, kBits, std::ssize(bits.of(i)), rule, length, i / heads, i % heads);
    if (rule.is_dense(length)) continue;
    patterns[i] = rule.diagonal(length);
    if (std::ssize(bits.of(i)) == rule.pattern_words(length, tokens)) {
      const std::int64_t rows = rule.block_rows(tokens).end;
      if (has_diagonal(bits.of(i), rows)) {
        rule.unpack(bits.of(i), tokens, patterns[i]);
        continue;
      }
    }
    fail(ExitCode::data,
         "{}: {}: found {} words for document {} head {} that are no pattern of {} tokens; valid: "
         "{} words, with the bits of the diagonal and none behind the last row",
         file.path(), kBits, bits.of(i).size(), i / heads, i % heads, length,
         rule.pattern_words(length, tokens));
  }
  return patterns;
}

std::vector<std::string_view> sparse_kinds() {
  std::vector<std::string_view> words;
  for (const config::AttentionTraits& kind : config::kAttentionKinds) {
    if (kind.sparse) words.push_back(kind.word);
  }
  return words;
}

}  // namespace

SparseIndex read_index(const std::string& path, std::span<const std::int64_t> lengths, int heads,
                       const config::Attention& attention) {
  const SparseRule rule = attention.sparse_rule();
  if (rule.block == 0) {
    fail(ExitCode::usage, "--index: found {} with attention.kind = {}; valid: only with kind {}",
         path, config::word_of(attention.kind), fmt::join(sparse_kinds(), " or "));
  }
  const storage::File file = storage::File::open(path);
  const std::int64_t block = file.read<std::int64_t>(kBlock, {1}).front();
  if (block != rule.block) {
    fail(ExitCode::data, "{}: {}: found {}; valid: {}, attention.sparse.block", file.path(), kBlock,
         block, rule.block);
  }
  require_lengths(file, lengths);
  const auto read = rule.form() == PatternForm::blocks ? read_blocks : read_vertical_slash;
  return {heads, read(file, lengths, static_cast<std::size_t>(heads), rule)};
}

void write_index(storage::File& file, std::span<const std::int64_t> lengths, const SparseRule& rule,
                 std::span<const SparsePattern> patterns) {
  file.write<std::int64_t>(kBlock, {1}, &rule.block);
  file.write<std::int64_t>(kLengths, {lengths.size()}, lengths.data());
  if (rule.form() == PatternForm::blocks) {
    Lists<std::uint64_t> bits;
    for (const SparsePattern& pattern : patterns) {
      if (pattern.length() > 0) {
        const Range tokens{0, pattern.length()};
        std::vector<std::uint64_t> words(
            static_cast<std::size_t>(rule.pattern_words(pattern.length(), tokens)));
        rule.pack(pattern, tokens, words);
        bits.numbers.insert(bits.numbers.end(), words.begin(), words.end());
      }
      bits.end_list();
    }
    return write_lists(file, kBitBegins, kBits, bits);
  }
  Lists<std::int64_t> offsets, columns;
  for (const SparsePattern& pattern : patterns) {
    for (std::int64_t offset = 0; pattern.length() > 0 && offset < pattern.rows(); ++offset) {
      if (pattern.active(offset, 0)) offsets.numbers.push_back(offset);
    }
    columns.numbers.insert(columns.numbers.end(), pattern.columns().begin(),
                           pattern.columns().end());
    offsets.end_list();
    columns.end_list();
  }
  write_lists(file, kOffsetBegins, kOffsets, offsets);
  write_lists(file, kColumnBegins, kColumns, columns);
}

}  // namespace cadenza::app
