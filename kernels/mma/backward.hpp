// SPDX-License-Identifier: Apache-2.0
// Backward pass on tensor cores, in two passes so that no sum needs atomics: a block of the first
// owns 64 queries and sums dQ; a block of the second owns 64 keys and sums dK and dV over all query
// heads of their group. Both compute the logits, which makes seven products. Probabilities come
// from the merged lse, so gradients of tasks simply add (FlashAttention-2, algorithm 2).
#pragma once

#include "tiles.hpp"

namespace cadenza::kernels::mma {

/// A row without keys has lse = -inf. It becomes +inf here: all its probabilities are 0.
CADENZA_MMA float usable(float lse) {
  return lse == -kInfinity ? kInfinity : lse;
}

template <typename Thread>
CADENZA_MMA float probability(const Thread& thread, float logit, float lse) {
  const float above = (logit - lse) * kLog2e;
  return thread.exp2(above > 0 ? 0 : above);  // above 0 by rounding alone; NaN stays
}

template <int kDim>
struct QueryGradientShared {
  static constexpr int kTile = kRows * kDim;
  static constexpr int kQueries = 0;
  static constexpr int kDout = kTile;
  CADENZA_MMA static constexpr int keys(int stage) { return (2 + 2 * stage) * kTile; }
  CADENZA_MMA static constexpr int values(int stage) { return (3 + 2 * stage) * kTile; }
  static constexpr int kBytes = 6 * kTile * static_cast<int>(sizeof(Bits));
};

template <int kDim, typename Thread>
class QueryGradient : public PassOverQueries<kDim, QueryGradientShared<kDim>, Thread> {
  using Base = PassOverQueries<kDim, QueryGradientShared<kDim>, Thread>;
  using Base::lane, Base::warp_row, Base::row, Base::rows;
  using Base::thread_, Base::problem_, Base::unit_, Base::shared_;

 public:
  using Base::Base;

  CADENZA_MMA void run() {
    using Shared = QueryGradientShared<kDim>;
    load_statistics();
    const KeyWalk walk(problem_, unit_);
    if (walk.done()) return;
    this->copy_rows(problem_.queries[unit_.buffer].dout, Shared::kDout);
    const Rotation* rotation = nullptr;
    this->for_each_tile(
        walk,
        [&](const Rotation& next) {
          if (rotation != nullptr) add_gradient(*rotation);
          rotation = &next;
          this->copy_rows(next.rotated, Shared::kQueries);
          clear(dq_);
        },
        [this](const Visible& visible, const Bits* keys, const Bits* values) {
          differentiate(visible, keys, values);
        });
    add_gradient(*rotation);
  }

 private:
  CADENZA_MMA void load_statistics() {
    const Queries& buffer = problem_.queries[unit_.buffer];
    const auto lse = head_rows<1>(buffer.lse, buffer, unit_.begin, unit_.head_begin);
    const auto delta = head_rows<1>(buffer.delta, buffer, unit_.begin, unit_.head_begin);
    CADENZA_MMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const bool inside = row(half) < rows();
      lse_[half] = inside ? usable(lse.data[row(half) * lse.stride]) : kInfinity;
      delta_[half] = inside ? delta.data[row(half) * delta.stride] : 0;
    }
  }

  CADENZA_MMA void differentiate(const Visible& visible, const Bits* keys, const Bits* values) {
    using Shared = QueryGradientShared<kDim>;
    constexpr int kPart = kRows / 2;  // keys at once: two products' sums in registers
    CADENZA_MMA_UNROLL
    for (int part = 0; part < kRows; part += kPart) {
      if (visible.sees_none(warp_row(), 16, part, kPart)) continue;
      float scores[kPart / 8][4];
      float dscores[kPart / 8][4];
      clear(scores);
      clear(dscores);
      add_product_of_rows<kDim>(thread_, shared_ + Shared::kQueries, warp_row(), keys, part,
                                scores);
      add_product_of_rows<kDim>(thread_, shared_ + Shared::kDout, warp_row(), values, part,
                                dscores);
      const bool all = visible.sees_all(warp_row(), 16, part, kPart);
      CADENZA_MMA_UNROLL
      for (int tile = 0; tile < kPart / 8; ++tile) {
        CADENZA_MMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int key = part + tile * 8 + sum_column(lane()) + i % 2;
          const float p = probability(thread_, scores[tile][i] * problem_.scale, lse_[i / 2]);
          const bool seen = all || visible.sees(row(i / 2), key);
          dscores[tile][i] = seen ? p * (dscores[tile][i] - delta_[i / 2]) : 0;
        }
      }
      add_product_of_sums<kDim>(thread_, dscores, keys, part, dq_);
    }
  }

  /// Adds scale * (dQ turned back) to memory: the gradient of the queries that were not rotated.
  /// The two elements of a pair are sums of one lane.
  CADENZA_MMA void add_gradient(const Rotation& rotation) {
    const Queries& buffer = problem_.queries[unit_.buffer];
    const auto to = head_rows<kDim>(buffer.dq, buffer, unit_.begin, unit_.head_begin);
    CADENZA_MMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (row(half) >= rows()) continue;
      float* dq = to.data + row(half) * to.stride;
      const std::int64_t table =
          table_at(rotation, unit_.begin - buffer.begin + row(half), problem_.half);
      CADENZA_MMA_UNROLL
      for (int tile = 0; tile < kDim / 16; ++tile) {
        CADENZA_MMA_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int d = tile * 8 + sum_column(lane()) + i;
          const float low = dq_[tile][2 * half + i] * problem_.scale;
          const float high = dq_[tile + kDim / 16][2 * half + i] * problem_.scale;
          const float cos = problem_.half > 0 ? problem_.cos[table + d] : 1;
          const float sin = problem_.half > 0 ? problem_.sin[table + d] : 0;
          dq[d] += low * cos + high * sin;
          dq[d + kDim / 2] += high * cos - low * sin;
        }
      }
    }
  }

  float lse_[2];
  float delta_[2];
  float dq_[kDim / 8][4];  ///< of the rotated queries
};

