// SPDX-License-Identifier: Apache-2.0
// Functions that are compiled once per instruction set: work on one tile of queries and one tile of
// keys of one head. Only plain structures and function pointers, so that code compiled for one set
// is never linked into another. forward.cpp and backward.cpp call them.
//
// D head_dim; W words of depth of a row: D (float32) or D / 2 (bfloat16). "Panels" are groups of
// `panel` columns, [W, panel] each, as the right factor of a product over head_dim.
#pragma once

#include <cstdint>

namespace cadenza::kernels::cpu {

inline constexpr int kQueryTile = 128;         ///< forward: queries of a tile
inline constexpr int kKeyTile = 128;           ///< forward: keys of a tile
inline constexpr int kKeyRows = kKeyTile + 8;  ///< room for whole register blocks of rows
/// head_dim must be a multiple of this; with others, float32 takes the portable kernels, and
/// bfloat16 is refused.
inline constexpr int kDimStep = 32;
inline constexpr int kLargestDim = 256;

/// Rows of one head in memory: element d of row r at data[r * stride + d]; elements of the format.
struct Rows {
  const void* data = nullptr;
  std::int64_t stride = 0;
  int count = 0;
};

/// Rows of sums, which are float32 in every format.
struct SumRows {
  float* data = nullptr;
  std::int64_t stride = 0;
  int count = 0;
};

/// Rows that the next call reads, to be prefetched while this one computes: their pieces are one
/// token apart, which hardware does not predict.
struct Upcoming {
  static constexpr int kMost = 3;
  struct Pieces {
    const char* data;
    std::int64_t stride;  ///< bytes
    int rows;
    int lines;  ///< cache lines of a row
  };
  Pieces pieces[kMost];
  int count = 0;
  /// `stride` and `dim` in elements of `bytes`.
  [[gnu::always_inline]] void add(const void* data, std::int64_t stride, int rows, int dim,
                                  int bytes) {
    constexpr int kLine = 64;
    if (data == nullptr || rows == 0) return;
    pieces[count++] = {static_cast<const char*>(data), stride * bytes, rows,
                       (dim * bytes + kLine - 1) / kLine};
  }
};

/// Row r is rotated by row min(max(0, first + r * step), last) of a table of cos and sin, `half`
/// each; half 0: no rotation.
struct Rotation {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int half = 0;
  std::int64_t first = 0;
  std::int64_t step = 0;
  std::int64_t last = 0;

  [[gnu::always_inline]] std::int64_t at(int row) const {
    const std::int64_t position = first + row * step;
    return (position < 0 ? 0 : position < last ? position : last) * half;
  }
};

/// Keys of a tile that the rows of a query tile see: rows [first, last) see keys [row + low, row +
/// high) of [skipped, keys); other rows see none. Both ends grow with the row. `skipped` is 0 in
/// the forward pass.
struct Visible {
  int first = 0;
  int last = 0;
  int keys = 0;
  int skipped = 0;
  std::int64_t low = 0;
  std::int64_t high = 0;

