// SPDX-License-Identifier: Apache-2.0
// Backward core attention of one pair of tiles in five products of tiles (backward_tile.hpp has the
// formulas): S = Q K^T and dP = dO V^T with a lane per key, then dV^T += dO^T P, dK^T += Q^T dS and
// dQ = dS K. P and dS are written in pairs of queries, as the second factor of the former two reads
// them, and dS also in rows, for the last; nothing of a score is transposed.
//
// Scratch: key_panels, value_panels [panels][W][32] words; keys [K / 2][D] words; dk, dv
// [panels][D][32], transposed; q, dout [N][W] words; q_pairs, dout_pairs [D][N / 2] words,
// transposed; p: logits and dP of two blocks, [2][2][32][32]; p_pairs, ds_pairs
// [panels][N / 2][32] words; ds [panels][N][16] words. A block of 32 keys lies together, because
// rows a kilobyte apart share a few sets of the first-level cache.
#pragma once

#include "amx_product.hpp"
#include "backward_tile.hpp"

namespace cadenza::kernels::cpu {

/// Every pair of tiles loads and stores all sums dK and dV of its keys and dQ of its queries, so
/// pairs are few and large, as long as their scratch fits the second-level cache.
inline constexpr int kAmxGradientQueries = 128;
inline constexpr int kAmxGradientKeys = 256;

/// Offset of the pairs of queries from `row` on for the 32 keys from `key` on.
constexpr int pairs_at(int row, int key) {
  return key * (kAmxGradientQueries / 2) + row / 2 * kTileBlock;
}

/// Turns logits and dP of a block of 32 queries and 32 keys into P and dS, two queries per step.
template <typename M, bool kMasked>
class LogitGradients {
 public:
  using Vector = typename M::Vector;
  LogitGradients(const float* block, const BackwardQueries& queries, int row, int key, float scale,
                 const Visible& visible)
      : scores_(block),
        lse_(queries.lse + row),
        minus_delta_(queries.minus_delta + row),
        p_pairs_(queries.p_pairs + pairs_at(row, key)),
        ds_pairs_(queries.ds_pairs + pairs_at(row, key)),
        ds_(reinterpret_cast<std::uint16_t*>(queries.ds) + key * kAmxGradientQueries +
            row * kTileBlock),
        scale_(M::broadcast(scale)),
        visible_(visible),
        row_(row),
        key_(key) {}
  int left() const { return left_; }
  [[gnu::always_inline]] void advance() {
    Vector p[2][kBlockVectors], ds[2][kBlockVectors];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kBlockVectors; ++j) {
        const int at = i * kTileBlock + j * M::kLanes;
        p[i][j] = probability(M::load(scores_ + at), i, j);
        const auto dp = M::load(scores_ + kTileBlock * kTileBlock + at);
        ds[i][j] = M::multiply(p[i][j], M::add(dp, M::broadcast(minus_delta_[i])));
      }
      M::narrow_row(ds_ + i * kTileBlock, ds[i][0], ds[i][1]);
    }
#pragma GCC unroll 2
    for (int j = 0; j < kBlockVectors; ++j) {
      M::store(p_pairs_ + j * M::kLanes, M::pair(p[0][j], p[1][j]));
      M::store(ds_pairs_ + j * M::kLanes, M::pair(ds[0][j], ds[1][j]));
    }
    scores_ += 2 * kTileBlock;
    lse_ += 2;
    minus_delta_ += 2;
    p_pairs_ += kTileBlock;
    ds_pairs_ += kTileBlock;
    ds_ += 2 * kTileBlock;
    row_ += 2;
    --left_;
  }

 private:
  [[gnu::always_inline]] Vector probability(Vector score, int i, int j) const {
    const auto x = M::subtract(M::multiply(score, scale_), M::broadcast(lse_[i]));
    const auto p = M::exponential2(M::multiply(M::min(M::zero(), x), M::broadcast(kLog2E)));
    if constexpr (!kMasked) return p;
    alignas(64) static constexpr float kIota[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                    8, 9, 10, 11, 12, 13, 14, 15};
    const auto lane = M::load(kIota);
    const int first = key_ + j * M::kLanes;
    const auto seen = M::broadcast(static_cast<float>(visible_.of(row_ + i) - first));
    const auto begin = M::broadcast(static_cast<float>(visible_.begin_of(row_ + i) - first));
    return M::select(M::less(lane, begin), M::zero(), M::select(M::less(lane, seen), p, M::zero()));
  }

  int left_ = kTileBlock / 2;
  const float* scores_;
  const float* lse_;
  const float* minus_delta_;
  float* p_pairs_;
  float* ds_pairs_;
  std::uint16_t* ds_;
  Vector scale_;
  const Visible& visible_;
  int row_;
  int key_;
};

/// Rows and keys of a step, rounded to whole blocks.
struct StepBlocks {
  int row_begin;  ///< first row that sees a key
  int row_end;
  int key_begin;
  int key_end;