template <int kDim>
struct KeyGradientShared {
  static constexpr int kTile = kRows * kDim;
  static constexpr int kKeys = 0;
  static constexpr int kValues = kTile;
  CADENZA_MMA static constexpr int queries(int stage) { return (2 + 2 * stage) * kTile; }
  CADENZA_MMA static constexpr int dout(int stage) { return (3 + 2 * stage) * kTile; }
  /// Two arrays of floats for every stage, behind the tiles.
  CADENZA_MMA static constexpr int statistics(int stage) {
    return 6 * kTile + stage * 2 * kRows * static_cast<int>(sizeof(float) / sizeof(Bits));
  }
  static constexpr int kBytes =
      6 * kTile * static_cast<int>(sizeof(Bits)) + 4 * kRows * static_cast<int>(sizeof(float));
};

/// Walks over the tiles of queries that see some key of a unit: entries, their tiles, the heads.
class QueryWalk {
 public:
  CADENZA_MMA QueryWalk(const Problem& problem, const Unit& unit)
      : problem_(&problem), unit_(&unit), at_(unit.first_entry - 1) {
    next_entry();
  }

  CADENZA_MMA bool done() const { return at_ >= unit_->last_entry; }
  CADENZA_MMA const Entry& entry() const { return problem_->entries[problem_->order[at_]]; }
  CADENZA_MMA std::int64_t query() const { return query_; }
  CADENZA_MMA int queries() const { return static_cast<int>(smaller(kRows, end_ - query_)); }
  CADENZA_MMA int head() const { return head_; }
  CADENZA_MMA void advance() {
    if (++head_ < smaller(entry().head_end, unit_->head_end)) return;
    head_ = first_head();
    query_ += kRows;
    if (query_ >= end_) next_entry();
  }

 private:
  CADENZA_MMA int first_head() const {
    return static_cast<int>(larger(entry().head_begin, unit_->head_begin));
  }
  CADENZA_MMA void next_entry() {
    for (++at_; at_ < unit_->last_entry; ++at_) {
      const Entry& of = entry();
      const std::int64_t first = larger(of.k_begin, unit_->begin);
      const std::int64_t last = smaller(of.k_end, unit_->end) - 1;
      query_ = larger(of.q_begin, first - of.high);
      end_ = smaller(of.q_end, last - of.low + 1);
      head_ = first_head();
      const bool heads = head_ < smaller(of.head_end, unit_->head_end);
      if (heads && first <= last && query_ < end_) return;
    }
  }

  const Problem* problem_;
  const Unit* unit_;
  int at_ = 0;
  int head_ = 0;
  std::int64_t query_ = 0;
  std::int64_t end_ = 0;
};

template <int kDim, typename Thread>
class KeyGradient : public PassOverUnit<Thread> {
  using Base = PassOverUnit<Thread>;
  using Base::lane, Base::warp_row, Base::row, Base::rows;
  using Base::thread_, Base::problem_, Base::unit_, Base::shared_;

 public:
  using Base::Base;

  CADENZA_MMA void run() {
    using Shared = KeyGradientShared<kDim>;
    QueryWalk now(problem_, unit_);
    if (now.done()) return;
    const Keys& buffer = problem_.keys[unit_.buffer];
    copy_tile<kDim, kRows>(thread_, head_rows<kDim>(buffer.k, buffer, unit_.begin, unit_.kv_head),
                           rows(), shared_ + Shared::kKeys);
    copy_tile<kDim, kRows>(thread_, head_rows<kDim>(buffer.v, buffer, unit_.begin, unit_.kv_head),
                           rows(), shared_ + Shared::kValues);
    copy_queries(now, 0);
    thread_.commit();
    clear(dk_);
    clear(dv_);
    int tiles = 0;
    for (int stage = 0; !now.done(); stage ^= 1) {
      QueryWalk next = now;
      next.advance();
      if (!next.done()) copy_queries(next, stage ^ 1);
      thread_.commit();
      thread_.template wait<1>();
      thread_.barrier();
      differentiate(now, stage);
      thread_.barrier();  // all have read the stage that the next turn fills
      now = next;
      if (++tiles % kTilesPerFlush == 0) add_sums();
    }
    add_sums();
  }

