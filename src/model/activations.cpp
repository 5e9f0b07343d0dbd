// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/activations.hpp"

#include <algorithm>
#include <type_traits>

#include "cadenza/cost/flops.hpp"
#include "cadenza/model/layers.hpp"
#include "cadenza/model/parameters.hpp"

namespace cadenza::model {
namespace {

using config::Recompute;

/// Visits all arrays once; `make(array, label, elements)` allocates or counts them.
template <typename Real, typename Make>
class Builder {
 public:
  Builder(const config::Model& model, const ModelPart& part, const Capacity& capacity,
          Recompute recompute, const Make& make)
      : part_(part),
        shape_(model, part),
        capacity_(capacity),
        recompute_(recompute),
        rows_(capacity.rows),
        held_(capacity.rows / part.tensor_size),
        make_(make) {}

  Activations<Real> build() {
    Activations<Real> work;
    LayerActivations<Real> shared;  // arrays shared by all layers
    if (!keeps_attention()) make_attention(shared);
    if (!keeps_middle()) make_middle(shared);
    if (!keeps_gate_up()) make_(shared.gate_up, "gate_up", rows_ * 2 * shape_.ffn);
    ActivationBuffer<Real> passing;
    if (!part_.head) make_(passing.last, "last", held_ * shape_.width);
    for (int buffer = 0; buffer < capacity_.buffers; ++buffer) {
      work.buffers.push_back(make_buffer(shared, passing));
    }
    make_backward(work);
    make_scratch(work);
    if (part_.head) make_head(work);
    return work;
  }

 private:
  bool keeps_attention() const {
    return recompute_ != Recompute::attention && recompute_ != Recompute::layer;
  }
  bool keeps_middle() const { return recompute_ != Recompute::layer; }
  bool keeps_gate_up() const {
    return recompute_ != Recompute::mlp && recompute_ != Recompute::layer;
  }
  static constexpr bool kOneType = std::is_same_v<Real, Accumulator<Real>>;

  void make_attention(LayerActivations<Real>& l) {
    make_(l.rstd1, "rstd1", held_);
    make_(l.q, "q", rows_ * shape_.queries);
    make_(l.k, "k", rows_ * shape_.keys);
    make_(l.v, "v", rows_ * shape_.keys);
    make_(l.out, "out", rows_ * shape_.queries);
    make_(l.lse, "lse", rows_ * shape_.heads);
  }

  void make_middle(LayerActivations<Real>& l) {
    make_(l.middle, "middle", held_ * shape_.width);
    make_(l.rstd2, "rstd2", held_);
  }

  ActivationBuffer<Real> make_buffer(const LayerActivations<Real>& shared,
                                     const ActivationBuffer<Real>& passing) {
    ActivationBuffer<Real> buffer = passing;
    make_(buffer.tokens, "tokens", rows_);
    make_(buffer.positions, "positions", rows_);
    make_(buffer.targets, "targets", rows_);
    if (part_.embedding) {
      make_(buffer.run_rows, "run_rows", rows_);
      make_(buffer.run_tokens, "run_tokens", rows_);
      make_(buffer.run_begins, "run_begins", rows_ + 1);
    }
    for (std::int64_t layer = 0; layer < part_.most_chunk_layers(); ++layer) {
      LayerActivations<Real>& l = buffer.layers.emplace_back(shared);
      make_(l.input, "input", held_ * shape_.width);
      if (keeps_attention()) make_attention(l);
      if (keeps_middle()) make_middle(l);
      if (keeps_gate_up()) make_(l.gate_up, "gate_up", rows_ * 2 * shape_.ffn);
    }
    if (part_.head) make_(buffer.last, "last", held_ * shape_.width);
    return buffer;
  }

  void make_backward(Activations<Real>& work) {
    make_(work.dx, "dx", held_ * shape_.width);
    if constexpr (kOneType) {
      work.rounded = work.dx;
    } else {
      make_(work.rounded, "rounded", held_ * shape_.width);
    }
    make_(work.dout, "dout", rows_ * shape_.queries);
    make_(work.delta, "delta", rows_ * shape_.heads);
    make_(work.dq, "dq", rows_ * shape_.queries);
    make_(work.dk, "dk", rows_ * shape_.keys);
    make_(work.dv, "dv", rows_ * shape_.keys);
  }

  void make_scratch(Activations<Real>& work) {
    make_(work.normed, "normed", held_ * shape_.width);
    make_(work.dnormed, "dnormed", held_ * shape_.width);
    if (part_.tensor_size > 1) {
      make_(work.gathered, "gathered", rows_ * shape_.width);
      make_(work.partial, "partial", rows_ * shape_.width);
    }
    make_(work.hidden, "hidden", rows_ * std::max(shape_.ffn, shape_.joined()));
    make_(work.norm_partials, "norm_partials", norm_partials(held_, shape_.width));
  }

  void make_head(Activations<Real>& work) {
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
  Recompute recompute_;
  std::int64_t rows_, held_;
  const Make& make_;
};

}  // namespace

template <typename Real>
Activations<Real> make_activations(const config::Model& model, const ModelPart& part,
                                   const Capacity& capacity, Recompute recompute,
                                   MemoryLedger& ledger) {
  const auto make = [&]<typename T>(Array<T>& array, const char* label, std::int64_t count) {
    array = allocate<T>(ledger, MemoryKind::activations, label, count);
  };
  return Builder<Real, decltype(make)>(model, part, capacity, recompute, make).build();
}

template <typename Real>
std::int64_t count_activation_bytes(const config::Model& model, const ModelPart& part,
                                    const Capacity& capacity, Recompute recompute) {
  std::int64_t bytes = 0;
  const auto make = [&]<typename T>(const Array<T>&, const char*, std::int64_t count) {
    bytes += count * static_cast<std::int64_t>(sizeof(T));
  };
  Builder<Real, decltype(make)>(model, part, capacity, recompute, make).build();
  return bytes;
}

#define CADENZA_INSTANTIATE(Real)                                                            \
  template Activations<Real> make_activations(const config::Model&, const ModelPart&,        \
                                              const Capacity&, Recompute, MemoryLedger&);    \
  template std::int64_t count_activation_bytes<Real>(const config::Model&, const ModelPart&, \
                                                     const Capacity&, Recompute);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

std::int64_t parameter_elements(const config::Model& m) {
  return make_parameter_table(m, whole_model(m)).elements;
}

std::int64_t parameter_bytes(config::Dtype dtype, std::int64_t weights, std::int64_t gradients,
                             std::int64_t owned) {
  const auto [real, sum] = config::element_bytes(dtype);
  return weights * real + gradients * sum + optimizer_bytes(dtype, owned);
}

std::int64_t optimizer_bytes(config::Dtype dtype, std::int64_t owned) {
  const auto [real, sum] = config::element_bytes(dtype);
  return owned * (real == sum ? 2 : 3) * sum;  // two moments, and masters of rounded weights
}

std::int64_t activation_bytes(const config::Model& m, const ModelPart& part,
                              const Capacity& capacity, config::Recompute recompute,
                              config::Dtype dtype) {
  switch (dtype) {
    case config::Dtype::bfloat16:
      return count_activation_bytes<bfloat16>(m, part, capacity, recompute);
    case config::Dtype::float32:
      return count_activation_bytes<float>(m, part, capacity, recompute);
    case config::Dtype::float64:
      break;
  }
  return count_activation_bytes<double>(m, part, capacity, recompute);
}

}  // namespace cadenza::model