  explicit StepBlocks(const Visible& visible)
      : row_begin(first_row_seeing(visible, visible.skipped) / kTileBlock * kTileBlock),
        row_end(round_up(visible.last, kTileBlock)),
        key_begin(visible.skipped / kTileBlock * kTileBlock),
        key_end(round_up(visible.keys, kTileBlock)) {}
  /// First row of the blocks that see some of the 32 keys from `key` on.
  int first_row(const Visible& visible, int key) const {
    return first_row_seeing(visible, key) / kTileBlock * kTileBlock;
  }
};

template <typename M>
class BackwardStep {
 public:
  BackwardStep(const BackwardKeys& keys, const BackwardQueries& queries, int dim, float scale,
               const Visible& visible, const Upcoming& upcoming)
      : keys_(keys),
        queries_(queries),
        dim_(dim),
        scale_(scale),
        visible_(visible),
        blocks_(visible),
        prefetcher_(upcoming, count_blocks()) {}

  void run() {
    add_logits();
    add_key_gradient(queries_.dout_pairs, queries_.p_pairs, keys_.dv);
    add_key_gradient(queries_.q_pairs, queries_.ds_pairs, keys_.dk);
    query_gradient();
  }

 private:
  static constexpr std::int64_t kWordBytes = sizeof(float);
  static constexpr std::int64_t kPanelBytes = kTileBlock * kWordBytes;

  int count_blocks() const {
    const int rows = (blocks_.row_end - blocks_.row_begin) / kTileBlock;
    const int keys = (blocks_.key_end - blocks_.key_begin) / kTileBlock;
    const int chunks = dim_ / kTileBlock;
    return rows * keys + 2 * chunks * keys + chunks * rows;
  }

  /// Computes a block of logits and dP, [2][32][32] in scratch, and runs `between` meanwhile.
  template <typename Between>
  [[gnu::always_inline]] void multiply_logits(int row, int key, float* block, Between between) {
    const std::int64_t words = dim_ / 2;
    const int steps = dim_ / kTileDepth;
    prefetcher_.step();
    const auto product = [&](const float* rows, const float* panels, float* to)
        __attribute__((always_inline)) {
      const Factor left{rows + row * words, words * kWordBytes, kTileDepth * 2};
      const Factor right{panels + key * words, kPanelBytes, kTileDepth / 2 * kPanelBytes};
      zero_tiles<M>();
      multiply_block<M>(left, right, steps, between);
      store_tiles<M>(to, kTileBlock);
    };
    product(queries_.q, keys_.key_panels, block);
    product(queries_.dout, keys_.value_panels, block + kTileBlock * kTileBlock);
    between.finish();
  }

  /// A block whose products are done; its softmax runs during the products of the next one.
  struct Pending {
    const float* block = nullptr;
    int row = 0;
    int key = 0;
  };

  template <bool kMasked>
  [[gnu::always_inline]] LogitGradients<M, kMasked> gradients_of(const Pending& at) const {
    return {at.block, queries_, at.row, at.key, scale_, visible_};
  }
  bool is_whole(const Pending& at) const {
    return at.row + kTileBlock <= end_of_rows_from(visible_, at.key) &&
           at.row >= first_row_seeing(visible_, at.key + kTileBlock - 1);
  }
  template <bool kMasked>
  void multiply_during(const Pending& before, int row, int key, float* block) {
    auto gradients = gradients_of<kMasked>(before);
    const int products = 2 * kBlockProducts * (dim_ / kTileDepth);
    multiply_logits(row, key, block, Spread<LogitGradients<M, kMasked>>(gradients, products));
  }
  template <bool kMasked>
  void finish(const Pending& last) {
    auto gradients = gradients_of<kMasked>(last);
    Spread<LogitGradients<M, kMasked>>(gradients, 0).finish();
  }

  void add_logits() {
    Pending before;
    int index = 0;
    for (int key = blocks_.key_begin; key < blocks_.key_end; key += kTileBlock) {
      for (int row = blocks_.first_row(visible_, key); row < blocks_.row_end; row += kTileBlock) {
        float* block = queries_.p + index++ % 2 * 2 * kTileBlock * kTileBlock;
        if (before.block == nullptr) {
          multiply_logits(row, key, block, Idle{});
        } else if (is_whole(before)) {
          multiply_during<false>(before, row, key, block);
        } else {
          multiply_during<true>(before, row, key, block);
        }
        before = {block, row, key};
      }
    }
    if (before.block == nullptr) return;
    if (is_whole(before)) {
      finish<false>(before);
    } else {
      finish<true>(before);
    }
  }

