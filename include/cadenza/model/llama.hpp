// SPDX-License-Identifier: Apache-2.0
// A rank's part of the Llama-style transformer, and what it asks of the ranks that share its
// matrices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/model/activations.hpp"
#include "cadenza/model/parameters.hpp"
#include "cadenza/model/part.hpp"

namespace cadenza::model {

/// Collectives of a tensor group on device pointers, called by all its ranks in the same order:
/// each reads what the kernels before it wrote, and kernels after it read its result. With a group
/// of one none is called. Sum is an accumulator type: float or double.
template <typename Sum>
class TensorGroup {
 public:
  virtual ~TensorGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// `all` [size x mine.size()] = everybody's `mine`, rank after rank.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// `mine` = shard `rank()` of the sum of everybody's `all` [size x mine.size()].
  virtual void reduce_scatter(std::span<const Sum> all, std::span<Sum> mine) = 0;
  virtual void all_reduce_sum(std::span<Sum> values) = 0;
  virtual void all_reduce_max(std::span<Sum> values) = 0;
};

// A rank's part of the Llama-style transformer without its core attention: everything before Q, K,
// V and after O of its layers, forward and backward, written by hand. The executor calls the parts
// in the order of a program and computes core attention in between.
//
// Operations work on rows [begin, end) of the microbatch in an activation buffer, both multiples of
// the tensor group's size T. What lives from one operation to the next is disjoint for disjoint
// rows, so that two halves of a microbatch may take turns. Layers are local ones, counted through
// all chunks; a buffer holds the activations of one chunk. Activations are assigned, gradients of
// parameters are added to.
//
// Sequence parallelism: between the products, rank t of the tensor group holds rows [begin + t n /
// T, ...) of an operation's n rows; their place in storage is their number / T. Q, K, V and O are
// of all rows and this rank's heads.

/// One microbatch: token ids, position of each token in its document, next token of its document
/// (-1: none).
struct TokenBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> targets;
};

/// What became of the target of each row of an operation: as RowLosses, on the host. Rows without a
/// target say nothing.
template <typename Sum>
struct TokenLosses {
  std::vector<Sum> loss;
  std::vector<Sum> margin;
};

/// The attention of a rank of a tensor group as kernels take it.
kernels::AttentionShape attention_shape(const config::Model& model, int tensor_size = 1,
                                        AttentionKernel kernel = AttentionKernel::automatic);

/// Rows of core attention of one layer, all on the device. T rows, H query heads and G
/// key-value heads of this rank, D head_dim.
template <typename Real>
struct AttentionBuffers {
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

  /// @param capacity  all memory is allocated here and in reserve(), none during a step
  /// @param group     of the part's tensor_size; null with a size of one
  /// `parameters` (of the same part), `group` and `ledger` outlive the model.
  Llama(const config::Model& model, const ModelPart& part, Capacity capacity,
        config::Recompute recompute, const kernels::RotaryTable<Sum>& rotary,
        Parameters<Real>& parameters, TensorGroup<Sum>* group, MemoryLedger& ledger);

  /// Makes room in all activation buffers for microbatches of `rows`. What they hold is lost:
  /// between steps only, and pointers of attention_buffers() are made anew.
  void reserve(std::int64_t rows);

  /// Sets the microbatch of a buffer: at most the reserved rows, a multiple of tensor_size
  /// (padding: token 0, position 0, target -1).
  void set_batch(int buffer, const TokenBatch& batch);
  std::int64_t rows(int buffer) const { return activations(buffer).rows; }

  void embed(int buffer, Range rows);
  /// Residual stream -> q, rotated k, v; O = 0 and LSE = -inf in these rows.
  void attention_inputs(int buffer, int layer, Range rows);
  /// O -> residual stream of the next layer.
  void attention_outputs(int buffer, int layer, Range rows);

  /// Final norm, logits in chunks, loss and the gradient of `scale` times the sum of the token
  /// losses, when the backward pass of the last chunk begins.
  /// @return the sum over the targets of all these rows, not scaled; the same on every rank of the
  ///         tensor group
  double loss(int buffer, Range rows, double scale);
  /// Of the rows of the last loss().
  TokenLosses<Sum> token_losses(Range rows) const;
  /// Residual gradient -> dout; dq, dk and dv = 0 in these rows.
  void attention_outputs_gradient(int buffer, int layer, Range rows);
  /// dq, dk, dv -> residual gradient.
  void attention_inputs_gradient(int buffer, int layer, Range rows);
  void embed_gradient(int buffer, Range rows);

