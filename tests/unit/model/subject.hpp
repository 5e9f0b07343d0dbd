// SPDX-License-Identifier: Apache-2.0
// A small model under test, with attention by definition or by the kernels.
#pragma once

#include <cmath>
#include <vector>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/model/layers.hpp"
#include "cadenza/model/llama.hpp"
#include "unit/model/layout.hpp"
#include "unit/model/reference_model.hpp"
#include "unit/model/support.hpp"

namespace cadenza::model::test {

/// Fills the attention buffers of a model for one microbatch.
template <typename Real>
struct Filler {
  const config::Model& model;
  const kernels::RotaryTable<Accumulator<Real>>& rotary;
  const TokenBatch& batch;

  std::int64_t rows() const { return static_cast<std::int64_t>(batch.tokens.size()); }
  std::int64_t query_elements() const { return rows() * model.query_width(); }
  std::int64_t key_elements() const { return rows() * model.kv_heads * model.head_dim(); }
};

/// Attention by definition, on the host.
template <typename Real>
struct ByDefinition : Filler<Real> {
  AttentionInputs inputs(const AttentionBuffers<Real>& buffers) const {
    return {read_rows(buffers.q, this->query_elements()),
            read_rows(buffers.k, this->key_elements()), read_rows(buffers.v, this->key_elements())};
  }
  void forward(const AttentionBuffers<Real>& buffers) const {
    write_rows(reference_attention(this->model, this->batch.positions, inputs(buffers)),
               buffers.out);
  }
  void backward(const AttentionBuffers<Real>& buffers) const {
    const AttentionInputs gradient =
        reference_attention_gradient(this->model, this->batch.positions, inputs(buffers),
                                     read_rows(buffers.dout, this->query_elements()));
    write_rows(gradient.q, buffers.dq);
    write_rows(gradient.k, buffers.dk);
    write_rows(gradient.v, buffers.dv);
  }
};

/// The kernels, one task per document. They merge into what the model left there.
template <typename Real>
struct ByKernels : Filler<Real> {
  int heads() const { return static_cast<int>(this->model.heads); }
  int head_dim() const { return static_cast<int>(this->model.head_dim()); }
  AttentionShape shape() const {
    return {heads(), static_cast<int>(this->model.kv_heads), head_dim()};
  }
  kernels::TaskList<Real> tasks(const AttentionBuffers<Real>& s) const {
    kernels::TaskList<Real> list;
    const auto& positions = this->batch.positions;
    for (std::size_t begin = 0, end = 0; begin < positions.size(); begin = end) {
      for (end = begin + 1; end < positions.size() && positions[end] > 0;) ++end;
      const Range tokens{0, static_cast<std::int64_t>(end - begin)};
      const std::size_t q = begin * static_cast<std::size_t>(this->model.query_width());
      const std::size_t h = begin * static_cast<std::size_t>(this->model.heads);
      const std::size_t k = q / static_cast<std::size_t>(shape().group());
      const int index = static_cast<int>(list.tasks.size());
      list.queries.push_back(
          {tokens, s.q + q, s.out + q, s.lse + h, s.dout + q, s.delta + h, s.dq + q});
      list.keys.push_back({tokens, s.k + k, s.v + k, s.dk + k, s.dv + k});
      list.tasks.push_back({{index, tokens, tokens, {0, heads()}, Band::causal()}, index, index});
    }
    return list;
  }
  void forward(const AttentionBuffers<Real>& buffers) const {
    kernels::attention_forward<Real>(shape(), this->rotary, tasks(buffers));
  }
  void backward(const AttentionBuffers<Real>& buffers) const {
    attention::delta<Real>(buffers.kept, buffers.dout, this->rows(), heads(), head_dim(),
                           buffers.delta);
    kernels::attention_backward<Real>(shape(), this->rotary, tasks(buffers));
  }
};

/// The whole model on one rank.
template <typename Real>
struct Subject {
  using Sum = Accumulator<Real>;
  Subject(const config::Model& m, std::int64_t tokens, std::uint64_t seed)
      : model(m),
        rotary(attention::make_rotary_table<Sum>(
            ledger, tokens, rotary_frequencies(m.rope, static_cast<int>(m.head_dim())))),
        parameters(whole_parameters<Real>(m, 1, ledger)),
        llama(m, whole_model(m), {tokens, 1}, config::Recompute::none, rotary, parameters, nullptr,
              ledger) {
    values = strong_values(m, seed);
    set(values);
  }

  void set(const Vector& all) {
    set_weights(parameters, {0, parameters.table.elements},
                std::vector<Sum>(all.begin(), all.end()).data());
  }

  /// Forward and backward of one microbatch. @return the loss
  template <template <typename> typename Attention>
  double run(const TokenBatch& batch, double scale) {
    const Attention<Real> attention{{model, rotary, batch}};
    const int layers = static_cast<int>(model.layers);
    const Range rows{0, static_cast<std::int64_t>(batch.tokens.size())};
    llama.set_batch(0, 0, batch);
    llama.embed(0, rows);
    for (int layer = 0; layer < layers; ++layer) {
      llama.attention_inputs(0, layer, rows);
      attention.forward(llama.attention_buffers(0, layer));
      llama.attention_outputs(0, layer, rows);
    }
    const double loss = llama.loss(0, rows, scale);
    for (int layer = layers - 1; layer >= 0; --layer) {
      llama.attention_outputs_gradient(0, layer, rows);
      attention.backward(llama.attention_buffers(0, layer));
      llama.attention_inputs_gradient(0, layer, rows);
    }
    llama.embed_gradient(0, rows);
    fence();
    return loss;
  }
  Vector gradients() const { return download_double(parameters.gradients); }
  void clear() { Kokkos::deep_copy(parameters.gradients, Sum(0)); }

  config::Model model;
  MemoryLedger ledger;
  kernels::RotaryTable<Sum> rotary;
  Parameters<Real> parameters;
  Llama<Real> llama;
  Vector values;
};

inline TokenBatch mixed_batch(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  return packed({1, 5, 1, 8, 2}, 13, random);
}

}  // namespace cadenza::model::test
