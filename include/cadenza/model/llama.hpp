// SPDX-License-Identifier: Apache-2.0
// A rank's part of the Llama-style transformer, and the collectives that it needs from its tensor
// group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/event_context.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/model/activations.hpp"
#include "cadenza/model/parameters.hpp"
#include "cadenza/model/residual.hpp"
#include "cadenza/model/shape/part.hpp"

namespace cadenza::model {

/// Collectives of a tensor group on device pointers, called by all its ranks in the same order.
/// Each reads what earlier kernels wrote, and later kernels read its result. A group of one rank
/// calls none. Sum is an accumulator type: float or double.
template <typename Sum>
class TensorGroup {
 public:
  virtual ~TensorGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts step 1, 2 ... size() - 1 of an all_gather or a reduce_scatter, whose steps are posted
  /// in this order: sends to rank `rank() + step` and receives from rank `rank() - step`, both
  /// modulo size(). All messages of a collective have one size. Until wait(), no kernel may write
  /// to `sent` or touch `received`.
  virtual void post(Collective what, int step, std::span<const std::byte> sent,
                    std::span<std::byte> received) = 0;
  /// Lets later kernels read what a step received. Steps of a collective in their order,
  /// collectives in the order of their posts.
  virtual void wait(Collective what, int step) = 0;

  virtual void all_reduce_sum(std::span<Sum> values) = 0;
  virtual void all_reduce_max(std::span<Sum> values) = 0;

  /// The rank to which a step sends, and that from which it receives.
  int receiver(int step) const { return (rank() + step) % size(); }
  int sender(int step) const { return (rank() + size() - step) % size(); }
};

// --- A rank's part of the model ---
// The part has no core attention: it is everything before Q, K, V and after O of its layers,
// forward and backward, written by hand. The executor calls the parts in the order of a program and
// computes core attention in between.
//
// Operations work on rows [begin, end) of the microbatch in an activation buffer, both multiples of
// the tensor group's size T. Data that lives between operations is disjoint for disjoint rows, so
// two halves of a microbatch may take turns. Layers are local and counted through all chunks; a
// buffer holds the activations of one chunk. Activations are assigned, gradients of parameters are
// added to.
//
// Sequence parallelism: between the products, rank t of the tensor group holds rows [begin + t n /
// T, ...) of an operation's n rows, its shard, stored at their row number / T. Q, K, V and O have
// all rows and this rank's heads.
//
// Products and the collectives before and after them run shard by shard, so that one shard travels
// while another is computed; gradients of weights, which need all rows, run beside whole
// collectives (as the user buffers of NVIDIA's Transformer Engine do). docs/placements.md, "Tensor
// groups".

/// One microbatch: token ids, position of each token in its document, next token of its document
/// (-1: none).
struct TokenBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> targets;
};

/// Losses per row of an operation, see RowLosses, in host memory. Entries of rows without a target
/// are undefined.
template <typename Sum>
struct TokenLosses {
  std::vector<Sum> loss;
  std::vector<Sum> margin;
};

/// Rows of core attention of one layer, on the device. T rows, H query heads and G key-value heads
/// of this rank, head_dim D.
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
  /// [T, H, D]: O as the backward pass has it, which keeps it as Real; null: `out`.
  const Real* kept = nullptr;
};

template <typename Real>
class Llama {
 public:
  using Sum = Accumulator<Real>;

  /// @param capacity  all memory is allocated here and in reserve(), none during a step
  /// @param group     the tensor group; null if tensor_size is one
  /// `parameters` (of the same part), `group` and `ledger` must outlive the model.
  Llama(const config::Model& model, const ModelPart& part, Capacity capacity,
        config::Recompute recompute, const kernels::RotaryTable<Sum>& rotary,
        Parameters<Real>& parameters, TensorGroup<Sum>* group, MemoryLedger& ledger);

  /// Makes room in all activation buffers for microbatches of `rows`. Their contents are lost, so
  /// call it only between steps; it invalidates pointers from attention_buffers().
  void reserve(std::int64_t rows);

  /// Sets the chunk that a buffer is for, and its microbatch: its rows are at most the reserved
  /// ones and a multiple of tensor_size (padding: token 0, position 0, target -1).
  void set_batch(int buffer, int chunk, const TokenBatch& batch);
  std::int64_t rows(int buffer) const { return activations(buffer).rows; }

