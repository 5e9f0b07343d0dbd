// SPDX-License-Identifier: Apache-2.0
// Element-wise and reduction kernels of the transformer, forward and backward, on raw device
// pointers. T rows (tokens), C width, F feed-forward width, V vocabulary; row-major. Outputs are
// assigned; gradients of parameters (names d<weight>) are added to. Every reduction has a fixed
// order: no atomics.
#pragma once

#include <cstdint>

namespace cadenza::model {

/// y[t] = x[t] * rstd[t] * weight with rstd[t] = 1 / sqrt(mean(x[t]^2) + eps). x, y [T, C]; rstd
/// [T].
template <typename Real>
void rms_norm(const Real* x, const Real* weight, std::int64_t rows, std::int64_t width, double eps,
              Real* y, Real* rstd);

/// dx += gradient of rms_norm towards x; dweight [C] += towards the weight. dy, x, dx [T, C].
template <typename Real>
void rms_norm_gradient(const Real* dy, const Real* x, const Real* weight, const Real* rstd,
                       std::int64_t rows, std::int64_t width, Real* dx, Real* dweight);

/// out = silu(gate) * up, all [count].
template <typename Real>
void swiglu(const Real* gate, const Real* up, std::int64_t count, Real* out);

/// In place: gate, up become the gradients towards them; out becomes silu(gate) * up again (the
/// activation is not kept). dout [count].
template <typename Real>
void swiglu_gradient(const Real* dout, std::int64_t count, Real* gate, Real* up, Real* out);

/// x[t] = table[tokens[t]]. table [V, C], x [T, C].
template <typename Real>
void embed(const Real* table, const std::int32_t* tokens, std::int64_t rows, std::int64_t width,
           Real* x);

/// dtable[tokens[t]] += dx[t], in token order.
template <typename Real>
void embed_gradient(const Real* dx, const std::int32_t* tokens, std::int64_t rows,
                    std::int64_t width, Real* dtable);

/// Cross-entropy of `rows` rows of logits [rows, V] against targets (-1: the row has none).
/// Replaces the logits by scale * (softmax - onehot), rows without a target by zero.
/// @return sum of the rows' losses (not scaled).
template <typename Real>
double cross_entropy(Real* logits, const std::int32_t* targets, std::int64_t rows,
                     std::int64_t vocab, double scale);

/// Sum of squares in double.
template <typename Real>
double sum_of_squares(const Real* values, std::int64_t count);

}  // namespace cadenza::model
