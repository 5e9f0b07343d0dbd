// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/llama.hpp"

#include <algorithm>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/kernels/matmul.hpp"
#include "cadenza/model/layers.hpp"

namespace cadenza::model {
namespace {

using kernels::matmul;
using kernels::Transpose;

/// Logits are made for this many elements at a time: the whole [T, V] is never held.
constexpr std::int64_t kLogitElements = std::int64_t{1} << 22;

void copy_in(const std::vector<std::int32_t>& values, const Array<std::int32_t>& target) {
  auto host = Kokkos::create_mirror_view(target);
  std::copy(values.begin(), values.end(), host.data());
  Kokkos::deep_copy(target, host);
}

template <typename Real>
void copy(const Real* from, Real* to, std::int64_t count) {
  using Unmanaged = Kokkos::MemoryTraits<Kokkos::Unmanaged>;
  const auto size = static_cast<std::size_t>(count);
  Kokkos::deep_copy(Device{}, Kokkos::View<Real*, DeviceMemory, Unmanaged>(to, size),
                    Kokkos::View<const Real*, DeviceMemory, Unmanaged>(from, size));
}

}  // namespace

template <typename Real>
Llama<Real>::Llama(const config::Model& model, std::int64_t tokens,
                   const kernels::RotaryTable<Real>& rotary, Parameters<Real>& parameters,
                   MemoryLedger& ledger)
    : model_(model), rotary_(rotary), parameters_(parameters) {
  const auto make = [&](const char* label, std::int64_t count) {
    return allocate<Real>(ledger, MemoryKind::activations, label, count);
  };
  const auto make_ids = [&](const char* label) {
    return allocate<std::int32_t>(ledger, MemoryKind::activations, label, tokens);
  };
  const std::int64_t wide = tokens * model.d_model;
  const std::int64_t narrow = tokens * model.kv_heads * model.head_dim();
  const std::int64_t hidden = tokens * model.ffn;
  const std::int64_t rows_heads = tokens * model.heads;

  tokens_ = make_ids("tokens");
  positions_ = make_ids("positions");
  targets_ = make_ids("targets");
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    layers_.push_back({make("input", wide), make("rstd1", tokens), make("q", wide),
                       make("k", narrow), make("v", narrow), make("out", wide),
                       make("lse", rows_heads), make("middle", wide), make("rstd2", tokens),
                       make("gate", hidden), make("up", hidden)});
  }
  last_ = make("last", wide);
  rstd_last_ = make("rstd_last", tokens);
  normed_ = make("normed", wide);
  dnormed_ = make("dnormed", wide);
  dx_ = make("dx", wide);
  activation_ = make("activation", hidden);
  dactivation_ = make("dactivation", hidden);
  dout_ = make("dout", wide);
  delta_ = make("delta", rows_heads);
  dq_ = make("dq", wide);
  dk_ = make("dk", narrow);
  dv_ = make("dv", narrow);
  logit_rows_ = std::clamp<std::int64_t>(kLogitElements / model.vocab, 1, tokens);
  logits_ = make("logits", logit_rows_ * model.vocab);
}

template <typename Real>
void Llama<Real>::set_batch(const TokenBatch& batch) {
  rows_ = static_cast<std::int64_t>(batch.tokens.size());
  copy_in(batch.tokens, tokens_);
  copy_in(batch.positions, positions_);
  copy_in(batch.targets, targets_);
}

template <typename Real>
AttentionSlot<Real> Llama<Real>::slot(int layer) {
  const Layer& l = layers_[static_cast<std::size_t>(layer)];
  return {l.q.data(),   l.k.data(),    l.v.data(), l.out.data(), l.lse.data(),
          dout_.data(), delta_.data(), dq_.data(), dk_.data(),   dv_.data()};
}

template <typename Real>
Real* Llama<Real>::next_input(int layer) {
  const auto next = static_cast<std::size_t>(layer) + 1;
  return next < layers_.size() ? layers_[next].input.data() : last_.data();
}

template <typename Real>
void Llama<Real>::project(const Real* x, std::int64_t weight, std::int64_t in, std::int64_t out,
                          bool add, Real* y) {
  matmul<Real>(Transpose::no, Transpose::yes, rows_, out, in, Real(1), x, value(weight),
               add ? Real(1) : Real(0), y);
}

template <typename Real>
void Llama<Real>::project_gradient(const Real* x, const Real* dy, std::int64_t weight,
                                   std::int64_t in, std::int64_t out, bool add, Real* dx) {
  matmul<Real>(Transpose::no, Transpose::no, rows_, in, out, Real(1), dy, value(weight),
               add ? Real(1) : Real(0), dx);
  matmul<Real>(Transpose::yes, Transpose::no, out, in, rows_, Real(1), dy, x, Real(1),
               gradient(weight));
}

template <typename Real>
void Llama<Real>::embed() {
  model::embed(value(parameters_.table.embedding), tokens_.data(), rows_, model_.d_model,
               layers_.front().input.data());
}

template <typename Real>
void Llama<Real>::attention_inputs(int layer) {
  Layer& l = layers_[static_cast<std::size_t>(layer)];
  const LayerOffsets& at = parameters_.table.layers[static_cast<std::size_t>(layer)];
  const std::int64_t width = model_.d_model;
  const std::int64_t kv_width = model_.kv_heads * model_.head_dim();
  rms_norm(l.input.data(), value(at.input_norm), rows_, width, model_.norm_eps, normed_.data(),
           l.rstd1.data());
  project(normed_.data(), at.q, width, width, false, l.q.data());
  project(normed_.data(), at.k, width, kv_width, false, l.k.data());
  project(normed_.data(), at.v, width, kv_width, false, l.v.data());
  attention::rotate_keys(rotary_, l.k.data(), positions_, rows_, static_cast<int>(model_.kv_heads),
                         static_cast<int>(model_.head_dim()), attention::Rotation::forward);
}

