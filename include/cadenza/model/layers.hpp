// SPDX-License-Identifier: Apache-2.0
// Element-wise and reduction kernels of the transformer, forward and backward, on raw device
// pointers. T rows (tokens), C width, F feed-forward width, V vocabulary; row-major. Outputs are
// assigned; gradients of parameters (names d<weight>) are added to. Every reduction has a fixed
// order: no atomics.
//
// Real is the input type of matrix products, Sum = Accumulator<Real> the type of sums. Each kernel
// passes over its rows once and allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/base/range.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/model/residual.hpp"
#include "cadenza/model/shape/activations.hpp"

namespace cadenza::model {

/// Computes x += residual (unless null), then y[t] = x[t] * rstd[t] * weight with rstd[t] = 1 /
/// sqrt(mean(x[t]^2) + eps), the sum in double. residual, x (of one type), y [T, C]; rstd [T].
template <typename Real>
void rms_norm(Residual<Real> residual, Residual<Real> x, const Real* weight, std::int64_t rows,
              std::int64_t width, double eps, Real* y, Accumulator<Real>* rstd);

/// Inputs of rms_norm_gradient.
template <typename Real>
struct NormInputs {
  using Sum = Accumulator<Real>;
  const Sum* dy = nullptr;       ///< [T, C]
  Residual<Real> x;              ///< [T, C]
  const Sum* rstd = nullptr;     ///< [T]
  const Real* weight = nullptr;  ///< [C]
};

/// Outputs of rms_norm_gradient.
template <typename Real>
struct NormGradients {
  using Sum = Accumulator<Real>;
  Residual<Real> residual;  ///< [T, C] gradient that bypassed the norm; null: none. May be dx
  Residual<Real> dx;        ///< [T, C] residual + gradient towards x, all three of one type
  Real* rounded = nullptr;  ///< [T, C] dx as Real; not written where dx is of Real
  Real* y = nullptr;        ///< [T, C] the norm's output, recomputed; null: not wanted
  Sum* dweight = nullptr;   ///< [C] added to
  Sum* partials = nullptr;  ///< scratch of norm_partials() elements
};

/// Computes the gradient of rms_norm from `in` into `out`.
template <typename Real>
void rms_norm_gradient(const NormInputs<Real>& in, const NormGradients<Real>& out,
                       std::int64_t rows, std::int64_t width);

/// Computes the norm of each head: y = x rstd weight, with rstd of the head's D elements and their
/// sum in double. x, y [heads, D]; weight [D].
template <typename Real>
void head_norm(const Real* x, const Real* weight, std::int64_t heads, std::int64_t head_dim,
               double eps, Real* y);

/// What the norms of Q and K read, and their weights.
template <typename Real>
struct HeadNormInputs {
  const Real* q = nullptr;        ///< [T, H, D]
  const Real* k = nullptr;        ///< [T, G, D]
  const Real* weights = nullptr;  ///< [2, D]: of Q, of K
};

/// Computes the gradient of head_norm in place: of each row of `joined` [T, (H + 2 G) D], gradients
/// towards Q and K behind their norms become those before them; that towards V stays.
/// @param dweights  [2, D], added to
/// @param partials  scratch of norm_partials(rows, 2 D) elements
template <typename Real>
void head_norm_gradient(const HeadNormInputs<Real>& in, const AttentionShape& shape,
                        std::int64_t rows, double eps, Real* joined, Accumulator<Real>* dweights,
                        Accumulator<Real>* partials);

/// Adds a bias [C] to all rows of y [T, C].
template <typename Real>
void add_bias(const Real* bias, std::int64_t rows, std::int64_t width, Real* y);

/// Adds the sum of the rows of dy [T, C] to dbias [C].
/// @param partials  scratch of norm_partials() elements
template <typename Real>
void bias_gradient(const Real* dy, std::int64_t rows, std::int64_t width, Accumulator<Real>* dbias,
                   Accumulator<Real>* partials);

/// Computes out [T, F] = silu(gate) * up; gate_up [T, 2F] holds the gate of a row, then its up.
template <typename Real>
void swiglu(const Real* gate_up, std::int64_t rows, std::int64_t width, Real* out);

/// Works in place: gate_up becomes the gradients towards gate and up; hidden [T, F], on entry the
/// gradient towards the output, becomes the output silu(gate) * up, which was not kept.
template <typename Real>
void swiglu_gradient(Real* gate_up, std::int64_t rows, std::int64_t width, Real* hidden);

/// Looks up rows of a table that holds `vocab` of the whole vocabulary: x[t] = table[tokens[t] -
/// vocab.begin], zero for other tokens. table [vocab, C], x [T, C].
/// @param Out  Real or its accumulator, both exact
template <typename Real, typename Out>
void embed(const Real* table, Range vocab, const std::int32_t* tokens, std::int64_t rows,
           std::int64_t width, Out* x);

/// Rows of a microbatch whose tokens are in `vocab`, in token order: the rows of the i-th distinct
/// token, in their own order, are rows[begins[i], begins[i + 1]).
struct RowsByToken {
  std::vector<std::int32_t> rows;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> begins;
};
RowsByToken rows_by_token(std::span<const std::int32_t> tokens, Range vocab);

/// RowsByToken on the device.
struct TokenRuns {
  const std::int32_t* rows = nullptr;
  const std::int32_t* tokens = nullptr;
  const std::int32_t* begins = nullptr;
  std::int64_t count = 0;  ///< number of distinct tokens
};

/// Adds dx to the table's gradient: dtable[token - vocab.begin] += dx[t - rows.begin] for those of
/// the microbatch's `rows` that `runs` lists, in row order. dx [rows, C].
template <typename In>
void embed_gradient(const In* dx, const TokenRuns& runs, Range rows, Range vocab,
                    std::int64_t width, Accumulator<In>* dtable);

/// Optional outputs per target: device pointers, [rows] each, or null. Rows without a target are
/// not written.
template <typename Sum>
struct RowLosses {
  Sum* loss = nullptr;    ///< cross-entropy, not scaled
  Sum* margin = nullptr;  ///< the target's logit - the largest; 0: the model's first choice
};

/// Computes the cross-entropy of `rows` rows of logits [rows, V] against targets (-1: none).
/// dlogits [rows, V] becomes scale * (softmax - onehot), zero in rows without a target; it may be
/// the logits themselves, which are overwritten in any case.
/// @return sum of the rows' losses (not scaled).
template <typename Real>
double cross_entropy(Accumulator<Real>* logits, const std::int32_t* targets, std::int64_t rows,
                     std::int64_t vocab, double scale, Real* dlogits,
                     const RowLosses<Accumulator<Real>>& losses = {});

/// Statistics of rows, with which cross_entropy is computed from slices: each rank has logits
/// [rows, vocab] of a slice of the vocabulary, and the statistics are reduced over ranks between
/// the three calls below. Device pointers, [rows] each; 0 for rows without a target.
template <typename Sum>
struct RowStatistics {
  Sum* largest = nullptr;  ///< largest logit
  Sum* sum = nullptr;      ///< sum of exp(logit - largest)
  Sum* picked = nullptr;   ///< the target's logit - largest
};

/// Writes the largest logits of the slice to `largest`, to be reduced by maximum.
template <typename Sum>
void slice_largest(const Sum* logits, const std::int32_t* targets, std::int64_t rows, Range vocab,
                   const RowStatistics<Sum>& statistics);

/// Reads `largest` and writes the slice's `sum`, and `picked` or 0, both to be reduced by sum. The
/// logits become exp(logit - largest).
template <typename Sum>
void slice_sums(Sum* logits, const std::int32_t* targets, std::int64_t rows, Range vocab,
                const RowStatistics<Sum>& statistics);

/// Computes dlogits as cross_entropy does, from the exponentials and the reduced statistics.
/// @return sum of the rows' losses (not scaled) over the whole vocabulary
template <typename Real>
double slice_gradient(const Accumulator<Real>* exponentials, const std::int32_t* targets,
                      std::int64_t rows, Range vocab, double scale,
                      const RowStatistics<Accumulator<Real>>& statistics, Real* dlogits,
                      const RowLosses<Accumulator<Real>>& losses = {});

/// Rounds: to[i] = Real(from[i]).
template <typename Real>
void round(const Accumulator<Real>* from, std::int64_t count, Real* to);

template <typename Sum>
void clear(Sum* values, std::int64_t count);

template <typename Sum>
void copy(const Sum* from, std::int64_t count, Sum* to);

/// The parts of a shard of a sum, in rows of a tensor group's ranks: that of this rank, and those
/// that arrived from the ranks before it, the nearest first.
template <typename Part>
struct ShardParts {
  const Part* own = nullptr;
  const Part* arrived = nullptr;  ///< [ranks - 1, elements of a shard]
  int rank = 0;
  int ranks = 1;
  KOKKOS_INLINE_FUNCTION const Part* of(int other, std::int64_t elements) const {
    return other == rank ? own : arrived + ((rank - other + ranks) % ranks - 1) * elements;
  }
};

/// Adds the parts of a shard [rows, width] in the order of ranks, in the accumulator's type.
template <typename Part, typename Out>
void sum_parts(const ShardParts<Part>& parts, std::int64_t rows, std::int64_t width, Out* sum);

/// Adds: to = a + b, in the accumulator's type; `to` may be `a` or `b`.
template <typename T>
void add(const T* a, const T* b, std::int64_t count, T* to);

/// Returns the sum of squares in double.
template <typename Sum>
double sum_of_squares(const Sum* values, std::int64_t count);

// --- Frequencies of the rotary embedding (RoPE, arXiv 2104.09864) ---
// Their scaling is for documents longer than those of training.

/// Returns f_d = theta^(-2 d / head_dim) for pairs d in [0, head_dim / 2), scaled by rope.scaling:
/// - linear: f_d / factor (position interpolation, arXiv 2306.15595);
/// - yarn: f_d / factor if a pair turns less than beta_slow times within original_context tokens,
///   f_d if it turns more than beta_fast times, a ramp over d between them, which begins and ends
///   at whole pairs unless `truncate` is false; rotated vectors grow by the concentration factor
///   (YaRN, arXiv 2309.00071);
/// - llama3: f_d / factor below low_frequency turns, f_d above high_frequency, smooth over the
///   number of turns between them (arXiv 2407.21783, section 3.4, as in its code).
attention::RotaryFrequencies rotary_frequencies(const config::Rope& rope, int head_dim);

}  // namespace cadenza::model
