// SPDX-License-Identifier: Apache-2.0
// The interface between an index exchange, which carries messages and patterns, and the estimators
// that choose patterns: one file each in this folder.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/sparse_pattern.hpp"
#include "cadenza/exec/index_exchange.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/plan/index.hpp"

namespace cadenza::exec {

/// Copies numbers into or out of a message and advances its pointer.
template <typename T>
void write(std::byte*& to, const T* from, std::int64_t count) {
  const std::size_t bytes = at(count) * sizeof(T);
  std::memcpy(to, from, bytes);
  to += bytes;
}
template <typename T>
void read(const std::byte*& from, T* to, std::int64_t count) {
  const std::size_t bytes = at(count) * sizeof(T);
  std::memcpy(to, from, bytes);
  from += bytes;
}

/// Consecutive keys of a document on this rank.
struct KeyRun {
  plan::TextRun text;
  std::int64_t row = 0;   ///< of the first key among this rank's rows
  std::int64_t held = 0;  ///< of the first key among this rank's keys of the document
  std::size_t home = 0;   ///< index of the home among this rank's homes of the document
};

/// A sparse document of a tick, as a rank sees it.
struct IndexDocument {
  plan::IndexParts parts;
  std::int64_t length = 0;
  plan::OwnedIndex owned;
  std::vector<KeyRun> runs;
  std::vector<plan::Home> homes;  ///< of this rank
  std::int64_t keys = 0;          ///< number of keys held
  bool holds() const { return keys > 0; }
  /// Returns the row on this rank of a token that it holds, as the plan counts tokens.
  std::int64_t row_of(std::int64_t token) const;
};

/// Chooses the patterns that this rank owns. Holds the state of one layer at a time.
template <typename Real>
class IndexEstimator {
 public:
  using Sum = Accumulator<Real>;
  /// Receives the pattern of an owned document and head.
  using Keep = std::function<void(const IndexDocument&, std::int64_t head, SparsePattern)>;

  virtual ~IndexEstimator() = default;

  /// Begins a layer, before its first round.
  /// @param rules  of the layer, by head; empty: the plan's
  /// @param q, k  this rank's rows in the model's buffers; k is rotated
  virtual void begin(const plan::Workload& workload, std::span<IndexDocument> documents,
                     std::span<const SparseRule> rules, const Real* q, const Real* k) = 0;
  /// Packs the rows of a move, with the bytes that plan::index_bytes counts.
  virtual void pack(const plan::Move& move, std::byte*& to) = 0;
  virtual void unpack(const plan::Move& move, const std::byte*& from) = 0;
  /// Runs the computation after a round, whose messages have all arrived.
  virtual void estimate(plan::IndexRound round, const Keep& keep) = 0;
};

/// Returns the document of a move.
inline IndexDocument& document_of(std::span<IndexDocument> documents, int number) {
  for (IndexDocument& document : documents) {
    if (document.parts.document == number) return document;
  }
  fail(ExitCode::internal, "document {} is dense, but its index travels", number);
}

template <typename Real>
std::unique_ptr<IndexEstimator<Real>> make_estimator(
    SparseKind kind, const AttentionShape& shape,
    const kernels::RotaryTable<Accumulator<Real>>& rotary);
template <typename Real>
std::unique_ptr<IndexEstimator<Real>> make_vertical_slash(
    const AttentionShape& shape, const kernels::RotaryTable<Accumulator<Real>>& rotary);
template <typename Real>
std::unique_ptr<IndexEstimator<Real>> make_xattention(
    const AttentionShape& shape, const kernels::RotaryTable<Accumulator<Real>>& rotary);

/// Requires finite largest logits of a document's queries: a pattern is chosen by shares of
/// e^(logit - largest), and NaN would make it arbitrary.
/// @throws Error(numerics)
template <typename Sum>
void require_finite(const IndexDocument& document, std::int64_t head,
                    std::span<const Sum> largest) {
  for (const Sum logit : largest) {
    if (std::isfinite(logit)) continue;
    fail(ExitCode::numerics,
         "document {}, head {}: the largest logit of a query is {}: sparse attention cannot choose "
         "its pattern; valid: finite logits",
         document.parts.document, head, logit);
  }
}

/// Device memory as the host sees it: a host copy if it is elsewhere.
template <typename T>
auto on_host(const T* data, std::int64_t count) {
  using Rows = Kokkos::View<const T*, typename Array<T>::memory_space,
                            Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace{}, Rows(data, at(count)));
}

/// Writes rotated rows of queries to `to`: [tokens, heads, head_dim].
/// @param tokens  as the plan counts them; contiguous rows of the model
/// @param q  row of the first token
template <typename Real>
void rotate_queries(const plan::Workload& workload, std::int64_t length, Range tokens,
                    const Real* q, const AttentionShape& shape,
                    const kernels::RotaryTable<Accumulator<Real>>& rotary, std::vector<Real>& to);

}  // namespace cadenza::exec
