// SPDX-License-Identifier: Apache-2.0
// The activations of a rank's part of the model: what each microbatch in flight keeps for its
// backward pass, and one set of everything else. What is computed again instead of kept
// (run.recompute) is one array, which all layers of all buffers name.
//
// R rows of a microbatch, r = R / tensor_size of them between the products; C, H, G, D, F, V of the
// part (PartShape).
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/bfloat16.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/model/part.hpp"

namespace cadenza::model {

/// Room for microbatches.
struct Capacity {
  std::int64_t rows = 0;  ///< of a microbatch, a multiple of tensor_size
  int buffers = 1;        ///< microbatches x chunks in flight
  config::DeviceKind device = config::DeviceKind::host;
};

template <typename Real>
struct LayerActivations {
  using Sum = Accumulator<Real>;
  Array<Sum> input;     ///< [r, C] residual stream
  Array<Sum> rstd1;     ///< [r]
  Array<Real> q, k, v;  ///< [R, H D], [R, G D], [R, G D]
  Array<Sum> out, lse;  ///< [R, H D], [R, H]
  Array<Sum> middle;    ///< [r, C] residual stream after attention
  Array<Sum> rstd2;     ///< [r]
  Array<Real> gate_up;  ///< [R, 2F]: gate and up of a row, one after the other
};

/// One chunk of one microbatch in flight.
template <typename Real>
struct ActivationBuffer {
  std::int64_t rows = 0;                           ///< of the microbatch, at most R
  Array<std::int32_t> tokens, positions, targets;  ///< [R]
  std::int64_t run_count = 0;                  ///< as TokenRuns, where the part has the embedding
  Array<std::int32_t> run_rows, run_tokens;    ///< [R]
  Array<std::int32_t> run_begins;              ///< [R + 1]
  std::vector<LayerActivations<Real>> layers;  ///< of the chunk
  Array<Accumulator<Real>> last;               ///< [r, C] output of the chunk's last layer
};

template <typename Real>
struct Activations {
  using Sum = Accumulator<Real>;
  std::vector<ActivationBuffer<Real>> buffers;
  // Of the backward pass of one microbatch, from one operation to the next.
  Array<Sum> dx;          ///< [r, C] residual gradient
  Array<Real> rounded;    ///< [r, C] as matrix products read it; `dx` where the types are the same
  Array<Real> dout;       ///< [R, H D]
  Array<Sum> delta;       ///< [R, H]
  Array<Sum> dq, dk, dv;  ///< [R, H D], [R, G D], [R, G D]
  // Of one operation.
  Array<Real> normed;        ///< [r, C] and [R, H D]
  Array<Sum> dnormed;        ///< [r, C]
  Array<Real> gathered;      ///< [R, C]; empty without a tensor group
  Array<Sum> partial;        ///< [R, C]; empty without a tensor group
  Array<Real> hidden;        ///< [R, F] and [R, (H + 2 G) D]
  Array<Sum> norm_partials;  ///< of rms_norm_gradient
  // Of the loss; empty where the part has no head.
  Array<Sum> rstd_last;         ///< [r]
  std::int64_t logit_rows = 0;  ///< rows whose logits are made at a time
  Array<Sum> logits;            ///< [logit_rows, V]
  Array<Real> dlogits;          ///< [logit_rows, V]; `logits` itself where the types are the same
  Array<Sum> statistics;        ///< [3, logit_rows]; empty without a tensor group
  Array<Sum> losses;            ///< [2, R] as RowLosses
};

/// Allocates, as MemoryKind::activations.
template <typename Real>
Activations<Real> make_activations(const config::Model& model, const ModelPart& part,
                                   const Capacity& capacity, config::Recompute recompute,
                                   MemoryLedger& ledger);

/// Bytes that make_activations allocates.
template <typename Real>
std::int64_t count_activation_bytes(const config::Model& model, const ModelPart& part,
                                    const Capacity& capacity, config::Recompute recompute);

// Bytes of a model from its shape: what traces and dry runs state.

/// Elements of all parameters of the model.
std::int64_t parameter_elements(const config::Model& model);

/// Bytes of a part's parameters and gradients, and of the moments of `owned` elements, of a run in
/// this type.
std::int64_t parameter_bytes(const config::Model& model, const ModelPart& part, config::Dtype dtype,
                             std::int64_t owned);

/// Bytes that Llama allocates, its tokens, positions and targets among them.
std::int64_t activation_bytes(const config::Model& model, const ModelPart& part,
                              const Capacity& capacity, config::Recompute recompute,
                              config::Dtype dtype);

}  // namespace cadenza::model
