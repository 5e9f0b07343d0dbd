// SPDX-License-Identifier: Apache-2.0
// The Llama-style transformer without its core attention: everything before Q, K, V and after O of
// every layer, forward and backward, written by hand. The executor calls the parts in the order of
// a program and fills the attention slot in between.
//
// T tokens of the microbatch, C width, H query heads, G key-value heads, D head_dim, F feed-forward
// width, V vocabulary. Activations are assigned, gradients of parameters are added to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/model/parameters.hpp"

namespace cadenza::model {

/// One microbatch: token ids, position of each token in its document, next token of its document
/// (-1: none).
struct TokenBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> targets;
};

/// Rows of the attention slot of one layer, all on the device.
template <typename Real>
struct AttentionSlot {
  Real* q = nullptr;      ///< [T, H, D], not rotated
  Real* k = nullptr;      ///< [T, G, D], rotated
  Real* v = nullptr;      ///< [T, G, D]
  Real* out = nullptr;    ///< [T, H, D]
  Real* lse = nullptr;    ///< [T, H]
  Real* dout = nullptr;   ///< [T, H, D]
  Real* delta = nullptr;  ///< [T, H]
  Real* dq = nullptr;     ///< [T, H, D]
  Real* dk = nullptr;     ///< [T, G, D], of the rotated K
  Real* dv = nullptr;     ///< [T, G, D]
};

template <typename Real>
class Llama {
 public:
  /// @param tokens  rows of a microbatch; all memory is allocated here, none during a step
  Llama(const config::Model& model, std::int64_t tokens, const kernels::RotaryTable<Real>& rotary,
        Parameters<Real>& parameters, MemoryLedger& ledger);

  /// Sets the microbatch that the following calls work on (at most `tokens` rows).
  void set_batch(const TokenBatch& batch);

  void embed();
  void attention_inputs(int layer);   ///< residual stream -> q, rotated k, v of the slot
  void attention_outputs(int layer);  ///< out of the slot -> residual stream of the next layer

  /// Final norm, logits in chunks, loss and the gradient of `scale` times the sum of the token
  /// losses.
  /// @return the sum over targets, not scaled
  double loss(double scale);
  void attention_outputs_gradient(int layer);  ///< -> dout of the slot
  void attention_inputs_gradient(int layer);   ///< dq, dk, dv of the slot -> residual gradient
  void embed_gradient();

  AttentionSlot<Real> slot(int layer);
  std::int64_t rows() const { return rows_; }

 private:
  struct Layer {
    Array<Real> input;     ///< [T, C] residual stream
    Array<Real> rstd1;     ///< [T]
    Array<Real> q, k, v;   ///< slot
    Array<Real> out, lse;  ///< slot
    Array<Real> middle;    ///< [T, C] residual stream after attention
    Array<Real> rstd2;     ///< [T]
    Array<Real> gate, up;  ///< [T, F]
  };
  Real* value(std::int64_t offset) { return parameters_.values.data() + offset; }
  Real* gradient(std::int64_t offset) { return parameters_.gradients.data() + offset; }
  Real* next_input(int layer);
  /// y [T, out] = x [T, in] W^T (+ y when adding).
  void project(const Real* x, std::int64_t weight, std::int64_t in, std::int64_t out, bool add,
               Real* y);
  /// dx [T, in] = dy [T, out] W (+ dx when adding) and dW += dy^T x.
  void project_gradient(const Real* x, const Real* dy, std::int64_t weight, std::int64_t in,
                        std::int64_t out, bool add, Real* dx);

  config::Model model_;
  kernels::RotaryTable<Real> rotary_;
  Parameters<Real>& parameters_;
  std::int64_t rows_ = 0;
  Array<std::int32_t> tokens_, positions_, targets_;
  std::vector<Layer> layers_;
  Array<Real> last_, rstd_last_;             ///< output of the last layer [T, C], [T]
  Array<Real> normed_, dnormed_, dx_;        ///< [T, C] scratch, scratch, residual gradient
  Array<Real> activation_, dactivation_;     ///< [T, F]
  Array<Real> dout_, delta_, dq_, dk_, dv_;  ///< gradients of the slot
  Array<Real> logits_;                       ///< [chunk, V]
  std::int64_t logit_rows_ = 0;
};

}  // namespace cadenza::model
