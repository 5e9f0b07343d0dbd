// SPDX-License-Identifier: Apache-2.0
// Which arrays of activations a rank has, and their sizes: one list for those that allocate and
// those that count.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cadenza/base/at.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/model/shape/activations.hpp"

namespace cadenza::model {

/// Visits all arrays once; `make(array, label, elements)` allocates or counts them.
template <typename Real, typename Sum, template <typename> class Array, typename Make>
class ActivationBuilder {
 public:
  using Layer = LayerArrays<Real, Sum, Array>;
  using Buffer = BufferArrays<Real, Sum, Array>;
  using All = ActivationArrays<Real, Sum, Array>;

  ActivationBuilder(const config::Model& model, const ModelPart& part, const Capacity& capacity,
                    config::Recompute recompute, const Make& make)
      : part_(part),
        shape_(model, part),
        capacity_(capacity),
        keeps_(recompute),
        rows_(capacity.rows),
        held_(capacity.rows / part.tensor_size),
        biased_(model.qkv_bias),
        normed_dim_(model.qk_norm ? model.head_dim() : 0),
        make_(make) {}

  All build() {
    All work;
    const std::vector<Layer> shared = make_shared();
    Buffer passing;
    if (!part_.head) make_(passing.last, "last", bytes_of_rows());
    for (int buffer = 0; buffer < capacity_.buffers; ++buffer) {
      work.buffers.push_back(make_buffer(shared, passing));
    }
    make_layers(capacity_.slots, shared, work.slots);
    make_backward(work);
    make_scratch(work);
    if (part_.head) make_head(work);
    return work;
  }

 private:
  static constexpr bool kOneType = std::is_same_v<Real, Sum>;
  static std::int64_t bytes_of(config::Precision precision) {
    return precision == config::Precision::sums ? sizeof(Sum) : sizeof(Real);
  }
  /// Of the residual stream.
  std::int64_t bytes_of_rows() const { return held_ * shape_.width * bytes_of(capacity_.residual); }

  /// Makes the arrays that layers share: layer l has set l modulo their number. What follows
  /// attention is used up before another layer makes it; of attention, halves may be in two layers.
  /// Layers in slots take turns in them, so that there each slot has its own.
  std::vector<Layer> make_shared() {
    Layer once;
    if (!keeps_.middle) make_middle(once);
    if (!keeps_.gate_up) make_(once.gate_up, "gate_up", rows_ * 2 * shape_.ffn);
    const bool turns = capacity_.layers_at_once > 1 && capacity_.slots > 0;
    std::vector<Layer> shared(at(turns ? capacity_.slots : capacity_.layers_at_once), once);
    if (keeps_.attention) return shared;
    for (Layer& set : shared) make_attention(set);
    return shared;
  }

  void make_attention(Layer& l) {
    make_(l.rstd1, "rstd1", held_);
    make_(l.q, "q", rows_ * shape_.queries);
    make_(l.k, "k", rows_ * shape_.keys);
    make_(l.v, "v", rows_ * shape_.keys);
    if (normed_dim_ > 0) {
      make_(l.unnormed_q, "unnormed_q", rows_ * shape_.queries);
      make_(l.unnormed_k, "unnormed_k", rows_ * shape_.keys);
    }
    make_(l.out, "out", rows_ * shape_.queries);
    make_(l.lse, "lse", rows_ * shape_.heads);
  }

  void make_middle(Layer& l) {
    make_(l.middle, "middle", bytes_of_rows());
    make_(l.rstd2, "rstd2", held_);
  }

  Buffer make_buffer(const std::vector<Layer>& shared, const Buffer& passing) {
    Buffer buffer = passing;
    make_(buffer.tokens, "tokens", rows_);
    make_(buffer.positions, "positions", rows_);
    make_(buffer.targets, "targets", rows_);
    if (part_.embedding) {
      make_(buffer.run_rows, "run_rows", rows_);
      make_(buffer.run_tokens, "run_tokens", rows_);
      make_(buffer.run_begins, "run_begins", rows_ + 1);
    }
    if (capacity_.slots == 0) make_layers(part_.most_chunk_layers(), shared, buffer.layers);
    if (part_.head) make_(buffer.last, "last", bytes_of_rows());
    return buffer;
  }

  void make_layers(std::int64_t count, const std::vector<Layer>& shared,
                   std::vector<Layer>& layers) {
    for (std::int64_t layer = 0; layer < count; ++layer) {
      Layer& l = layers.emplace_back(shared[at(layer % std::ssize(shared))]);
      make_(l.input, "input", bytes_of_rows());
      if (keeps_.attention) make_attention(l);
      if (keeps_.middle) make_middle(l);
      if (keeps_.gate_up) make_(l.gate_up, "gate_up", rows_ * 2 * shape_.ffn);
    }
  }

  void make_backward(All& work) {
    make_(work.dx, "dx", bytes_of_rows());
    if (bytes_of(capacity_.residual) != sizeof(Real)) {
      make_(work.rounded, "rounded", held_ * shape_.width);
    }
    if constexpr (!kOneType) make_(work.merged, "merged", rows_ * shape_.queries);
    make_(work.dout, "dout", rows_ * shape_.queries);
    make_(work.delta, "delta", rows_ * shape_.heads);
    make_(work.dq, "dq", rows_ * shape_.queries);
    make_(work.dk, "dk", rows_ * shape_.keys);
    make_(work.dv, "dv", rows_ * shape_.keys);
  }

  void make_scratch(All& work) {
    make_(work.normed, "normed", held_ * shape_.width);
    make_(work.dnormed, "dnormed", held_ * shape_.width);
    if (part_.tensor_size > 1) {
      make_(work.gathered, "gathered", rows_ * shape_.width);
      make_(work.parts, "parts", 2 * rows_ * shape_.width * bytes_of(capacity_.tensor_sums));
    }
    make_(work.hidden, "hidden", rows_ * std::max(shape_.ffn, shape_.joined()));
    const std::int64_t of_biases = biased_ ? norm_partials(rows_, shape_.joined()) : 0;
    const std::int64_t of_heads = normed_dim_ > 0 ? norm_partials(rows_, 2 * normed_dim_) : 0;
    make_(work.norm_partials, "norm_partials",
          std::max({norm_partials(held_, shape_.width), of_biases, of_heads}));
  }

  void make_head(All& work) {
    const std::int64_t vocab = shape_.vocab.size();
    make_(work.rstd_last, "rstd_last", held_);
    // Equal on all ranks of a tensor group, although their vocabularies may differ by one.
    work.logit_rows = cost::logit_rows(shape_.widest_vocab, rows_, capacity_.device);
    make_(work.logits, "logits", work.logit_rows * vocab);
    if constexpr (kOneType) {
      work.dlogits = work.logits;
    } else {
      make_(work.dlogits, "dlogits", work.logit_rows * vocab);
    }
    if (part_.tensor_size > 1) make_(work.statistics, "statistics", 3 * work.logit_rows);
    make_(work.losses, "losses", 2 * rows_);
  }

  const ModelPart& part_;
  PartShape shape_;
  Capacity capacity_;
  Keeps keeps_;
  std::int64_t rows_, held_;
  bool biased_;
  std::int64_t normed_dim_;  ///< of heads of Q and K with norms; 0: they have none
  const Make& make_;
};

}  // namespace cadenza::model
