// SPDX-License-Identifier: Apache-2.0
// Chooses patterns of blocks by sums over antidiagonals (XAttention, arXiv 2503.16428): the owner
// of some rows gets their queries and all keys before their end and decides alone, so that no sum
// over ranks depends on an order.
#include <algorithm>
#include <functional>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/kernels/observe.hpp"
#include "exec/attention/index_estimator.hpp"

namespace cadenza::exec {
namespace {

using plan::IndexRound;
using plan::Tensor;

std::int64_t whole(std::int64_t tokens, std::int64_t side) {
  return (tokens + side - 1) / side * side;
}

template <typename Real>
class XAttention final : public IndexEstimator<Real> {
 public:
  using Sum = Accumulator<Real>;
  using typename IndexEstimator<Real>::Keep;

  XAttention(const AttentionShape& shape, const kernels::RotaryTable<Sum>& rotary)
      : shape_(shape), rotary_(rotary) {}

  void begin(const plan::Workload& workload, std::span<IndexDocument> documents,
             std::span<const SparseRule> rules, const Real* q, const Real* k) override;
  void pack(const plan::Move& move, std::byte*& to) override;
  void unpack(const plan::Move& move, const std::byte*& from) override;
  void estimate(IndexRound round, const Keep& keep) override;

 private:
  /// Rows of a document.
  struct Rows {
    // At home, by this rank's homes of the document.
    std::vector<std::vector<Real>> queries;  ///< [tokens, heads, head_dim], rotated
    std::vector<std::vector<Real>> keys;     ///< [tokens, kv_heads, head_dim]
    // Owned by this rank, in text order.
    std::vector<std::vector<Real>> owned_queries;  ///< by owned head: [owned tokens, head_dim]
    std::vector<std::vector<Real>> owned_keys;     ///< by their key heads: [tokens, head_dim]
  };
  struct Chosen;

  Rows& rows_of(const IndexDocument& document) { return rows_[at(&document - documents_.data())]; }
  Range owned_key_heads(const IndexDocument& document) const {
    return workload_->shape.key_heads(document.owned.heads);
  }
  void make_room(const IndexDocument& document);
  void take_own(const IndexDocument& document);
  template <typename Visit>
  void for_each_row(const IndexDocument& document, const plan::Move& move, Visit&& visit);
  void place(const IndexDocument& document, Tensor what, std::int64_t token, std::int64_t head,
             const Real* row);
  void add_jobs(const IndexDocument& document, std::vector<kernels::BlockJob<Real>>& jobs,
                std::vector<Chosen>& chosen);