  void embed(int buffer, Range rows);
  /// Computes q, rotated k and v from the residual stream; sets O = 0 and LSE = -inf in these rows.
  void attention_inputs(int buffer, int layer, Range rows);
  /// Computes the next layer's residual stream from O.
  void attention_outputs(int buffer, int layer, Range rows);

  /// Computes the final norm, logits in chunks, the loss and, with `gradient`, the gradient of
  /// `scale` times the sum of the token losses: the begin of the last chunk's backward pass.
  /// @return sum over the targets of these rows, not scaled; the same on every rank of the tensor
  /// group
  double loss(int buffer, Range rows, double scale, bool gradient = true);
  /// Returns the losses of the rows of the last loss().
  TokenLosses<Sum> token_losses(Range rows) const;
  /// Computes dout from the residual gradient; sets dq, dk and dv = 0 in these rows.
  void attention_outputs_gradient(int buffer, int layer, Range rows);
  /// Computes the residual gradient from dq, dk, dv.
  void attention_inputs_gradient(int buffer, int layer, Range rows);
  void embed_gradient(int buffer, Range rows);

  /// Repeats attention_inputs from the kept stream, before the attention of a backward pass
  /// (run.recompute `attention` and `layer`).
  void recompute_inputs(int buffer, int layer, Range rows);
  /// Repeats attention_outputs as far as its gradient needs it, without the next layer's stream
  /// (run.recompute `layer`).
  void recompute_outputs(int buffer, int layer, Range rows);

  // Pipeline boundaries: the rows of the residual stream that this rank holds, contiguous, on the
  // device.
  std::int64_t boundary_bytes(Range rows) const;
  /// Copies the residual stream after the last layer of the buffer's chunk to `to`. Call it right
  /// after its attention_outputs.
  void output(int buffer, Range rows, std::byte* to);
  /// Sets the residual stream before the first layer of the buffer's chunk.
  void set_input(int buffer, Range rows, const std::byte* from);
  /// Copies the residual gradient to `to`.
  void gradient(Range rows, std::byte* to) const;
  void set_gradient(Range rows, const std::byte* from);

  AttentionBuffers<Real> attention_buffers(int buffer, int layer);
  /// The memory of what a layer keeps for its backward pass, with Capacity::slots.
  std::vector<std::span<std::byte>> kept(int slot) const;

  /// Sums the gradients of norms over the tensor group, whose ranks saw different rows. Call it
  /// once per step, before other reductions.
  void reduce_norm_gradients();

 private:
  /// Rows of an operation.
  struct Span {
    std::int64_t begin, count;  ///< in the microbatch: for Q, K, V, O, feed-forward
    std::int64_t row, held;     ///< this rank's rows in storage of the stream
  };
  Span span(Range rows) const;
  ActivationBuffer<Real>& activations(int buffer) { return work_.buffers[at(buffer)]; }
  const ActivationBuffer<Real>& activations(int buffer) const { return work_.buffers[at(buffer)]; }
  /// The number of a local layer in its chunk.
  int in_chunk(int layer) const;
  LayerActivations<Real>& activations(int buffer, int layer) {
    return in_buffer(buffer, in_chunk(layer));
  }
  /// @param layer  of the buffer's chunk
  LayerActivations<Real>& in_buffer(int buffer, std::int64_t layer) {
    if (work_.slots.empty()) return activations(buffer).layers[at(layer)];
    return work_.slots[at(layer % std::ssize(work_.slots))];
  }
  const LayerOffsets& offsets(int layer) const { return parameters_.table.layers[at(layer)]; }
  const Real* weight(std::int64_t offset) const { return parameters_.weights.data() + offset; }
  Sum* gradient_of(std::int64_t offset) { return parameters_.gradients.data() + offset; }
  bool keeps_layers() const { return recompute_ != config::Recompute::layer; }

  bool rounds_residual() const { return capacity_.residual == config::Precision::stored; }
  Residual<Real> boundary(std::byte* rows) const { return {rows, rounds_residual()}; }
  /// The rows of an array of the residual stream, or of its gradient.
  Residual<Real> held(const Array<std::byte>& array, const Span& rows) const {
    return boundary(array.data()) + rows.row * shape_.width;
  }
  /// The residual gradient as input of matrix products.
  Real* rounded(const Span& rows);

