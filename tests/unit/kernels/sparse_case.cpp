// SPDX-License-Identifier: Apache-2.0
#include "unit/kernels/sparse_case.hpp"

namespace cadenza::testing {

SparsePattern random_pattern(std::int64_t length, std::int64_t block, std::int64_t share,
                             std::mt19937_64& random) {
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
  };
  std::vector<std::int64_t> columns;
  for (std::int64_t n = below(length / share + 2); n > 0; --n) columns.push_back(below(length));
  if (random() % 4 == 0) {
    const std::int64_t rows = (length + block - 1) / block;
    std::vector<bool> active(static_cast<std::size_t>(rows * (rows + 1) / 2));
    for (std::size_t i = 0; i < active.size(); ++i) active[i] = random() % 3 == 0;
    return SparsePattern::blocks(length, block, active);
  }
  std::vector<std::int64_t> slashes;
  for (std::int64_t n = below(4); n > 0; --n) slashes.push_back(below(length));
  return SparsePattern::vertical_slash(length, block, slashes, columns);
}

SparseIndex random_index(const Case& of, std::int64_t block, bool dense, std::mt19937_64& random,
                         std::int64_t share) {
  std::vector<SparsePattern> patterns;
  for (std::size_t document = 0; document < of.documents.size(); ++document) {
    for (int head = 0; head < of.shape.heads; ++head) {
      if (dense && document == 0) {
        patterns.emplace_back();
      } else {
        const DocumentData& data = of.documents[document];
        const std::int64_t length = position_of(data.storage, data.length - 1) + 1;
        patterns.push_back(random_pattern(length, block, share, random));
      }
    }
  }
  return {of.shape.heads, std::move(patterns)};
}

namespace {

/// Adds a piece for every range of keys of `from` that a query of one head sees in the pattern.
void add_pairs(const Piece& from, std::int64_t head, const SparsePattern* pattern,
               const Storage& storage, std::vector<Piece>& to) {
  const Task& task = from.task;
  for (std::int64_t i = task.q.begin; i < task.q.end; ++i) {
    const auto sees = [&](std::int64_t j) {
      return task.band.sees(i, j) && (pattern == nullptr || pattern->sees(position_of(storage, i),
                                                                          position_of(storage, j)));
    };
    for (std::int64_t begin = task.k.begin, end = 0; begin < task.k.end; begin = end + 1) {
      for (end = begin; end < task.k.end && sees(end);) ++end;
      if (end == begin) continue;
      const Task pairs{task.document, {i, i + 1}, {begin, end}, {head, head + 1}, Band::full()};
      to.push_back({pairs, from.query_buffer, from.key_buffer});
    }
  }
}

}  // namespace

Case by_pairs(Case of, const SparseIndex& index) {
  const std::vector<Piece> pieces = std::move(of.pieces);
  of.pieces.clear();
  for (const Piece& piece : pieces) {
    const int document = piece.task.document;
    for (std::int64_t head = piece.task.heads.begin; head < piece.task.heads.end; ++head) {
      add_pairs(piece, head, index.of(document, head),
                of.documents[static_cast<std::size_t>(document)].storage, of.pieces);
    }
  }
  return of;
}

Counts pairs_in(const Case& pairs, const SparseIndex& index) {
  Counts counts(static_cast<std::size_t>(index.documents()) *
                static_cast<std::size_t>(index.heads()));
  for (const Piece& piece : pairs.pieces) {
    const Task& task = piece.task;
    if (index.is_dense(task.document)) continue;
    counts[index.place(task.document, task.heads.begin)] += task.k.size();
  }
  return counts;
}

Counts pairs_of(const SparseIndex& index) {
  Counts pairs;
  for (int document = 0; document < index.documents(); ++document) {
    for (int head = 0; head < index.heads(); ++head) {
      const SparsePattern* pattern = index.of(document, head);
      pairs.push_back(pattern == nullptr ? 0 : pattern->pairs());
    }
  }
  return pairs;
}

}  // namespace cadenza::testing
