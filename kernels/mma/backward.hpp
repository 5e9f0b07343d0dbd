// SPDX-License-Identifier: Apache-2.0
// Backward pass on tensor cores, in two passes so that no sum needs atomics: a block of the first
// owns 128 queries and sums dQ; a block of the second owns 128 keys and sums dK and dV over all
// query heads of their group. Both compute the logits, which makes seven products. Probabilities
// come from the merged lse, so gradients of tasks simply add (FlashAttention-2, algorithm 2).
#pragma once

#include "../device/epilogue.hpp"
#include "../device/softmax.hpp"
#include "tiles.hpp"

namespace cadenza::kernels::mma {

template <int kDim>
struct QueryGradientShape {
  /// Queries of a unit. On sm_80, a multiprocessor should have eight warps: in one block if two do
  /// not fit into shared memory.
  static constexpr int kRows = kDim > 96 ? 256 : 128;
  static constexpr int kThreads = kRows / kWarpRows * 32;
  static constexpr int kBlocks = kDim > 96 ? 1 : kDim > 32 ? 2 : 3;
  static constexpr int kTile = 32;  ///< keys at once: sums of two products in registers
  static constexpr int kQueries = 0;
  static constexpr int kDout = kRows * kDim;
  CADENZA_DEVICE static constexpr int keys(int stage) { return 2 * (kRows + stage * kTile) * kDim; }
  CADENZA_DEVICE static constexpr int values(int stage) { return keys(stage) + kTile * kDim; }
  static constexpr int kWalk = 2 * (kRows + 2 * kTile) * kDim;
  static constexpr int kBytes = (kWalk + kWalkBits) * static_cast<int>(sizeof(Bits));
};

/// @tparam Tiles  as of Forward
template <int kDim, typename Thread, template <int, int> typename Tiles = KeyTile>
class QueryGradient : public PassOverQueries<kDim, QueryGradientShape<kDim>, Thread,
                                             Tiles<kDim, QueryGradientShape<kDim>::kTile>> {
  using Shape = QueryGradientShape<kDim>;
  using Tile = Tiles<kDim, Shape::kTile>;
  using Base = PassOverQueries<kDim, Shape, Thread, Tile>;
  using Scores = Sums<Shape::kTile>;
  using Base::thread_, Base::problem_, Base::unit_, Base::shared_;
  using Base::warp_row, Base::row;

 public:
  using Base::Base;

  CADENZA_DEVICE void run() {
    CADENZA_UNROLL
    for (int block = 0; block < 2; ++block) {
      load_statistics(problem_, unit_, row(block), lse_[block], delta_[block]);
    }
    this->copy_rows(problem_.queries[unit_.buffer].dout, Shape::kDout);
    this->for_each_tile(
        [this](const Rotation& rotation) {
          this->copy_rows(rotation.rotated, Shape::kQueries);
          clear(dq_);
        },
        [this](const Rotation& rotation) { add_gradient(rotation); },
        [this](const Tile& tile, const Bits* keys, const Bits* values) {
          differentiate(tile, keys, values);
        });
  }

 private:
  CADENZA_DEVICE void differentiate(const Tile& tile, const Bits* keys, const Bits* values) {
    if (tile.sees_none(warp_row(), kWarpRows)) return;
    Scores scores;
    Scores dscores;
    clear(scores);
    clear(dscores);
    add_product_of_rows<kDim>(thread_, shared_ + Shape::kQueries, warp_row(), keys, 0, scores);
    add_product_of_rows<kDim>(thread_, shared_ + Shape::kDout, warp_row(), values, 0, dscores);
    find_gradients(tile, scores, dscores);
    add_product_of_sums<kDim>(thread_, dscores, keys, 0, dq_);
  }

  /// Turns scores into probabilities, and gradients of these into gradients of scores.
  CADENZA_DEVICE void find_gradients(const Tile& tile, Scores& scores, Scores& dscores) {
    if (!tile.sees_all(warp_row(), kWarpRows)) {
      const auto seen = [&](int query) { return tile.seen(query); };
      this->apply_mask(seen, -kInfinity, scores);
      this->apply_mask(seen, 0, dscores);
    }
    CADENZA_UNROLL
    for (int block = 0; block < 2; ++block) {
      recompute_probabilities(
          thread_, problem_.scale * kLog2e, [&](int half, int) { return lse_[block][half]; },
          scores[block]);
      subtract_delta(
          thread_, scores[block], [&](int half, int) { return delta_[block][half]; },
          dscores[block]);
    }
  }

  CADENZA_DEVICE void add_gradient(const Rotation& rotation) {
    CADENZA_UNROLL
    for (int block = 0; block < 2; ++block) {
      add_query_gradient(thread_, problem_, unit_, rotation, row(block), dq_[block]);
    }
  }

  float lse_[2][2];  ///< times log2(e)
  float delta_[2][2];
  Sums<kDim> dq_;  ///< of the rotated queries
};

template <int kDim>
struct KeyGradientShape {
  /// Number of warps that share the same 32 keys. Sums of dK and dV over more than 64 columns would
  /// not fit into the registers of one warp: two compute the probabilities of half of the queries
  /// each, exchange them through shared memory, and sum half of the columns.
  static constexpr int kShare = kDim > 64 ? 2 : 1;
  static constexpr int kRows = 128;  ///< keys of a unit
  static constexpr int kThreads = kShare * kRows / kWarpRows * 32;
  static constexpr int kBlocks = kDim > 64 ? 1 : kDim > 32 ? 2 : 3;
  static constexpr int kTile = kQueryTile;
  static constexpr int kPart = 32;  ///< queries at once: sums of two products in registers
  static constexpr int kColumns = kDim / kShare;
  static constexpr int kKeys = 0;
  static constexpr int kValues = kRows * kDim;
  CADENZA_DEVICE static constexpr int queries(int stage) {
    return 2 * (kRows + stage * kTile) * kDim;
  }
  CADENZA_DEVICE static constexpr int dout(int stage) { return queries(stage) + kTile * kDim; }
  /// Probabilities [kRows, kTile] and their gradients, for warps that share keys.
  static constexpr int kScores = 2 * (kRows + 2 * kTile) * kDim;
  static constexpr int kDscores = kScores + (kShare > 1 ? kRows * kTile : 0);
  static constexpr int kWalk = 2 * kDscores - kScores;
  /// Place of two arrays of floats per stage, behind the tiles.
  CADENZA_DEVICE static constexpr int statistics(int stage) {
    return kWalk + kWalkBits + stage * 2 * kTile * kFloat;
  }
  /// Place of an int for each of the unit's keys: its token, counted from the first one's.
  static constexpr int kOffsets = kWalk + kWalkBits + 4 * kTile * sizeof(float) / sizeof(Bits);
  static constexpr int kBytes =
      kOffsets * static_cast<int>(sizeof(Bits)) + kRows * static_cast<int>(sizeof(int));