  /// run.recompute attention and layer, before the attention of a backward pass:
  /// attention_inputs again, from the stream that was kept.
  void recompute_inputs(int buffer, int layer, Range rows);
  /// run.recompute layer: attention_outputs again, as far as its gradient reads it; the next
  /// layer's stream is left alone.
  void recompute_outputs(int buffer, int layer, Range rows);

  // Pipeline boundaries: rows of the residual stream that this rank holds, contiguous, on the
  // device.
  std::int64_t boundary_elements(Range rows) const;
  /// The residual stream after the last layer of the buffer's chunk, right after its
  /// attention_outputs.
  void output(int buffer, Range rows, Sum* to);
  /// The residual stream before the first layer of the buffer's chunk.
  void set_input(int buffer, Range rows, const Sum* from);
  /// The residual gradient.
  void gradient(Range rows, Sum* to) const;
  void set_gradient(Range rows, const Sum* from);

  AttentionBuffers<Real> attention_buffers(int buffer, int layer);

  /// Sums the gradients of norms over the tensor group, whose ranks saw different rows: once per
  /// step, before other reductions.
  void reduce_norm_gradients();

 private:
  /// Rows of an operation.
  struct Span {
    std::int64_t begin, count;  ///< of the microbatch: Q, K, V, O, feed-forward
    std::int64_t row, held;     ///< in storage of the stream: this rank's
  };
  Span span(Range rows) const;
  ActivationBuffer<Real>& activations(int buffer) { return work_.buffers[at(buffer)]; }
  const ActivationBuffer<Real>& activations(int buffer) const { return work_.buffers[at(buffer)]; }
  int in_chunk(int layer) const { return layer % static_cast<int>(shape_.chunk_layers); }
  LayerActivations<Real>& activations(int buffer, int layer) {
    return activations(buffer).layers[at(in_chunk(layer))];
  }
  const LayerOffsets& offsets(int layer) const { return parameters_.table.layers[at(layer)]; }
  const Sum* value(std::int64_t offset) const { return parameters_.values.data() + offset; }
  const Real* weight(std::int64_t offset) const { return parameters_.working.data() + offset; }
  Sum* gradient_of(std::int64_t offset) { return parameters_.gradients.data() + offset; }
  bool keeps_layers() const { return recompute_ != config::Recompute::layer; }

  /// The residual stream after a layer: the next one's input, or the chunk's output.
  Sum* stream_after(int buffer, int layer);
  /// What the feed-forward before a layer of the chunk (0: its first, chunk_layers: after its last)
  /// added to, still without it; null where the stream is complete.
  const Sum* residual(int buffer, std::int64_t layer, const Span& rows);

  /// Norm, q, k, v and empty outputs, adding `residual` to the stream unless null.
  void make_inputs(int buffer, int layer, const Sum* residual, const Span& rows);
  /// O and its projection into `middle`; without the stream it adds to.
  void project_attention(int buffer, int layer, const Span& rows);
  /// Norm, gate and up, adding `residual` to `middle` unless null.
  void make_gate_up(int buffer, int layer, const Sum* residual, const Span& rows);
  /// Logits in chunks; the gradient towards `normed` goes to `dnormed`. @return the loss
  double head_loss(int buffer, const Real* normed, double scale, const Span& rows, Sum* dnormed);
  /// Of one chunk of logits, which becomes its gradient. @param first  its first row
  double chunk_loss(int buffer, std::int64_t first, std::int64_t count, double scale);
  /// From the partial dnormed: dx and rounded grow by the gradient of a norm, normed is its output
  /// again.
  void norm_gradient(const Sum* x, const Sum* rstd, std::int64_t weight, const Span& rows);

  /// `values` as matrix products read them: rounded to `rounded`, or themselves.
  const Real* as_real(const Sum* values, std::int64_t count, Real* rounded);
  /// All `rows.count` rows of what each rank of the tensor group holds of [rows.held, C].
  const Real* gather(const Real* held, const Span& rows);
  /// Where a product that every rank has a part of goes, before reduce() sums it into `held`.
  Sum* partial(Sum* held) { return group_ == nullptr ? held : work_.partial.data(); }
  void reduce(Sum* held, const Span& rows);

  config::Model model_;
  ModelPart part_;
  PartShape shape_;
  Capacity capacity_;
  config::Recompute recompute_;
  kernels::RotaryTable<Sum> rotary_;
  Parameters<Real>& parameters_;
  TensorGroup<Sum>* group_;
  MemoryLedger& ledger_;
  Activations<Real> work_;
};

}  // namespace cadenza::model