  /// Key behind the last one that a row sees; 0: none.
  [[gnu::always_inline]] int of(int row) const {
    if (row < first || row >= last) return 0;
    const std::int64_t seen = row + high;
    return seen < 0 ? 0 : seen < keys ? static_cast<int>(seen) : keys;
  }
  /// First key that a row may see.
  [[gnu::always_inline]] int begin_of(int row) const {
    const std::int64_t begin = row + low;
    return begin <= skipped ? skipped : begin < keys ? static_cast<int>(begin) : keys;
  }
};

/// Scratch of a forward query tile of one head. Sizes and layouts here and below are those of the
/// vector kernels; amx_forward.hpp and amx_backward.hpp lay out some of them differently.
struct ForwardHead {
  float* queries;  ///< panels over queries
  float* out;      ///< [kQueryTile, D], not divided by the sum yet
  float* peak;     ///< [kQueryTile] running maximum of the scores q . k, without 1 / sqrt(D)
  float* sum;      ///< [kQueryTile] running sum of e^((score - peak) / sqrt(D))
  float* lost;     ///< [kQueryTile] rounding errors of the sum
};

/// Scratch of a forward tile of keys and intermediate results of a step.
struct ForwardKeys {
  float* keys;           ///< words [kKeyRows, W]
  float* values;         ///< words [kKeyRows / depth, D]: pairs of keys in bfloat16
  float* scores;         ///< [kKeyRows, panel]; two of them if kernels overlap panels
  float* probabilities;  ///< words [kKeyRows / depth, panel]: `scores` itself in float32
  float* rows;           ///< words [kKeyRows, W]
};

/// Scratch of a backward tile of keys of one key-value head; N = gradient_queries, K =
/// gradient_keys of the table.
struct BackwardKeys {
  float* key_panels;    ///< panels over keys
  float* value_panels;  ///< panels over keys
  float* keys;          ///< words [K / depth, D]
  float* dk;            ///< [K, D] sums, not multiplied by 1 / sqrt(D) yet
  float* dv;            ///< [K, D] sums
};

/// Scratch of a backward tile of queries of one head.
struct BackwardQueries {
  float* q;            ///< words [N, W], rotated
  float* dout;         ///< words [N, W]
  float* q_pairs;      ///< words [N / depth, D]: `q` itself in float32
  float* dout_pairs;   ///< words [N / depth, D]: `dout` itself in float32
  float* lse;          ///< [N]; +inf: probability 0
  float* minus_delta;  ///< [N]
  float* p;            ///< [N, K] probabilities
  float* p_pairs;      ///< words [N / depth, K]: `p` itself in float32
  float* ds;           ///< words [N, K / depth] gradients of logits
  float* ds_pairs;     ///< words [N / depth, K]: `ds` itself in float32
  float* dq;           ///< [N, D], not multiplied by 1 / sqrt(D) yet
};

struct TileKernels {
  const char* name;
  int panel;
  int depth;             ///< elements in a word
  int gradient_queries;  ///< backward: queries of a tile
  int gradient_keys;     ///< backward: keys of a tile

  /// Called around the work of a thread if the instruction set has state of its own; otherwise
  /// null.
  void (*begin_thread)();
  void (*end_thread)();

  /// Initialises a state without keys.
  void (*forward_begin)(const ForwardHead& head, int dim);
  /// Loads queries: before the first step, and again before those of another rotation.
  void (*forward_load_queries)(const ForwardHead& head, const ForwardKeys& scratch, int dim,
                               Rows queries, Rotation rotation);
  void (*forward_load)(const ForwardKeys& tile, int dim, Rows keys, Rows values);
  /// Adds a tile of keys to the state of a head. `scale`: 1 / sqrt(D).
  void (*forward_step)(const ForwardHead& head, const ForwardKeys& tile, int dim, float scale,
                       Visible visible, const Upcoming& upcoming);
  /// Merges the state into (out, lse); rows that saw no key keep their bits.
  void (*forward_end)(const ForwardHead& head, int dim, float scale, SumRows out, SumRows lse);

  /// Loads all but dk and dv. `rows`: scratch words [K, W].
  void (*backward_load_keys)(const BackwardKeys& tile, float* rows, int dim, Rows keys,
                             Rows values);
  void (*backward_load_queries)(const BackwardQueries& tile, int dim, Rows queries,
                                Rotation rotation, Rows dout, SumRows lse, SumRows delta);
  /// Adds the pair of tiles to dk and dv, and assigns dq.
  void (*backward_step)(const BackwardKeys& keys, const BackwardQueries& queries, int dim,
                        float scale, Visible visible, const Upcoming& upcoming);
  /// Adds the sums of a tile of keys to memory; dk times `scale`.
  void (*backward_end)(const BackwardKeys& tile, int dim, float scale, SumRows dk, SumRows dv);
  /// Computes to += factor * rows turned back by `rotation`; rows [to.count, D].
  void (*add_rows)(const float* rows, int dim, float factor, Rotation rotation, SumRows to);
};

/// Null if the build or the processor lacks the instruction set.
const TileKernels* avx2_kernels();
const TileKernels* avx512_kernels();
const TileKernels* avx512_bfloat16_kernels();
/// Kernels for rows stored as bfloat16 and computed in float32: only storing rounds to bfloat16.
const TileKernels* avx2_widening_kernels();
const TileKernels* avx512_widening_kernels();
/// Also null if the system refuses the tile state.
const TileKernels* amx_bfloat16_kernels();

/// Whether the build and the processor have AMX, but the system refuses its state.
bool amx_was_refused();

/// The AMX kernels with tiles in plain C++, on every processor: for tests of packing, masks and
/// order with sanitizers, which cannot see the loads of tile instructions.
const TileKernels* software_tile_kernels();

}  // namespace cadenza::kernels::cpu
