// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/llama.hpp"

#include <algorithm>
#include <type_traits>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/kernels/matmul.hpp"
#include "cadenza/model/layers.hpp"

namespace cadenza::model {
namespace {

using kernels::matmul;
using kernels::Transpose;

/// Whether matrix products read what is added up as it is.
template <typename Real>
constexpr bool kOneType = std::is_same_v<Real, Accumulator<Real>>;

void copy_in(const std::vector<std::int32_t>& values, const Array<std::int32_t>& target) {
  auto host = Kokkos::create_mirror_view(target);
  std::copy(values.begin(), values.end(), host.data());
  Kokkos::deep_copy(target, host);
}

}  // namespace

kernels::AttentionShape attention_shape(const config::Model& model) {
  return {static_cast<int>(model.heads), static_cast<int>(model.kv_heads),
          static_cast<int>(model.head_dim())};
}

std::int64_t logit_rows(std::int64_t vocab, std::int64_t rows) {
  constexpr std::int64_t kElements = std::int64_t{1} << 22;
  return std::clamp<std::int64_t>(kElements / vocab, 1, rows);
}

template <typename Real>
Llama<Real>::Llama(const config::Model& model, std::int64_t tokens,
                   const kernels::RotaryTable<Sum>& rotary, Parameters<Real>& parameters,
                   MemoryLedger& ledger)
    : model_(model), rotary_(rotary), parameters_(parameters) {
  const auto make = [&]<typename T>(Array<T>& array, const char* label, std::int64_t count) {
    array = allocate<T>(ledger, MemoryKind::activations, label, count);
  };
  const std::int64_t wide = tokens * model.d_model;
  const std::int64_t narrow = tokens * model.kv_heads * model.head_dim();
  make(tokens_, "tokens", tokens);
  make(positions_, "positions", tokens);
  make(targets_, "targets", tokens);
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    Layer& l = layers_.emplace_back();
    make(l.input, "input", wide);
    make(l.rstd1, "rstd1", tokens);
    make(l.q, "q", wide);
    make(l.k, "k", narrow);
    make(l.v, "v", narrow);
    make(l.out, "out", wide);
    make(l.lse, "lse", tokens * model.heads);
    make(l.middle, "middle", wide);
    make(l.rstd2, "rstd2", tokens);
    make(l.gate_up, "gate_up", tokens * 2 * model.ffn);
  }
  make(last_, "last", wide);
  make(rstd_last_, "rstd_last", tokens);
  make(normed_, "normed", wide);
  make(dnormed_, "dnormed", wide);
  make(dx_, "dx", wide);
  make(hidden_, "hidden", std::max(tokens * model.ffn, wide + 2 * narrow));
  make(dout_, "dout", wide);
  make(delta_, "delta", tokens * model.heads);
  make(dq_, "dq", wide);
  make(dk_, "dk", narrow);
  make(dv_, "dv", narrow);
  make(norm_partials_, "norm_partials", norm_partials(tokens, model.d_model));
  logit_rows_ = logit_rows(model.vocab, tokens);
  make(logits_, "logits", logit_rows_ * model.vocab);
  if constexpr (kOneType<Real>) {
    rounded_ = dx_;
    dlogits_ = logits_;
  } else {
    make(rounded_, "rounded", wide);
    make(dlogits_, "dlogits", logit_rows_ * model.vocab);
  }
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
  const Layer& l = at(layer);
  return {l.q.data(),   l.k.data(),    l.v.data(), l.out.data(), l.lse.data(),
          dout_.data(), delta_.data(), dq_.data(), dk_.data(),   dv_.data()};
}

template <typename Real>
Accumulator<Real>* Llama<Real>::stream(int layer) {
  return layer < static_cast<int>(layers_.size()) ? at(layer).input.data() : last_.data();
}

template <typename Real>
const Accumulator<Real>* Llama<Real>::residual(int layer) {
  return layer == 0 ? nullptr : at(layer - 1).middle.data();
}

template <typename Real>
const Real* Llama<Real>::as_real(const Sum* values, Real* rounded) {
  if constexpr (kOneType<Real>) {
    return values;
  } else {
    round(values, rows_ * model_.d_model, rounded);
    return rounded;
  }
}

template <typename Real>
template <typename Out>
void Llama<Real>::project(const Real* x, std::int64_t weight, std::int64_t in, std::int64_t out,
                          Out* y) {
  matmul<Real>(Transpose::no, Transpose::yes, rows_, out, in, Sum(1), x,
               parameters_.working.data() + weight, Sum(0), y);
}

template <typename Real>
template <typename Out>
void Llama<Real>::project_back(const Real* dy, std::int64_t weight, std::int64_t in,
                               std::int64_t out, Out* dx) {
  matmul<Real>(Transpose::no, Transpose::no, rows_, in, out, Sum(1), dy,
               parameters_.working.data() + weight, Sum(0), dx);
}

template <typename Real>
void Llama<Real>::weight_gradient(const Real* x, const Real* dy, std::int64_t weight,
                                  std::int64_t in, std::int64_t out) {
  matmul<Real>(Transpose::yes, Transpose::no, out, in, rows_, Sum(1), dy, x, Sum(1),
               gradient(weight));
}

template <typename Real>
void Llama<Real>::embed() {
  model::embed(value(parameters_.table.embedding), tokens_.data(), rows_, model_.d_model,
               stream(0));
}