 private:
  CADENZA_MMA float* statistics(int stage) const {
    return reinterpret_cast<float*>(shared_ + KeyGradientShared<kDim>::statistics(stage));
  }

  CADENZA_MMA void copy_queries(const QueryWalk& walk, int stage) {
    using Shared = KeyGradientShared<kDim>;
    const Entry& entry = walk.entry();
    const Queries& buffer = problem_.queries[entry.queries];
    const Bits* rotated = problem_.rotations[entry.rotation].rotated;
    copy_tile<kDim, kRows>(thread_, head_rows<kDim>(rotated, buffer, walk.query(), walk.head()),
                           walk.queries(), shared_ + Shared::queries(stage));
    copy_tile<kDim, kRows>(thread_, head_rows<kDim>(buffer.dout, buffer, walk.query(), walk.head()),
                           walk.queries(), shared_ + Shared::dout(stage));
    const int row = thread_.index();
    if (row >= kRows) return;
    const bool inside = row < walk.queries();
    const auto lse = head_rows<1>(buffer.lse, buffer, walk.query(), walk.head());
    const auto delta = head_rows<1>(buffer.delta, buffer, walk.query(), walk.head());
    statistics(stage)[row] = inside ? usable(lse.data[row * lse.stride]) : kInfinity;
    statistics(stage)[kRows + row] = inside ? delta.data[row * delta.stride] : 0;
  }

  /// Rows of the products are keys, columns are queries.
  CADENZA_MMA void differentiate(const QueryWalk& walk, int stage) {
    using Shared = KeyGradientShared<kDim>;
    constexpr int kPart = kDim > 64 ? 16 : 32;  // queries at once: what fits into registers
    const Visible visible = visible_in(walk.entry(), walk.query(), unit_.begin);
    const float* lse = statistics(stage);
    const float* delta = lse + kRows;
    CADENZA_MMA_ROLL
    for (int part = 0; part < kRows; part += kPart) {
      if (visible.sees_none(part, kPart, warp_row(), 16)) continue;
      float scores[kPart / 8][4];
      float dscores[kPart / 8][4];
      clear(scores);
      clear(dscores);
      add_product_of_rows<kDim>(thread_, shared_ + Shared::kKeys, warp_row(),
                                shared_ + Shared::queries(stage), part, scores);
      add_product_of_rows<kDim>(thread_, shared_ + Shared::kValues, warp_row(),
                                shared_ + Shared::dout(stage), part, dscores);
      const bool all = visible.sees_all(part, kPart, warp_row(), 16);
      CADENZA_MMA_UNROLL
      for (int tile = 0; tile < kPart / 8; ++tile) {
        CADENZA_MMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int query = part + tile * 8 + sum_column(lane()) + i % 2;
          const bool seen = all || visible.sees(query, row(i / 2));
          const float p =
              seen ? probability(thread_, scores[tile][i] * problem_.scale, lse[query]) : 0;
          scores[tile][i] = p;
          dscores[tile][i] = seen ? p * (dscores[tile][i] - delta[query]) : 0;
        }
      }
      add_product_of_sums<kDim>(thread_, scores, shared_ + Shared::dout(stage), part, dv_);
      add_product_of_sums<kDim>(thread_, dscores, shared_ + Shared::queries(stage), part, dk_);
    }
  }

  /// Adds the sums to memory and begins new ones.
  CADENZA_MMA void add_sums() {
    const Keys& buffer = problem_.keys[unit_.buffer];
    const auto dk = head_rows<kDim>(buffer.dk, buffer, unit_.begin, unit_.kv_head);
    const auto dv = head_rows<kDim>(buffer.dv, buffer, unit_.begin, unit_.kv_head);
    CADENZA_MMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (row(half) >= rows()) continue;
      float* to_dk = dk.data + row(half) * dk.stride + sum_column(lane());
      float* to_dv = dv.data + row(half) * dv.stride + sum_column(lane());
      CADENZA_MMA_UNROLL
      for (int tile = 0; tile < kDim / 8; ++tile) {
        CADENZA_MMA_UNROLL
        for (int i = 0; i < 2; ++i) {
          to_dk[tile * 8 + i] += dk_[tile][2 * half + i] * problem_.scale;
          to_dv[tile * 8 + i] += dv_[tile][2 * half + i];
        }
      }
    }
    clear(dk_);
    clear(dv_);
  }

  float dk_[kDim / 8][4];
  float dv_[kDim / 8][4];
};

}  // namespace cadenza::kernels::mma