 private:
  static constexpr int kFloat = sizeof(float) / sizeof(Bits);
};

/// A tile of queries of one head that see some key of a unit. It walks over the unit's entries,
/// their tiles, the heads.
template <int kDim, int kTile>
struct QueryTile {
  using Problem = device::Problem;
  static constexpr bool kGathers = false;  ///< whether units may be of gathered keys

  const Bits* rotated = nullptr;  ///< first row of the tile's head
  const Bits* dout = nullptr;
  const float* lse = nullptr;
  const float* delta = nullptr;
  int stride = 0;  ///< in heads
  int head = 0;    ///< number among `heads`, which entry and unit have in common
  int heads = 0;
  int left = 0;  ///< queries from the first one to the entry's end; 0: no tile
  int entry = 0;
  Visible visible;

  CADENZA_DEVICE bool done() const { return left <= 0; }
  CADENZA_DEVICE int queries() const { return left < kTile ? left : kTile; }
  /// Whether every pair of queries [q, + queries) of the tile and keys [key, + keys) of the unit
  /// counts; none. The last argument says where gathered keys lie.
  CADENZA_DEVICE bool sees_all(int q, int queries, int key, int keys, const int*) const {
    return visible.sees_all(q, queries, key, keys);
  }
  CADENZA_DEVICE bool sees_none(int q, int queries, int key, int keys, const int*) const {
    return visible.sees_none(q, queries, key, keys);
  }
  /// Returns which queries, counted from `part` on, a key of a warp sees. The warp's first is
  /// `warp_key`. Holds copies, for which the compiler finds registers.
  CADENZA_DEVICE auto seen(int part, int /*warp_key*/, const int*) const {
    return [of = visible, part](int key) { return queries_of(of, key).from(part); };
  }
  CADENZA_DEVICE static KeyGradientRows gradient_rows(const Problem& problem, const Unit& unit) {
    return key_gradient_rows<kDim>(problem, unit);
  }
  /// Moves to the first tile of a unit.
  CADENZA_DEVICE void start(const Problem& problem, const Unit& unit) {
    enter(problem, unit, unit.first_entry);
  }
  CADENZA_DEVICE void advance(const Problem& problem, const Unit& unit) {
    if (head + 1 < heads) {
      ++head;
      return pass(1);
    }
    left -= kTile;
    if (left <= 0) return enter(problem, unit, entry + 1);
    pass(kTile * stride - head);
    head = 0;
    visible.pass_queries(kTile);
  }

