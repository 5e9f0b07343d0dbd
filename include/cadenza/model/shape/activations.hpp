// SPDX-License-Identifier: Apache-2.0
// The activations of a rank's part of the model: the arrays that each microbatch in flight keeps
// for its backward pass, and one set of all others. An activation that is recomputed instead of
// kept (run.recompute) is one array, shared by all layers of all buffers; of attention with
// ping-pong, whose halves may be in two layers, it is two, for even and odd layers of a chunk.
//
// A microbatch has R rows, r = R / tensor_size of them between the products; C, H, G, D, F, V are
// those of the part (PartShape).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/model/shape/part.hpp"

namespace cadenza::model {

/// Capacity for microbatches.
struct Capacity {
  std::int64_t rows = 0;  ///< of a microbatch, a multiple of tensor_size
  int buffers = 1;        ///< microbatches x chunks in flight
  config::DeviceKind device = config::DeviceKind::host;
  /// The type in which the ranks of a tensor group send their parts of a sum: Sum or Real.
  config::Precision tensor_sums = config::Precision::stored;
  config::Precision residual = config::Precision::sums;  ///< of the stream and its gradient
  /// Layers of a chunk whose kept activations have memory at a time, those of all buffers in turns:
  /// layer l has place l modulo slots. 0: all layers of all buffers have their own.
  int slots = 0;
  int layers_at_once = 1;  ///< layers that halves of a microbatch are in: 2 with ping-pong
};

// Real is the input type of matrix products, Sum that of sums, and Array<T> an array of T. Bytes
// are of Sum or Real, as the capacity says.

template <typename Real, typename Sum, template <typename> class Array>
struct LayerArrays {
  Array<std::byte> input;  ///< [r, C] residual stream
  Array<Sum> rstd1;        ///< [r]
  Array<Real> q, k, v;     ///< [R, H D], [R, G D], [R, G D]
  /// [R, H D], [R, G D]: what the norms of Q and K read, where the model has them (model.qk_norm).
  /// Their gradient needs it, and the norms' output does not give it back where a weight is 0. To
  /// make it again would take two products. Its own root mean square follows from it and is not
  /// kept.
  Array<Real> unnormed_q, unnormed_k;
  Array<Real> out;          ///< [R, H D]: O; where Sum is Real, also while attention adds to it
  Array<Sum> lse;           ///< [R, H]
  Array<std::byte> middle;  ///< [r, C] residual stream after attention
  Array<Sum> rstd2;         ///< [r]
  Array<Real> gate_up;      ///< [R, 2F]: gate and up of a row, one after the other
};

/// Which activations of a layer are kept for its backward pass; `input` is in any case. The others
/// are computed again.
struct Keeps {
  bool attention = true;  ///< rstd1, q, k, v, unnormed_q, unnormed_k, out, lse
  bool middle = true;     ///< middle, rstd2
  bool gate_up = true;
  explicit Keeps(config::Recompute recompute);
};

/// One chunk of one microbatch in flight.
template <typename Real, typename Sum, template <typename> class Array>
struct BufferArrays {
  std::int64_t rows = 0;                           ///< rows of the microbatch, at most R
  Array<std::int32_t> tokens, positions, targets;  ///< [R]
  std::int64_t run_count = 0;                ///< as in TokenRuns, if the part has the embedding
  Array<std::int32_t> run_rows, run_tokens;  ///< [R]
  Array<std::int32_t> run_begins;            ///< [R + 1]
  std::int64_t chunk_layers = 0;             ///< layers of the chunk that it is for
  std::vector<LayerArrays<Real, Sum, Array>> layers;  ///< as many as the part's longest chunk has
  Array<std::byte> last;                              ///< [r, C] output of the chunk's last layer
};

template <typename Real, typename Sum, template <typename> class Array>
struct ActivationArrays {
  std::vector<BufferArrays<Real, Sum, Array>> buffers;
  std::vector<LayerArrays<Real, Sum, Array>> slots;  ///< layers, in place of those of buffers
  // Shared by the operations of one microbatch's backward pass.
  Array<std::byte> dx;    ///< [r, C] residual gradient
  Array<Real> rounded;    ///< [r, C] `dx` for matrix products; empty where `dx` is of Real
  Array<Sum> merged;      ///< [R, H D]: O while attention adds to it; empty where Sum is Real
  Array<Real> dout;       ///< [R, H D]
  Array<Sum> delta;       ///< [R, H]
  Array<Sum> dq, dk, dv;  ///< [R, H D], [R, G D], [R, G D]
  // Scratch of one operation.
  Array<Real> normed;        ///< [r, C]
  Array<Sum> dnormed;        ///< [r, C]
  Array<Real> gathered;      ///< [R, C]; empty without a tensor group
  Array<std::byte> parts;    ///< [2, R, C]; empty without a tensor group
  Array<Real> hidden;        ///< [R, F] and [R, (H + 2 G) D]
  Array<Sum> norm_partials;  ///< scratch of rms_norm_gradient, head_norm_gradient, bias_gradient
  // Scratch of the loss; empty if the part has no head.
  Array<Sum> rstd_last;         ///< [r]
  std::int64_t logit_rows = 0;  ///< rows whose logits are computed at a time
  Array<Sum> logits;            ///< [logit_rows, V]
  Array<Real> dlogits;          ///< [logit_rows, V]; `logits` itself if the types are equal
  Array<Sum> statistics;        ///< [3, logit_rows]; empty without a tensor group
  Array<Sum> losses;            ///< [2, R], see RowLosses
};

/// Smallest number of rows of a block of rms_norm_gradient, head_norm_gradient and bias_gradient:
/// their contributions to the parameter's gradient are added in Real's accumulator, the blocks'
/// sums in double.
inline constexpr std::int64_t kNormBlockRows = 32;
/// Returns the size of their scratch in elements: they sum over blocks of rows that do not depend
/// on the number of threads, so neither does the result.
std::int64_t norm_partials(std::int64_t rows, std::int64_t width);

/// Bytes that Llama allocates, including tokens, positions and targets.
std::int64_t activation_bytes(const config::Model& model, const ModelPart& part,
                              const Capacity& capacity, config::Recompute recompute,
                              config::Dtype dtype);
/// Of them, those that a layer keeps: what is copied to and from host memory with offloading.
std::int64_t kept_bytes(const config::Model& model, const ModelPart& part, const Capacity& capacity,
                        config::Recompute recompute, config::Dtype dtype);

}  // namespace cadenza::model