  /// Adds to sums[d][key], over the rows that see the key: left[d][row] * weights[row][key]. The
  /// sums hold at most kTilesPerSum tiles of queries: some 4000 float32 roundings lose less than
  /// 2^-9 of the error of rounding the factors to bfloat16.
  void add_key_gradient(const float* left_pairs, const float* weights, float* sums) {
    constexpr std::int64_t kLeftPitch = kAmxGradientQueries * 2;
    Idle idle;
    for (int key = blocks_.key_begin; key < blocks_.key_end; key += kTileBlock) {
      const int first = blocks_.first_row(visible_, key);
      const int steps = (blocks_.row_end - first) / kTileDepth;
      if (steps <= 0) continue;
      const Factor right{weights + pairs_at(first, key), kPanelBytes, kTileDepth / 2 * kPanelBytes};
      for (int d = 0; d < dim_; d += kTileBlock) {
        prefetcher_.step();
        const auto* data = reinterpret_cast<const char*>(left_pairs) + d * kLeftPitch + first * 2;
        float* to = sums + key * dim_ + d * kTileBlock;
        load_tiles<M>(to, kTileBlock);
        multiply_block<M>(Factor{data, kLeftPitch, kTileDepth * 2}, right, steps, idle);
        store_tiles<M>(to, kTileBlock);
      }
    }
  }

  /// Computes dq[row] = sum over the keys that the row's block sees of dS[row][key] * key.
  void query_gradient() {
    constexpr std::int64_t kLeftPitch = kTileBlock * 2;
    constexpr std::int64_t kLeftStep = kAmxGradientQueries * kLeftPitch;
    const std::int64_t right_pitch = dim_ * kWordBytes;
    Idle idle;
    for (int row = blocks_.row_begin; row < blocks_.row_end; row += kTileBlock) {
      const int last = row + kTileBlock < visible_.last ? row + kTileBlock : visible_.last;
      const int keys = round_up(visible_.of(last - 1), kTileBlock) - blocks_.key_begin;
      const auto* data = reinterpret_cast<const char*>(queries_.ds) + row * kLeftPitch;
      const Factor left{data + blocks_.key_begin / kTileDepth * kLeftStep, kLeftPitch, kLeftStep};
      const float* right = keys_.keys + static_cast<std::int64_t>(blocks_.key_begin / 2) * dim_;
      for (int d = 0; d < dim_; d += kTileBlock) {
        prefetcher_.step();
        zero_tiles<M>();
        multiply_block<M>(left, Factor{right + d, right_pitch, kTileDepth / 2 * right_pitch},
                          keys / kTileDepth, idle);
        store_tiles<M>(queries_.dq + static_cast<std::int64_t>(row) * dim_ + d, dim_);
      }
    }
  }

  const BackwardKeys& keys_;
  const BackwardQueries& queries_;
  int dim_;
  float scale_;
  const Visible& visible_;
  StepBlocks blocks_;
  Prefetcher<M> prefetcher_;
};

template <typename M>
void amx_backward_step(const BackwardKeys& keys, const BackwardQueries& queries, int dim,
                       float scale, Visible visible, const Upcoming& upcoming) {
  BackwardStep<M>(keys, queries, dim, scale, visible, upcoming).run();
}

template <typename M>
void amx_backward_load_queries(const BackwardQueries& tile, int dim, Rows queries,
                               Rotation rotation, Rows dout, SumRows lse, SumRows delta) {
  constexpr int kPitch = kAmxGradientQueries / M::kDepth;
  load_queries<M>(queries, dim, kAmxGradientQueries, rotation, tile.q);
  copy_rows<M>(dout, dim, kAmxGradientQueries, tile.dout);
  transpose_pairs<M>({tile.q, dim, kAmxGradientQueries}, dim, kAmxGradientQueries, tile.q_pairs,
                     kPitch);
  transpose_pairs<M>({tile.dout, dim, kAmxGradientQueries}, dim, kAmxGradientQueries,
                     tile.dout_pairs, kPitch);
  load_statistics<M, kAmxGradientQueries>(tile, queries.count, lse, delta);
}

/// Adds sums [panels][D][32], transposed to rows, times `factor`.
template <typename M>
void add_transposed(const float* sums, int dim, float factor, SumRows to) {
  constexpr int kLanes = M::kLanes;
  alignas(64) float rows[kLanes * kLanes];
  const auto f = M::broadcast(factor);
  for (int row = 0; row < to.count; row += kLanes) {
    const int count = to.count - row < kLanes ? to.count - row : kLanes;
    const float* from = sums + row / kTileBlock * kTileBlock * dim + row % kTileBlock;
    for (int d = 0; d < dim; d += kLanes) {
      M::transpose(from + d * kTileBlock, kTileBlock, rows, kLanes);
      for (int r = 0; r < count; ++r) {
        float* at = to.data + (row + r) * to.stride + d;
        M::store(at, M::fma(f, M::load(rows + r * kLanes), M::load(at)));
      }
    }
  }
}

template <typename M>
void amx_backward_end(const BackwardKeys& tile, int dim, float scale, SumRows dk, SumRows dv) {
  add_transposed<M>(tile.dk, dim, scale, dk);
  add_transposed<M>(tile.dv, dim, 1.0f, dv);
}

}  // namespace cadenza::kernels::cpu
