// SPDX-License-Identifier: Apache-2.0
#include "index_file.hpp"

#include <fmt/format.h>

#include <algorithm>

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

/// Lists one after another, and where each begins.
struct Lists {
  std::vector<std::int64_t> begins{0};
  std::vector<std::int64_t> numbers;

  void end_list() { begins.push_back(std::ssize(numbers)); }
  std::span<const std::int64_t> of(std::size_t list) const {
    return std::span(numbers).subspan(static_cast<std::size_t>(begins[list]),
                                      static_cast<std::size_t>(begins[list + 1] - begins[list]));
  }
};

void write_lists(storage::File& file, const char* begins, const char* numbers, const Lists& lists) {
  file.write<std::int64_t>(begins, {lists.begins.size()}, lists.begins.data());
  file.write<std::int64_t>(numbers, {lists.numbers.size()}, lists.numbers.data());
}

Lists read_lists(const storage::File& file, const char* begins, const char* numbers,
                 std::size_t count) {
  Lists lists;
  lists.numbers = file.read<std::int64_t>(numbers, file.shape(numbers));
  lists.begins = file.read<std::int64_t>(begins, {count + 1});
  const bool whole = lists.begins.front() == 0 && lists.begins.back() == std::ssize(lists.numbers);
  if (!whole || !std::ranges::is_sorted(lists.begins)) {
    fail(ExitCode::data,
         "{}: {}: found begins that do not cut the {} numbers of {}; valid: "
         "ascending from 0 to {}",
         file.path(), begins, lists.numbers.size(), numbers, lists.numbers.size());
  }
  return lists;
}

/// Numbers of one list, which ascend in [0, end).
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

}  // namespace

SparseIndex read_index(const std::string& path, std::span<const std::int64_t> lengths, int heads,
                       const config::Attention& attention) {
  const SparseRule rule = attention.sparse_rule();
  if (rule.block == 0) {
    fail(ExitCode::usage,
         "--index: found {} with attention.kind = {}; valid: only with kind vertical_slash", path,
         config::word_of(attention.kind));
  }
  const storage::File file = storage::File::open(path);
  const std::int64_t block = file.read<std::int64_t>(kBlock, {1}).front();
  if (block != rule.block) {
    fail(ExitCode::data, "{}: {}: found {}; valid: {}, attention.sparse.block", file.path(), kBlock,
         block, rule.block);
  }
  require_lengths(file, lengths);
  const auto stride = static_cast<std::size_t>(heads);
  const std::size_t count = lengths.size() * stride;
  const Lists offsets = read_lists(file, kOffsetBegins, kOffsets, count);
  const Lists columns = read_lists(file, kColumnBegins, kColumns, count);
  std::vector<SparsePattern> patterns(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t document = i / stride;
    const std::int64_t length = lengths[document];
    require_ascending(file, kOffsets, offsets.of(i), (length + block - 1) / block, document,
                      i % stride);
    require_ascending(file, kColumns, columns.of(i), length, document, i % stride);
    const bool dense = offsets.of(i).empty();
    if (dense != rule.is_dense(length)) {
      fail(ExitCode::data,
           "{}: {}: found {} offsets for document {} head {} of {} tokens; valid: {}", file.path(),
           kOffsets, offsets.of(i).size(), document, i % stride, length,
           dense ? "1 or more, as attention.sparse.dense_below makes it sparse"
                 : "none, as attention.sparse.dense_below makes it dense");
    }
    if (std::ssize(columns.of(i)) > rule.columns) {
      fail(ExitCode::data,
           "{}: {}: found {} for document {} head {}; valid: at most {}, "
           "attention.sparse.columns",
           file.path(), kColumns, columns.of(i).size(), document, i % stride, rule.columns);
    }
    if (dense) continue;
    std::vector<std::int64_t> slashes(offsets.of(i).begin(), offsets.of(i).end());
    for (std::int64_t& slash : slashes) slash *= block;
    patterns[i] = SparsePattern::vertical_slash(length, block, slashes, columns.of(i));
  }
  return {heads, std::move(patterns)};
}

void write_index(storage::File& file, std::span<const std::int64_t> lengths, const SparseRule& rule,
                 std::span<const SparsePattern> patterns) {
  Lists offsets, columns;
  for (const SparsePattern& pattern : patterns) {
    for (std::int64_t offset = 0; pattern.length() > 0 && offset < pattern.rows(); ++offset) {
      if (pattern.active(offset, 0)) offsets.numbers.push_back(offset);
    }
    columns.numbers.insert(columns.numbers.end(), pattern.columns().begin(),
                           pattern.columns().end());
    offsets.end_list();
    columns.end_list();
  }
  file.write<std::int64_t>(kBlock, {1}, &rule.block);
  file.write<std::int64_t>(kLengths, {lengths.size()}, lengths.data());
  write_lists(file, kOffsetBegins, kOffsets, offsets);
  write_lists(file, kColumnBegins, kColumns, columns);
}

}  // namespace cadenza::app
