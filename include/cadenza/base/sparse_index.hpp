// SPDX-License-Identifier: Apache-2.0
// The index of dynamic sparse attention: a pattern for every document and query head.
#pragma once

#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/base/sparse_pattern.hpp"

namespace cadenza {

class SparseIndex {
 public:
  SparseIndex() = default;
  /// @param patterns  [documents, heads]; patterns of length 0 make a document dense
  /// @throws Error(internal) where only some heads of a document are dense
  SparseIndex(int heads, std::vector<SparsePattern> patterns)
      : heads_(heads), patterns_(std::move(patterns)) {
    for (int document = 0; document < documents(); ++document) {
      for (int head = 0; head < heads_; ++head) {
        if ((of(document, head) == nullptr) == is_dense(document)) continue;
        fail(ExitCode::internal, "sparse index: document {} is dense for some heads only",
             document);
      }
    }
  }

  int heads() const { return heads_; }
  int documents() const {
    return heads_ == 0 ? 0 : static_cast<int>(std::ssize(patterns_) / heads_);
  }
  /// The pattern of a document and head; null where the document is dense.
  const SparsePattern* of(int document, std::int64_t head) const {
    const SparsePattern& pattern = patterns_[place(document, head)];
    return pattern.length() > 0 ? &pattern : nullptr;
  }
  bool is_dense(int document) const { return of(document, 0) == nullptr; }
  /// Index of (document, head) in lists by document and head.
  std::size_t place(int document, std::int64_t head) const {
    return static_cast<std::size_t>(document * std::int64_t{heads_} + head);
  }
  friend bool operator==(const SparseIndex&, const SparseIndex&) = default;

 private:
  int heads_ = 0;
  std::vector<SparsePattern> patterns_;
};

}  // namespace cadenza