 private:
  CADENZA_DEVICE void pass(int rows_of_heads) {
    rotated += rows_of_heads * kDim;
    dout += rows_of_heads * kDim;
    lse += rows_of_heads;
    delta += rows_of_heads;
  }

  /// Moves to the first tile of the first entry, from `from` on, that has one.
  CADENZA_DEVICE void enter(const Problem& problem, const Unit& unit, int from) {
    left = 0;
    for (entry = from; entry < unit.last_entry; ++entry) {
      const Entry& of = problem.entries[problem.order[entry]];
      const Tokens met = queries_met(of, unit);
      const Heads met_heads = heads_met(of, unit);
      heads = met_heads.end - met_heads.first;
      if (heads <= 0 || met.empty()) continue;
      const Queries& buffer = problem.queries[of.queries];
      rotated = head_rows<kDim>(problem.rotations[of.rotation].rotated, buffer, met.begin,
                                met_heads.first)
                    .data;
      dout = head_rows<kDim>(buffer.dout, buffer, met.begin, met_heads.first).data;
      lse = head_rows<1>(buffer.lse, buffer, met.begin, met_heads.first).data;
      delta = head_rows<1>(buffer.delta, buffer, met.begin, met_heads.first).data;
      stride = buffer.heads;
      head = 0;
      left = clamped(met.end - met.begin);
      visible = visible_in(of, met.begin, unit.begin);
      return;
    }
  }
};

/// @tparam Tiles  QueryTile, or what a sparse pass has in its place
template <int kDim, typename Thread, template <int, int> typename Tiles = QueryTile>
class KeyGradient
    : public PassOverUnit<KeyGradientShape<kDim>, Tiles<kDim, KeyGradientShape<kDim>::kTile>,
                          Thread, KeyGradientShape<kDim>::kShare> {
  using Shape = KeyGradientShape<kDim>;
  using Tile = Tiles<kDim, Shape::kTile>;
  using Base = PassOverUnit<Shape, Tile, Thread, Shape::kShare>;
  using Scores = Sums<Shape::kPart>;
  using Base::lane, Base::warp_row, Base::share, Base::row, Base::rows, Base::tile;
  using Base::thread_, Base::problem_, Base::unit_, Base::shared_;

 public:
  using Base::Base;

  CADENZA_DEVICE void run() {
    clear(dk_);
    clear(dv_);
    if constexpr (Tile::kGathers) find_offsets();
    this->for_each_tile(
        [this] {
          const Keys& buffer = problem_.keys[unit_.buffer];
          copy_keys(buffer.k, Shape::kKeys);
          copy_keys(buffer.v, Shape::kValues);
        },
        [this](const Tile& tile, int stage) { copy_queries(tile, stage); },
        [this](int turn) { differentiate(tile(turn), turn % 2); }, [this] { add_sums(); });
  }

 private:
  CADENZA_DEVICE const float* statistics(int stage) const {
    return reinterpret_cast<const float*>(shared_ + Shape::statistics(stage));
  }

  CADENZA_DEVICE const int* offsets() const {
    return reinterpret_cast<const int*>(shared_ + Shape::kOffsets);
  }

  /// Sets the offsets of a unit's keys, those beyond its last one to further than any mask.
  CADENZA_DEVICE void find_offsets() {
    if (thread_.index() >= Shape::kRows) return;
    const int row = thread_.index();
    reinterpret_cast<int*>(shared_ + Shape::kOffsets)[row] = Tile::key_offset(problem_, unit_, row);
  }

  CADENZA_DEVICE void copy_keys(const Bits* array, int to) {
    const Keys& buffer = problem_.keys[unit_.buffer];
    if constexpr (Tile::kGathers) {
      if (unit_.columns > 0) {
        gather_tile<kDim, Shape::kRows, Shape::kThreads>(
            thread_, head_rows<kDim>(array, buffer, buffer.begin, unit_.kv_head),
            problem_.columns + unit_.first_column, unit_.columns, shared_ + to);
        return;
      }
    }
    copy_tile<kDim, Shape::kRows, Shape::kThreads>(
        thread_, head_rows<kDim>(array, buffer, unit_.begin, unit_.kv_head), rows(), shared_ + to);
  }

  CADENZA_DEVICE void copy_queries(const Tile& tile, int stage) {
    constexpr int kTile = Shape::kTile;
    const std::int64_t stride = std::int64_t{tile.stride} * kDim;
    copy_tile<kDim, kTile, Shape::kThreads>(thread_, {tile.rotated, stride}, tile.queries(),
                                            shared_ + Shape::queries(stage));
    copy_tile<kDim, kTile, Shape::kThreads>(thread_, {tile.dout, stride}, tile.queries(),
                                            shared_ + Shape::dout(stage));
    if (thread_.index() >= 2 * kTile) return;
    const float* from = thread_.index() < kTile ? tile.lse : tile.delta;
    const int query = thread_.index() % kTile;
    const bool inside = query < tile.queries();
    auto* to = reinterpret_cast<float*>(shared_ + Shape::statistics(stage)) + thread_.index();
    thread_.copy_number(to, from + (inside ? query * tile.stride : 0), inside);
  }

  /// Computes gradients. Rows of the products are keys, columns are queries.
  CADENZA_DEVICE void differentiate(const Tile& tile, int stage) {
    constexpr int kPart = Shape::kPart;
    if constexpr (Shape::kShare == 1) {
      CADENZA_ROLL
      for (int part = 0; part < Shape::kTile; part += kPart) {
        if (tile.sees_none(part, kPart, warp_row(), kWarpRows, offsets())) continue;
        Scores scores;
        Scores dscores;
        compute(tile, stage, part, scores, dscores);
        add_product_of_sums<kDim>(thread_, scores, shared_ + Shape::dout(stage), part, dv_);
        add_product_of_sums<kDim>(thread_, dscores, shared_ + Shape::queries(stage), part, dk_);
      }
    } else {
      static_assert(Shape::kTile == Shape::kShare * kPart);
      const int part = share() * kPart;
      if (!tile.sees_none(part, kPart, warp_row(), kWarpRows, offsets())) {
        Scores scores;
        Scores dscores;
        compute(tile, stage, part, scores, dscores);
        store(scores, part, shared_ + Shape::kScores);
        store(dscores, part, shared_ + Shape::kDscores);
      }
      thread_.barrier();  // the other half of the probabilities is complete
      CADENZA_ROLL
      for (int query = 0; query < Shape::kTile; query += 16) {
        const int half = query / kPart * kPart;
        if (tile.sees_none(half, kPart, warp_row(), kWarpRows, offsets())) continue;
        add_product(Shape::kScores, shared_ + Shape::dout(stage), query, dv_);
        add_product(Shape::kDscores, shared_ + Shape::queries(stage), query, dk_);
      }
    }
  }

  /// Computes probabilities of queries [part, + kPart) and their gradients.
  CADENZA_DEVICE void compute(const Tile& tile, int stage, int part, Scores& scores,
                              Scores& dscores) {
    clear(scores);
    clear(dscores);
    add_product_of_rows<kDim>(thread_, shared_ + Shape::kKeys, warp_row(),
                              shared_ + Shape::queries(stage), part, scores);
    add_product_of_rows<kDim>(thread_, shared_ + Shape::kValues, warp_row(),
                              shared_ + Shape::dout(stage), part, dscores);
    find_gradients(tile, stage, part, scores, dscores);
  }

  /// Turns scores into probabilities, and gradients of these into gradients of scores.
  CADENZA_DEVICE void find_gradients(const Tile& tile, int stage, int part, Scores& scores,
                                     Scores& dscores) {
    if (!tile.sees_all(part, Shape::kPart, warp_row(), kWarpRows, offsets())) {
      const auto seen = tile.seen(part, warp_row(), offsets());
      this->apply_mask(seen, -kInfinity, scores);
      this->apply_mask(seen, 0, dscores);
    }
    const float* lse = statistics(stage) + part;
    const float* delta = lse + Shape::kTile;
    CADENZA_UNROLL
    for (int block = 0; block < 2; ++block) {
      recompute_probabilities(
          thread_, problem_.scale * kLog2e, [&](int, int query) { return usable_lse(lse[query]); },
          scores[block]);
      subtract_delta(
          thread_, scores[block], [&](int, int query) { return delta[query]; }, dscores[block]);
    }
  }

  /// Stores scores, rounded, to columns [part, + kPart) of an array [kRows, kTile].
  CADENZA_DEVICE void store(const Scores& scores, int part, Bits* to) const {
    CADENZA_UNROLL
    for (int block = 0; block < 2; ++block) {
      CADENZA_UNROLL
      for (int tile = 0; tile < Shape::kPart / 8; ++tile) {
        const float(&of)[4] = scores[block][tile];
        CADENZA_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int place =
              at<Shape::kTile>(row(block, half), part + tile * 8 + sum_column(lane()));
          *reinterpret_cast<unsigned*>(to + place) = thread_.pack(of[2 * half], of[2 * half + 1]);
        }
      }
    }
  }

  /// Adds to sums: columns [query, + 16) of an array [kRows, kTile] in shared memory times rows of
  /// `right`.
  CADENZA_DEVICE void add_product(int left, const Bits* right, int query,
                                  Sums<Shape::kColumns>& sums) const {
    unsigned a[2][4];
    load_left<Shape::kTile>(thread_, shared_ + left, warp_row(), query, a);
    add_product_of_columns<kDim>(thread_, a, right, query, share() * Shape::kColumns, sums);
  }

  /// Adds the sums to memory and starts new ones.
  CADENZA_DEVICE void add_sums() {
    CADENZA_UNROLL
    for (int block = 0; block < 2; ++block) {
      add_key_gradients(thread_, problem_, Tile::gradient_rows(problem_, unit_), row(block),
                        share() * Shape::kColumns, dk_[block], dv_[block]);
    }
    clear(dk_);
    clear(dv_);
  }

  Sums<Shape::kColumns> dk_;
  Sums<Shape::kColumns> dv_;
};

}  // namespace cadenza::kernels::mma
