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

/// Rows whose logits are made at a time, for a microbatch of `rows`: the whole [T, V] is never
/// held.
std::int64_t logit_rows(std::int64_t vocab, std::int64_t rows);

/// The attention of a model as kernels take it.
kernels::AttentionShape attention_shape(const config::Model& model);

/// Rows of the attention slot of one layer, all on the device.
template <typename Real>
struct AttentionSlot {
  using Sum = Accumulator<Real>;
  Real* q = nullptr;     ///< [T, H, D], not rotated
  Real* k = nullptr;     ///< [T, G, D], rotated
  Real* v = nullptr;     ///< [T, G, D]
  Sum* out = nullptr;    ///< [T, H, D]
  Sum* lse = nullptr;    ///< [T, H]
  Real* dout = nullptr;  ///< [T, H, D]
  Sum* delta = nullptr;  ///< [T, H]
  Sum* dq = nullptr;     ///< [T, H, D]
  Sum* dk = nullptr;     ///< [T, G, D], of the rotated K
  Sum* dv = nullptr;     ///< [T, G, D]
};

template <typename Real>
class Llama {
 public:
  using Sum = Accumulator<Real>;

  /// @param tokens  rows of a microbatch; all memory is allocated here, none during a step
  Llama(const config::Model& model, std::int64_t tokens, const kernels::RotaryTable<Sum>& rotary,
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
    Array<Sum> input;     ///< [T, C] residual stream
    Array<Sum> rstd1;     ///< [T]
    Array<Real> q, k, v;  ///< slot
    Array<Sum> out, lse;  ///< slot
    Array<Sum> middle;    ///< [T, C] residual stream after attention
    Array<Sum> rstd2;     ///< [T]
    Array<Real> gate_up;  ///< [T, 2F]: gate and up of a row, one after the other
  };
  Layer& at(int layer) { return layers_[static_cast<std::size_t>(layer)]; }
  const LayerOffsets& offsets(int layer) const {
    return parameters_.table.layers[static_cast<std::size_t>(layer)];
  }
  const Sum* value(std::int64_t offset) const { return parameters_.values.data() + offset; }
  Sum* gradient(std::int64_t offset) { return parameters_.gradients.data() + offset; }
  /// The residual stream that enters a layer, the last one's output after the last.
  Sum* stream(int layer);
  /// What the feed-forward of the layer before added to, still without it; null before layer 0.
  const Sum* residual(int layer);
  /// `values` [T, C] as matrix products read them: rounded to `rounded`, or themselves.
  const Real* as_real(const Sum* values, Real* rounded);
  /// y [T, out] = x [T, in] W^T.
  template <typename Out>
  void project(const Real* x, std::int64_t weight, std::int64_t in, std::int64_t out, Out* y);
  /// dx [T, in] = dy [T, out] W.
  template <typename Out>
  void project_back(const Real* dy, std::int64_t weight, std::int64_t in, std::int64_t out,
                    Out* dx);
  /// dW += dy^T x.
  void weight_gradient(const Real* x, const Real* dy, std::int64_t weight, std::int64_t in,
                       std::int64_t out);

  /// From dnormed_: dx_ and rounded_ grow by the gradient of a norm, normed_ is its output again.
  void norm_gradient(const Sum* x, const Sum* rstd, std::int64_t weight);

  config::Model model_;
  kernels::RotaryTable<Sum> rotary_;
  Parameters<Real>& parameters_;
  std::int64_t rows_ = 0;
  Array<std::int32_t> tokens_, positions_, targets_;
  std::vector<Layer> layers_;
  Array<Sum> last_, rstd_last_;      ///< output of the last layer [T, C], [T]
  Array<Real> normed_;               ///< [T, C] scratch
  Array<Sum> dnormed_, dx_;          ///< [T, C] scratch, residual gradient
  Array<Real> rounded_;              ///< [T, C] dx as matrix products read it
  Array<Real> hidden_;               ///< [T, F] scratch; also [T, (H + 2 G) D]
  Array<Real> dout_;                 ///< gradients of the slot
  Array<Sum> delta_, dq_, dk_, dv_;  ///< gradients of the slot
  Array<Sum> logits_;                ///< [chunk, V]
  Array<Real> dlogits_;              ///< [chunk, V]; `logits` itself where the types are the same
  Array<Sum> norm_partials_;         ///< [row blocks, C] of rms_norm_gradient
  std::int64_t logit_rows_ = 0;
};

}  // namespace cadenza::model