template <typename Real>
void Llama<Real>::attention_outputs(int layer) {
  Layer& l = layers_[static_cast<std::size_t>(layer)];
  const LayerOffsets& at = parameters_.table.layers[static_cast<std::size_t>(layer)];
  const std::int64_t width = model_.d_model;
  copy<Real>(l.input.data(), l.middle.data(), rows_ * width);
  project(l.out.data(), at.o, width, width, true, l.middle.data());
  rms_norm(l.middle.data(), value(at.post_norm), rows_, width, model_.norm_eps, normed_.data(),
           l.rstd2.data());
  project(normed_.data(), at.gate, width, model_.ffn, false, l.gate.data());
  project(normed_.data(), at.up, width, model_.ffn, false, l.up.data());
  swiglu(l.gate.data(), l.up.data(), rows_ * model_.ffn, activation_.data());
  copy<Real>(l.middle.data(), next_input(layer), rows_ * width);
  project(activation_.data(), at.down, model_.ffn, width, true, next_input(layer));
}

template <typename Real>
double Llama<Real>::loss(double scale) {
  const std::int64_t width = model_.d_model;
  const std::int64_t vocab = model_.vocab;
  const std::int64_t head = parameters_.table.head;
  const Real* norm = value(parameters_.table.final_norm);
  rms_norm(last_.data(), norm, rows_, width, model_.norm_eps, normed_.data(), rstd_last_.data());
  double sum = 0;
  for (std::int64_t row = 0; row < rows_; row += logit_rows_) {
    const std::int64_t count = std::min(logit_rows_, rows_ - row);
    const Real* hidden = normed_.data() + row * width;
    matmul<Real>(Transpose::no, Transpose::yes, count, vocab, width, Real(1), hidden, value(head),
                 Real(0), logits_.data());
    sum += cross_entropy(logits_.data(), targets_.data() + row, count, vocab, scale);
    matmul<Real>(Transpose::no, Transpose::no, count, width, vocab, Real(1), logits_.data(),
                 value(head), Real(0), dnormed_.data() + row * width);
    matmul<Real>(Transpose::yes, Transpose::no, vocab, width, count, Real(1), logits_.data(),
                 hidden, Real(1), gradient(head));
  }
  Kokkos::deep_copy(Device{}, dx_, Real(0));
  rms_norm_gradient(dnormed_.data(), last_.data(), norm, rstd_last_.data(), rows_, width,
                    dx_.data(), gradient(parameters_.table.final_norm));
  return sum;
}

template <typename Real>
void Llama<Real>::attention_outputs_gradient(int layer) {
  Layer& l = layers_[static_cast<std::size_t>(layer)];
  const LayerOffsets& at = parameters_.table.layers[static_cast<std::size_t>(layer)];
  const std::int64_t width = model_.d_model;
  const std::int64_t ffn = model_.ffn;
  // The feed-forward activation and its normed input are recomputed, not kept.
  matmul<Real>(Transpose::no, Transpose::no, rows_, ffn, width, Real(1), dx_.data(), value(at.down),
               Real(0), dactivation_.data());
  swiglu_gradient(dactivation_.data(), rows_ * ffn, l.gate.data(), l.up.data(), activation_.data());
  matmul<Real>(Transpose::yes, Transpose::no, width, ffn, rows_, Real(1), dx_.data(),
               activation_.data(), Real(1), gradient(at.down));
  rms_norm(l.middle.data(), value(at.post_norm), rows_, width, model_.norm_eps, normed_.data(),
           l.rstd2.data());
  project_gradient(normed_.data(), l.gate.data(), at.gate, width, ffn, false, dnormed_.data());
  project_gradient(normed_.data(), l.up.data(), at.up, width, ffn, true, dnormed_.data());
  rms_norm_gradient(dnormed_.data(), l.middle.data(), value(at.post_norm), l.rstd2.data(), rows_,
                    width, dx_.data(), gradient(at.post_norm));
  project_gradient(l.out.data(), dx_.data(), at.o, width, width, false, dout_.data());
}

template <typename Real>
void Llama<Real>::attention_inputs_gradient(int layer) {
  Layer& l = layers_[static_cast<std::size_t>(layer)];
  const LayerOffsets& at = parameters_.table.layers[static_cast<std::size_t>(layer)];
  const std::int64_t width = model_.d_model;
  const std::int64_t kv_width = model_.kv_heads * model_.head_dim();
  attention::rotate_keys(rotary_, dk_.data(), positions_, rows_, static_cast<int>(model_.kv_heads),
                         static_cast<int>(model_.head_dim()), attention::Rotation::inverse);
  rms_norm(l.input.data(), value(at.input_norm), rows_, width, model_.norm_eps, normed_.data(),
           l.rstd1.data());
  project_gradient(normed_.data(), dq_.data(), at.q, width, width, false, dnormed_.data());
  project_gradient(normed_.data(), dk_.data(), at.k, width, kv_width, true, dnormed_.data());
  project_gradient(normed_.data(), dv_.data(), at.v, width, kv_width, true, dnormed_.data());
  rms_norm_gradient(dnormed_.data(), l.input.data(), value(at.input_norm), l.rstd1.data(), rows_,
                    width, dx_.data(), gradient(at.input_norm));
}

template <typename Real>
void Llama<Real>::embed_gradient() {
  model::embed_gradient(dx_.data(), tokens_.data(), rows_, model_.d_model,
                        gradient(parameters_.table.embedding));
}

template class Llama<float>;
template class Llama<double>;

}  // namespace cadenza::model