  /// Returns the stream after a layer: the next layer's input or the chunk's output.
  Residual<Real> stream_after(int buffer, int layer, const Span& rows);
  /// Returns the term missing in the stream before a layer of the chunk: the previous layer's
  /// `middle`, to which its feed-forward adds; null before the first, where nothing is missing.
  Residual<Real> residual(int buffer, std::int64_t in_chunk, const Span& rows);
  /// The same after the chunk's last layer.
  Residual<Real> last_residual(int buffer, const Span& rows);

  /// Computes norm, q, k, v and clears outputs; first adds `residual` to the stream unless null.
  void make_inputs(int buffer, int layer, Residual<Real> residual, const Span& rows);
  /// Projects O into `middle`, without adding the stream.
  void project_attention(int buffer, int layer, const Span& rows);
  /// Computes norm, gate and up; first adds `residual` to `middle` unless null.
  void make_gate_up(int buffer, int layer, Residual<Real> residual, const Span& rows);
  /// Computes the logits in chunks and writes the gradient towards `normed` to `dnormed`. @return
  /// loss
  template <typename Out>
  double head_loss(int buffer, const Real* normed, double scale, const Span& s, Out* dnormed,
                   bool gradient);
  /// Returns the loss of one chunk of logits, which become their gradient. @param first  its first
  /// row
  double chunk_loss(int buffer, std::int64_t first, std::int64_t count, double scale);
  /// Sums the parts of dnormed, adds the gradient of the norm to dx and updates `rounded`. Without
  /// a group it recomputes the norm's output in `normed`; a group does so in post_normed().
  void norm_gradient(Residual<Real> x, const Sum* rstd, std::int64_t weight, const Span& rows);
  /// Recomputes the output of a norm and starts to gather it, where there is a group.
  void post_normed(Residual<Real> x, Sum* rstd, std::int64_t weight, const Span& rows);
  /// Returns all rows of the norm's output, which post_normed() gathers, or, unless `posted`,
  /// which were gathered before.
  const Real* take_normed(bool posted, const Span& rows);

  /// Returns `values` as input of matrix products: rounded into `rounded`, or unchanged.
  const Real* as_real(const Sum* values, std::int64_t count, Real* rounded);
  /// O while attention adds to it.
  Sum* merged(const LayerActivations<Real>& layer);
  /// Keeps O, and returns it as input of matrix products.
  const Real* keep_out(const LayerActivations<Real>& layer, const Span& rows);
  // What travels between the ranks of the group (src/model/shards.hpp). Without a group, all rows
  // are held, and nothing does.

  /// Starts to gather the rows.count rows [C] that the ranks hold into `all`.
  template <typename T>
  void post_gather(const T* held, T* all, const Span& rows);
  /// Calls use(first, count, from) for the rows [first, first + count) of the operation, at `from`:
  /// at first those that this rank holds, then shard after shard as they arrive. @return all rows
  template <typename T, typename Use>
  const T* take_gathered(const T* held, T* all, const Span& rows, const Use& use);
  template <typename Use>
  const Real* gather(const Real* held, Real* all, const Span& rows, const Use& use) {
    post_gather(held, all, rows);
    return take_gathered(held, all, rows, use);
  }
  /// Computes the rank's part of values [rows.count, C] to which every rank contributes:
  /// part(first, count, to) writes rows [first, first + count) of the operation to `to`. The shards
  /// of other ranks come first and leave at once. sum_parts() adds what arrived into `held`.
  template <typename Part>
  void post_parts(Residual<Real> held, const Span& rows, const Part& part);
  void sum_parts(Residual<Real> held, const Span& rows);
  /// Calls what(parts), the array of this rank's parts: of Sum or Real (Capacity::tensor_sums).
  template <typename What>
  void with_parts(Residual<Real> held, const What& what);
  /// Parts that arrive: [T - 1 shards, C]. Between sums, rows that were gathered.
  template <typename T>
  T* arrived() {
    return reinterpret_cast<T*>(work_.parts.data() + work_.parts.size() / 2);
  }

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
