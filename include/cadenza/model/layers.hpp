// SPDX-License-Identifier: Apache-2.0
// Element-wise and reduction kernels of the transformer, forward and backward, on raw device
// pointers. T rows (tokens), C width, F feed-forward width, V vocabulary; row-major. Outputs are
// assigned; gradients of parameters (names d<weight>) are added to. Every reduction has a fixed
// order: no atomics.
//
// Real is what matrix products read and write, Sum = Accumulator<Real> what is added up in. Each
// kernel passes over its rows once; nothing is allocated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/base/range.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/bfloat16.hpp"

namespace cadenza::model {

/// x += residual (unless null), then y[t] = x[t] * rstd[t] * weight with rstd[t] = 1 /
/// sqrt(mean(x[t]^2) + eps), the sum in double. residual, x, y [T, C]; rstd [T].
template <typename Real>
void rms_norm(const Accumulator<Real>* residual, Accumulator<Real>* x,
              const Accumulator<Real>* weight, std::int64_t rows, std::int64_t width, double eps,
              Real* y, Accumulator<Real>* rstd);

/// What the gradient of rms_norm reads.
template <typename Sum>
struct NormInputs {
  const Sum* dy = nullptr;      ///< [T, C]
  const Sum* x = nullptr;       ///< [T, C]
  const Sum* rstd = nullptr;    ///< [T]
  const Sum* weight = nullptr;  ///< [C]
};

/// What it writes.
template <typename Real>
struct NormGradients {
  using Sum = Accumulator<Real>;
  const Sum* residual = nullptr;  ///< [T, C] gradient that bypassed the norm; null: none. May be dx
  Sum* dx = nullptr;              ///< [T, C] residual + gradient towards x
  Real* rounded = nullptr;        ///< [T, C] dx as Real; not written where Real is Sum
  Real* y = nullptr;              ///< [T, C] the norm's output again; null: not wanted
  Sum* dweight = nullptr;         ///< [C] added to
  Sum* partials = nullptr;        ///< scratch of norm_partials() elements
};

template <typename Real>
void rms_norm_gradient(const NormInputs<Accumulator<Real>>& in, const NormGradients<Real>& out,
                       std::int64_t rows, std::int64_t width);

/// Elements of the scratch of rms_norm_gradient: its sums over rows are made in blocks of rows that
/// do not depend on the number of threads, so neither does the result.
std::int64_t norm_partials(std::int64_t rows, std::int64_t width);

/// out [T, F] = silu(gate) * up; gate_up [T, 2F] holds gate and up of a row one after the other.
template <typename Real>
void swiglu(const Real* gate_up, std::int64_t rows, std::int64_t width, Real* out);

/// In place: gate_up becomes the gradients towards gate and up; hidden [T, F], the gradient towards
/// the output, becomes that output, silu(gate) * up, again (it is not kept).
template <typename Real>
void swiglu_gradient(Real* gate_up, std::int64_t rows, std::int64_t width, Real* hidden);

/// Rows of a table that is `vocab` of the whole: x[t] = table[tokens[t] - vocab.begin], zero for
/// other tokens. table [vocab, C], x [T, C].
template <typename Sum>
void embed(const Sum* table, Range vocab, const std::int32_t* tokens, std::int64_t rows,
           std::int64_t width, Sum* x);

/// The rows of a microbatch whose tokens are in `vocab`, in the order of their tokens; the rows of
/// a token, in their own order, are [begins[i], begins[i + 1]) for the i-th token that there is.
struct RowsByToken {
  std::vector<std::int32_t> rows;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> begins;
};
RowsByToken rows_by_token(std::span<const std::int32_t> tokens, Range vocab);

/// The same on the device.
struct TokenRuns {
  const std::int32_t* rows = nullptr;
  const std::int32_t* tokens = nullptr;
  const std::int32_t* begins = nullptr;
  std::int64_t count = 0;  ///< of tokens
};

/// dtable[token - vocab.begin] += dx[t - rows.begin] for those of the microbatch's `rows` that are
/// in `runs`, in the order of the rows. dx [rows, C].
template <typename Sum>
void embed_gradient(const Sum* dx, const TokenRuns& runs, Range rows, Range vocab,
                    std::int64_t width, Sum* dtable);

/// What becomes of each target, where somebody asks: device pointers, [rows] each, or null. Rows
/// without a target are left alone.
template <typename Sum>
struct RowLosses {
  Sum* loss = nullptr;    ///< cross-entropy, not scaled
  Sum* margin = nullptr;  ///< the target's logit - the largest; 0: it is the model's first choice
};

/// Cross-entropy of `rows` rows of logits [rows, V] against targets (-1: the row has none).
/// dlogits [rows, V] becomes scale * (softmax - onehot), zero in rows without a target; it may be
/// the logits themselves, which are overwritten in any case.
/// @return sum of the rows' losses (not scaled).
template <typename Real>
double cross_entropy(Accumulator<Real>* logits, const std::int32_t* targets, std::int64_t rows,
                     std::int64_t vocab, double scale, Real* dlogits,
                     const RowLosses<Accumulator<Real>>& losses = {});

/// What cross_entropy is made of where each rank has logits [rows, vocab] of a slice of the
/// vocabulary, and what is known of a row is reduced over the ranks in between. Device pointers,
/// [rows] each; rows without a target say nothing.
template <typename Sum>
struct RowStatistics {
  Sum* largest = nullptr;  ///< logit
  Sum* sum = nullptr;      ///< of exp(logit - largest)
  Sum* picked = nullptr;   ///< the target's logit - largest
};

/// Largest logits of the slice: reduced by their maximum.
template <typename Sum>
void slice_largest(const Sum* logits, const std::int32_t* targets, std::int64_t rows, Range vocab,
                   const RowStatistics<Sum>& statistics);

/// Reads `largest`; the slice's sum, and what it picked or 0: both reduced by their sum. The logits
/// become exp(logit - largest).
template <typename Sum>
void slice_sums(Sum* logits, const std::int32_t* targets, std::int64_t rows, Range vocab,
                const RowStatistics<Sum>& statistics);

/// From the exponentials and the reduced statistics: dlogits as of cross_entropy.
/// @return sum of the rows' losses (not scaled), of the whole vocabulary
template <typename Real>
double slice_gradient(const Accumulator<Real>* exponentials, const std::int32_t* targets,
                      std::int64_t rows, Range vocab, double scale,
                      const RowStatistics<Accumulator<Real>>& statistics, Real* dlogits,
                      const RowLosses<Accumulator<Real>>& losses = {});

/// to[i] = from[i] rounded.
template <typename Real>
void round(const Accumulator<Real>* from, std::int64_t count, Real* to);

template <typename Sum>
void clear(Sum* values, std::int64_t count);

template <typename Sum>
void copy(const Sum* from, std::int64_t count, Sum* to);

/// to = a + b; `to` may be one of them.
template <typename Sum>
void add(const Sum* a, const Sum* b, std::int64_t count, Sum* to);

/// Sum of squares in double.
template <typename Sum>
double sum_of_squares(const Sum* values, std::int64_t count);

// Frequencies of the rotary embedding (RoPE, arXiv 2104.09864) and how they are scaled for
// documents that are longer than those of training.

/// f_d = theta^(-2 d / head_dim) for pairs d in [0, head_dim / 2), scaled as rope.scaling says:
/// - linear: f_d / factor (position interpolation, arXiv 2306.15595);
/// - yarn: f_d / factor where a pair turns less than beta_slow times within original_context
///   tokens, f_d where it turns more than beta_fast times, a ramp over d between them; rotated
///   vectors grow by the concentration factor (YaRN, arXiv 2309.00071);
/// - llama3: the same with low_frequency and high_frequency, smooth over the number of turns
///   (arXiv 2407.21783, section 3.4, as its code has it).
attention::RotaryFrequencies rotary_frequencies(const config::Rope& rope, int head_dim);

}  // namespace cadenza::model