template <typename Real>
void Llama<Real>::attention_inputs(int layer) {
  Layer& l = at(layer);
  const std::int64_t width = model_.d_model;
  const std::int64_t kv_width = model_.kv_heads * model_.head_dim();
  rms_norm(residual(layer), l.input.data(), value(offsets(layer).input_norm), rows_, width,
           model_.norm_eps, normed_.data(), l.rstd1.data());
  project(normed_.data(), offsets(layer).q, width, width, l.q.data());
  project(normed_.data(), offsets(layer).k, width, kv_width, l.k.data());
  project(normed_.data(), offsets(layer).v, width, kv_width, l.v.data());
  attention::rotate_keys<Real>(rotary_, l.k.data(), positions_, rows_,
                               static_cast<int>(model_.kv_heads),
                               static_cast<int>(model_.head_dim()));
}

template <typename Real>
void Llama<Real>::attention_outputs(int layer) {
  Layer& l = at(layer);
  const std::int64_t width = model_.d_model;
  project(as_real(l.out.data(), normed_.data()), offsets(layer).o, width, width, l.middle.data());
  rms_norm(static_cast<const Sum*>(l.input.data()), l.middle.data(),
           value(offsets(layer).post_norm), rows_, width, model_.norm_eps, normed_.data(),
           l.rstd2.data());
  // Gate and up are neighbours in the parameters: one product makes both.
  project(normed_.data(), offsets(layer).gate, width, 2 * model_.ffn, l.gate_up.data());
  swiglu(l.gate_up.data(), rows_, model_.ffn, hidden_.data());
  // The next norm adds the residual: attention_inputs or loss.
  project(hidden_.data(), offsets(layer).down, model_.ffn, width, stream(layer + 1));
}

template <typename Real>
double Llama<Real>::loss(double scale) {
  const std::int64_t width = model_.d_model;
  const std::int64_t vocab = model_.vocab;
  const Real* head = parameters_.working.data() + parameters_.table.head;
  const Sum* norm = value(parameters_.table.final_norm);
  rms_norm(residual(static_cast<int>(layers_.size())), last_.data(), norm, rows_, width,
           model_.norm_eps, normed_.data(), rstd_last_.data());
  double sum = 0;
  for (std::int64_t row = 0; row < rows_; row += logit_rows_) {
    const std::int64_t count = std::min(logit_rows_, rows_ - row);
    const Real* hidden = normed_.data() + row * width;
    matmul<Real>(Transpose::no, Transpose::yes, count, vocab, width, Sum(1), hidden, head, Sum(0),
                 logits_.data());
    sum +=
        cross_entropy(logits_.data(), targets_.data() + row, count, vocab, scale, dlogits_.data());
    matmul<Real>(Transpose::no, Transpose::no, count, width, vocab, Sum(1), dlogits_.data(), head,
                 Sum(0), dnormed_.data() + row * width);
    matmul<Real>(Transpose::yes, Transpose::no, vocab, width, count, Sum(1), dlogits_.data(),
                 hidden, Sum(1), gradient(parameters_.table.head));
  }
  rms_norm_gradient<Real>({dnormed_.data(), last_.data(), rstd_last_.data(), norm},
                          {nullptr, dx_.data(), rounded_.data(), nullptr,
                           gradient(parameters_.table.final_norm), norm_partials_.data()},
                          rows_, width);
  return sum;
}

template <typename Real>
void Llama<Real>::attention_outputs_gradient(int layer) {
  Layer& l = at(layer);
  const std::int64_t width = model_.d_model;
  const std::int64_t ffn = model_.ffn;
  // The feed-forward activation and its normed input are recomputed, not kept.
  project_back(rounded_.data(), offsets(layer).down, ffn, width, hidden_.data());
  swiglu_gradient(l.gate_up.data(), rows_, ffn, hidden_.data());
  weight_gradient(hidden_.data(), rounded_.data(), offsets(layer).down, ffn, width);
  project_back(l.gate_up.data(), offsets(layer).gate, width, 2 * ffn, dnormed_.data());
  norm_gradient(l.middle.data(), l.rstd2.data(), offsets(layer).post_norm);
  weight_gradient(normed_.data(), l.gate_up.data(), offsets(layer).gate, width, 2 * ffn);
  project_back(rounded_.data(), offsets(layer).o, width, width, dout_.data());
  weight_gradient(as_real(l.out.data(), normed_.data()), rounded_.data(), offsets(layer).o, width,
                  width);
}

template <typename Real>
void Llama<Real>::attention_inputs_gradient(int layer) {
  Layer& l = at(layer);
  const std::int64_t width = model_.d_model;
  const std::int64_t joined = (model_.heads + 2 * model_.kv_heads) * model_.head_dim();
  attention::join_gradients<Real>(rotary_, attention_shape(model_),
                                  {dq_.data(), dk_.data(), dv_.data()}, positions_, rows_,
                                  hidden_.data());
  // Q, K and V are neighbours in the parameters.
  project_back(hidden_.data(), offsets(layer).q, width, joined, dnormed_.data());
  norm_gradient(l.input.data(), l.rstd1.data(), offsets(layer).input_norm);
  weight_gradient(normed_.data(), hidden_.data(), offsets(layer).q, width, joined);
}

template <typename Real>
void Llama<Real>::norm_gradient(const Sum* x, const Sum* rstd, std::int64_t weight) {
  rms_norm_gradient<Real>({dnormed_.data(), x, rstd, value(weight)},
                          {dx_.data(), dx_.data(), rounded_.data(), normed_.data(),
                           gradient(weight), norm_partials_.data()},
                          rows_, model_.d_model);
}

template <typename Real>
void Llama<Real>::embed_gradient() {
  model::embed_gradient(static_cast<const Sum*>(dx_.data()), tokens_.data(), rows_, model_.d_model,
                        gradient(parameters_.table.embedding));
}

template class Llama<float>;
template class Llama<double>;
template class Llama<bfloat16>;

}  // namespace cadenza::model
