// SPDX-License-Identifier: Apache-2.0
// Moves rows between memory and the layouts that products read.
#pragma once

#include "product.hpp"
#include "tile_kernels.hpp"

namespace cadenza::kernels::cpu {

/// Prefetches upcoming rows, some cache lines at a time, between blocks of a product.
template <typename M>
class Prefetcher {
 public:
  Prefetcher(const Upcoming& upcoming, int blocks) : upcoming_(upcoming) {
    int lines = 0;
    for (int i = 0; i < upcoming.count; ++i) {
      lines += upcoming.pieces[i].rows * upcoming.pieces[i].lines;
    }
    share_ = blocks > 0 ? (lines + blocks - 1) / blocks : 0;
  }
  [[gnu::always_inline]] void step() {
    constexpr int kLine = 64;
    for (int i = 0; i < share_ && piece_ < upcoming_.count; ++i) {
      const Upcoming::Pieces& rows = upcoming_.pieces[piece_];
      __builtin_prefetch(rows.data + row_ * rows.stride + line_ * kLine);
      if (++line_ < rows.lines) continue;
      line_ = 0;
      if (++row_ < rows.rows) continue;
      row_ = 0;
      ++piece_;
    }
  }

 private:
  const Upcoming& upcoming_;
  int share_ = 0;
  int piece_ = 0;
  int row_ = 0;
  int line_ = 0;
};

/// Loads elements of a row in memory as floats.
template <typename M>
[[gnu::always_inline]] inline typename M::Vector load_elements(const void* data, std::int64_t at) {
  if constexpr (M::kBfloat16 || M::kWidens) {
    return M::widen(static_cast<const std::uint16_t*>(data) + at);
  } else {
    return M::load(static_cast<const float*>(data) + at);
  }
}

/// Stores floats as elements of words in scratch.
template <typename M>
[[gnu::always_inline]] inline void store_elements(void* data, std::int64_t at,
                                                  typename M::Vector x) {
  if constexpr (M::kBfloat16) {
    M::narrow(static_cast<std::uint16_t*>(data) + at, x);
  } else {
    M::store(static_cast<float*>(data) + at, x);
  }
}

template <typename M>
void zero_rows(float* to, std::int64_t words) {
  for (std::int64_t i = 0; i < words; i += M::kLanes) M::store(to + i, M::zero());
}

/// Copies rows as words, followed by zero rows up to `padded`.
template <typename M>
void copy_rows(Rows from, int dim, int padded, float* to) {
  const int words = dim / M::kDepth;
  const auto* data = static_cast<const char*>(from.data);
  constexpr std::int64_t kBytes = 4 / M::kDepth;
  for (int r = 0; r < from.count; ++r) {
    if constexpr (M::kWidens) {
      for (int d = 0; d < dim; d += M::kLanes) {
        M::store(to + r * dim + d, load_elements<M>(from.data, r * from.stride + d));
      }
    } else {
      const auto* in = reinterpret_cast<const float*>(data + r * from.stride * kBytes);
      for (int w = 0; w < words; w += M::kLanes) M::store(to + r * words + w, M::load(in + w));
    }
  }
  zero_rows<M>(to + from.count * words, static_cast<std::int64_t>(padded - from.count) * words);
}

/// Rotates pairs (d, d + half) of every row by its position (Su et al., arXiv 2104.09864).
template <typename M>
void rotate_rows(Rows from, int dim, int padded, Rotation rotation, float* to) {
  const int half = rotation.half;
  const int words = dim / M::kDepth;
  for (int r = 0; r < from.count; ++r) {
    const float* cos = rotation.cos + rotation.at(r);
    const float* sin = rotation.sin + rotation.at(r);
    float* row = to + static_cast<std::int64_t>(r) * words;
    for (int d = 0; d < half; d += M::kLanes) {
      const auto low = load_elements<M>(from.data, r * from.stride + d);
      const auto high = load_elements<M>(from.data, r * from.stride + d + half);
      const auto c = M::load(cos + d);
      const auto s = M::load(sin + d);
      store_elements<M>(row, d, M::subtract(M::multiply(low, c), M::multiply(high, s)));
      store_elements<M>(row, d + half, M::fma(high, c, M::multiply(low, s)));
    }
  }
  zero_rows<M>(to + static_cast<std::int64_t>(from.count) * words,
               static_cast<std::int64_t>(padded - from.count) * words);
}

template <typename M>
void load_queries(Rows from, int dim, int padded, Rotation rotation, float* to) {
  if (rotation.half > 0) {
    rotate_rows<M>(from, dim, padded, rotation, to);
  } else {
    copy_rows<M>(from, dim, padded, to);
  }
}

/// Rearranges words [count, words] to panels [count / panel][words][panel].
template <typename M>
void make_panels(const float* from, int count, int words, float* to) {
  constexpr int kLanes = M::kLanes;
  for (int r = 0; r < count; r += kPanel<M>) {
    for (int j = 0; j < kPanel<M>; j += kLanes) {
      for (int w = 0; w < words; w += kLanes) {
        M::transpose(from + static_cast<std::int64_t>(r + j) * words + w, words,
                     to + static_cast<std::int64_t>(r) * words + w * kPanel<M> + j, kPanel<M>);
      }
    }
  }
}

/// Rearranges words [count, words] to words [count / 2, dim] that pair rows 2i and 2i + 1.
template <typename M>
void pair_rows(const float* from, int count, int dim, float* to) {
  const auto* rows = reinterpret_cast<const std::uint16_t*>(from);
  for (int r = 0; r < count; r += 2) {
    const std::uint16_t* first = rows + static_cast<std::int64_t>(r) * dim;
    float* out = to + static_cast<std::int64_t>(r / 2) * dim;
    for (int d = 0; d < dim; d += M::kLanes) M::store(out + d, M::pair(first + d, first + dim + d));
  }
}

/// Adds factor * rows, turned back by the inverse rotation, to `to`.
template <typename M>
void add_rows(const float* rows, int dim, float factor, Rotation rotation, SumRows to) {
  const auto f = M::broadcast(factor);
  const int half = rotation.half;
  for (int r = 0; r < to.count; ++r) {
    const float* in = rows + static_cast<std::int64_t>(r) * dim;
    float* out = to.data + r * to.stride;
    if (half == 0) {
      for (int d = 0; d < dim; d += M::kLanes) {
        M::store(out + d, M::fma(f, M::load(in + d), M::load(out + d)));
      }
      continue;
    }
    const std::int64_t at = rotation.at(r);
    for (int d = 0; d < half; d += M::kLanes) {
      const auto c = M::multiply(f, M::load(rotation.cos + at + d));
      const auto s = M::multiply(f, M::load(rotation.sin + at + d));
      const auto low = M::load(in + d);
      const auto high = M::load(in + d + half);
      M::store(out + d, M::fma(high, s, M::fma(low, c, M::load(out + d))));
      M::store(out + d + half,
               M::subtract(M::fma(high, c, M::load(out + d + half)), M::multiply(low, s)));
    }
  }
}

}  // namespace cadenza::kernels::cpu
