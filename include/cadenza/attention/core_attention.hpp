// SPDX-License-Identifier: Apache-2.0
// Kernels around core attention: initial outputs, merging of partial ones, delta of the backward
// pass, and the rotary embedding of keys. Device pointers; rows are [heads, head_dim] and
// contiguous.
//
// Later kernels may read the results of a call; the host must first call fence().
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/base/memory.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/kernels/device.hpp"

namespace cadenza::attention {

/// Some heads of rows that hold `row_heads`: head h of row r is at (r * row_heads + h).
struct HeadSlice {
  int row_heads = 1;
  Range heads;  ///< inside [0, row_heads)
};

/// Sets the result of attention to no keys: out [rows, heads, head_dim] = 0, lse [rows, heads] =
/// -inf.
template <typename Real>
void initialise(Real* out, Real* lse, std::int64_t rows, int heads, int head_dim);

/// Initialises some heads of [rows, slice.row_heads, head_dim]; the others keep their values.
template <typename Real>
void initialise(Real* out, Real* lse, std::int64_t rows, const HeadSlice& slice, int head_dim);

/// Merges the result for other keys into (out, lse), both [rows, heads, head_dim] and [rows,
/// heads]: lse = log(exp(lse) + exp(part_lse)), out weighted by exp(lse_p - lse). A part with lse
/// -inf has weight 0 whatever its out is; two empty parts give out = 0, lse = -inf. NaN stays NaN.
template <typename Real>
void merge_partial(Real* out, Real* lse, const Real* part_out, const Real* part_lse,
                   std::int64_t rows, int heads, int head_dim);

/// Merges into some heads of (out, lse), [rows, slice.row_heads, head_dim] and [rows,
/// slice.row_heads]; the part is compact: [rows, slice.heads.size(), head_dim].
template <typename Real>
void merge_partial(Real* out, Real* lse, const HeadSlice& slice, const Real* part_out,
                   const Real* part_lse, std::int64_t rows, int head_dim);

/// Computes delta [rows, heads] = sum over head_dim of dout * out, with `out` the merged output, of
/// Real or its accumulator.
template <typename Real, typename Out>
void delta(const Out* out, const Real* dout, std::int64_t rows, int heads, int head_dim,
           Accumulator<Real>* delta);

/// Rotation of the pairs of a head by position.
struct RotaryFrequencies {
  std::vector<double> of_pair;  ///< radians per token, pairs (d, d + head_dim / 2) of a head
  double magnitude = 1;         ///< factor of rotated vectors
};

/// Makes the table of magnitude * cos and sin of position * of_pair[d], computed in double, for
/// positions [0, positions). The ledger counts it as attention memory. An odd head_dim leaves its
/// last element unrotated; with head_dim 1 there is no pair and the table is empty. Sum is an
/// accumulator type: float or double.
template <typename Sum>
kernels::RotaryTable<Sum> make_rotary_table(MemoryLedger& ledger, std::int64_t positions,
                                            const RotaryFrequencies& frequencies);

/// Rotates k [rows, kv_heads, head_dim] in place, row r by positions(r) (document-relative, inside
/// the table). Does nothing without a table.
template <typename Real>
void rotate_keys(const kernels::RotaryTable<Accumulator<Real>>& table, Real* k,
                 const Array<std::int32_t>& positions, std::int64_t rows, int kv_heads,
                 int head_dim);

/// Turns the gradient of rotated keys into that of the keys before rotate_keys: dk [rows, kv_heads,
/// head_dim], in place.
template <typename Sum>
void turn_back_keys(const kernels::RotaryTable<Sum>& table, Sum* dk,
                    const Array<std::int32_t>& positions, std::int64_t rows, int kv_heads,
                    int head_dim);

/// The gradients that attention_backward adds to, all [rows, heads, head_dim] with H or G heads.
template <typename Sum>
struct InputGradients {
  const Sum* dq = nullptr;  ///< with respect to the unrotated Q
  const Sum* dk = nullptr;  ///< with respect to the rotated K
  const Sum* dv = nullptr;
};

/// Concatenates the gradients of each row for one matrix product: joined [rows, (H + 2 G) *
/// head_dim] = dq, dk turned back by positions(row), dv, each rounded to Real.
template <typename Real>
void join_gradients(const kernels::RotaryTable<Accumulator<Real>>& table,
                    const AttentionShape& shape, const InputGradients<Accumulator<Real>>& gradients,
                    const Array<std::int32_t>& positions, std::int64_t rows, Real* joined);

}  // namespace cadenza::attention