  AttentionShape shape_;
  const kernels::RotaryTable<Sum>& rotary_;
  const plan::Workload* workload_ = nullptr;
  std::span<IndexDocument> documents_;
  std::vector<Rows> rows_;  ///< by document of `documents_`
};

template <typename Real>
void XAttention<Real>::begin(const plan::Workload& workload, std::span<IndexDocument> documents,
                             std::span<const SparseRule>, const Real* q, const Real* k) {
  workload_ = &workload;
  documents_ = documents;
  rows_.resize(documents.size());  // keeps their memory from layer to layer
  const std::int64_t query_row = std::int64_t{shape_.heads} * shape_.head_dim;
  const std::int64_t key_row = std::int64_t{shape_.kv_heads} * shape_.head_dim;
  for (const IndexDocument& document : documents_) {
    Rows& rows = rows_of(document);
    rows.queries.resize(document.homes.size());
    rows.keys.resize(document.homes.size());
    for (std::size_t n = 0; n < document.homes.size(); ++n) {
      const Range tokens = document.homes[n].tokens;
      const std::int64_t row = document.row_of(tokens.begin);
      rotate_queries<Real>(workload, document.length, tokens, q + row * query_row, shape_, rotary_,
                           rows.queries[n]);
      const auto keys = on_host<Real>(k + row * key_row, tokens.size() * key_row);
      rows.keys[n].assign(keys.data(), keys.data() + keys.extent(0));
    }
    make_room(document);
    if (!document.owned.empty()) take_own(document);
  }
}

template <typename Real>
void XAttention<Real>::make_room(const IndexDocument& document) {
  Rows& rows = rows_of(document);
  const bool owns = !document.owned.empty();
  rows.owned_queries.resize(owns ? at(document.owned.heads.size()) : 0);
  for (std::vector<Real>& head : rows.owned_queries) {
    head.resize(at(document.owned.tokens.size() * shape_.head_dim));
  }
  rows.owned_keys.resize(owns ? at(owned_key_heads(document).size()) : 0);
  const std::int64_t tokens = document.owned.tokens.end;
  for (std::vector<Real>& head : rows.owned_keys) {
    head.resize(at(whole(tokens, workload_->sparse.stride) * shape_.head_dim));
    std::fill(head.begin() + tokens * shape_.head_dim, head.end(), Real(0));
  }
}

/// Calls visit(token in the text, head, its row at home) for the rows of a move of this rank.
template <typename Real>
template <typename Visit>
void XAttention<Real>::for_each_row(const IndexDocument& document, const plan::Move& move,
                                    Visit&& visit) {
  const bool keys = move.what == Tensor::observed_keys;
  const std::int64_t heads = keys ? shape_.kv_heads : shape_.heads;
  for (std::size_t n = 0; n < document.homes.size(); ++n) {
    const Range home = document.homes[n].tokens;
    const Range tokens = intersect(home, move.tokens);
    const std::vector<Real>& rows = keys ? rows_of(document).keys[n] : rows_of(document).queries[n];
    for (std::int64_t token = tokens.begin; token < tokens.end; ++token) {
      for (std::int64_t head = move.heads.begin; head < move.heads.end; ++head) {
        visit(token, head, rows.data() + ((token - home.begin) * heads + head) * shape_.head_dim);
      }
    }
  }
}

/// Copies what this rank needs of its own rows, as if it had come in a message.
template <typename Real>
void XAttention<Real>::take_own(const IndexDocument& document) {
  for (const plan::IndexNeed& need : plan::index_needs(
           *workload_, document.parts, at(document.parts.holder(document.homes.front().rank)),
           IndexRound::observed)) {
    for (const plan::Home& home : document.homes) {
      for (const plan::Home& part : plan::within_text(*workload_, home, need.tokens)) {
        const plan::Move move{part.rank,   part.rank,  need.what, part.document,
                              part.tokens, need.heads, 0};
        for_each_row(document, move, [&](std::int64_t token, std::int64_t head, const Real* row) {
          place(document, need.what, token, head, row);
        });
      }
    }
  }
}

template <typename Real>
void XAttention<Real>::place(const IndexDocument& document, Tensor what, std::int64_t token,
                             std::int64_t head, const Real* row) {
  const std::int64_t position = plan::position_of(workload_->order, document.length, token);
  Rows& rows = rows_of(document);
  const bool keys = what == Tensor::observed_keys;
  std::vector<Real>& to = keys ? rows.owned_keys[at(head - owned_key_heads(document).begin)]
                               : rows.owned_queries[at(head - document.owned.heads.begin)];
  const std::int64_t place = keys ? position : position - document.owned.tokens.begin;
  std::copy_n(row, shape_.head_dim, to.begin() + place * shape_.head_dim);
}

template <typename Real>
void XAttention<Real>::pack(const plan::Move& move, std::byte*& to) {
  for_each_row(
      document_of(documents_, move.document), move,
      [&](std::int64_t, std::int64_t, const Real* row) { write(to, row, shape_.head_dim); });
}

template <typename Real>
void XAttention<Real>::unpack(const plan::Move& move, const std::byte*& from) {
  const IndexDocument& document = document_of(documents_, move.document);
  std::vector<Real> row(at(shape_.head_dim));
  for (std::int64_t token = move.tokens.begin; token < move.tokens.end; ++token) {
    for (std::int64_t head = move.heads.begin; head < move.heads.end; ++head) {
      read(from, row.data(), std::ssize(row));
      place(document, move.what, token, head, row.data());
    }
  }
}

/// Rows of blocks whose pattern is chosen together, and their masses.
template <typename Real>
struct XAttention<Real>::Chosen {
  const IndexDocument* document;
  std::int64_t head;
  Range rows;
  std::vector<std::uint32_t> masses;  ///< [rows, rows.end]
  std::vector<std::vector<std::int64_t>> blocks;
};

template <typename Real>
void XAttention<Real>::add_jobs(const IndexDocument& document,
                                std::vector<kernels::BlockJob<Real>>& jobs,
                                std::vector<Chosen>& chosen) {
  const SparseRule& rule = workload_->sparse;
  const Range all = rule.block_rows(document.owned.tokens);
  const std::int64_t most = kernels::most_rows(rule.block, rule.stride);
  Rows& rows = rows_of(document);
  for (std::int64_t h = document.owned.heads.begin; h < document.owned.heads.end; ++h) {
    for (std::int64_t row = all.begin; row < all.end; row += most) {
      const Range part{row, std::min(row + most, all.end)};
      chosen.push_back({&document, h, part, {}, {}});
      chosen.back().masses.resize(at(part.size() * part.end));
      kernels::BlockJob<Real> job;
      const std::int64_t first = row * rule.block;
      job.queries = rows.owned_queries[at(h - document.owned.heads.begin)].data() +
                    (first - document.owned.tokens.begin) * shape_.head_dim;
      job.query_stride = shape_.head_dim;
      job.count = std::min(part.end * rule.block, document.owned.tokens.end) - first;
      job.first_row = row;
      job.keys = rows.owned_keys[at(h / shape_.group() - owned_key_heads(document).begin)].data();
      job.masses = chosen.back().masses.data();
      jobs.push_back(job);
    }
  }
}

template <typename Real>
void XAttention<Real>::estimate(IndexRound round, const Keep& keep) {
  if (round != IndexRound::observed) return;
  const SparseRule& rule = workload_->sparse;
  std::vector<kernels::BlockJob<Real>> jobs;
  std::vector<Chosen> chosen;
  for (const IndexDocument& document : documents_) {
    if (!document.owned.empty()) add_jobs(document, jobs, chosen);
  }
  // The last rows are the longest: they go first, so that threads end together.
  std::ranges::stable_sort(jobs, std::greater{}, &kernels::BlockJob<Real>::first_row);
  if (!kernels::observe_blocks<Real>(shape_.head_dim, rule.block, rule.stride, jobs)) {
    fail(ExitCode::numerics,
         "the largest logit of some queries is not finite: sparse attention cannot choose its "
         "pattern; valid: finite logits");
  }
  std::vector<bool> active;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const Chosen& part = chosen[i];
    active.resize(at(part.rows.end * (part.rows.end + 1) / 2), false);
    for (std::int64_t row = part.rows.begin; row < part.rows.end; ++row) {
      const auto masses =
          std::span(part.masses).subspan(at((row - part.rows.begin) * part.rows.end), at(row + 1));
      for (const std::int64_t block : largest_blocks(masses, rule.threshold)) {
        active[at(row * (row + 1) / 2 + block)] = true;
      }
    }
    if (i + 1 < chosen.size() && chosen[i + 1].document == part.document &&
        chosen[i + 1].head == part.head) {
      continue;
    }
    SparsePattern pattern = SparsePattern::blocks(part.document->length, rule.block, active);
    keep(*part.document, part.head, std::move(pattern));
    active.clear();
  }
}

}  // namespace

template <typename Real>
std::unique_ptr<IndexEstimator<Real>> make_xattention(
    const AttentionShape& shape, const kernels::RotaryTable<Accumulator<Real>>& rotary) {
  return std::make_unique<XAttention<Real>>(shape, rotary);
}

#define CADENZA_INSTANTIATE(Real)                                       \
  template std::unique_ptr<IndexEstimator<Real>> make_xattention<Real>( \
      const AttentionShape&, const kernels::RotaryTable<Accumulator<Real>>&);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::exec
