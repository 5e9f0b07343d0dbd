// SPDX-License-Identifier: Apache-2.0
// The forward pass, and its recomputation before a backward pass.
#include "cadenza/attention/core_attention.hpp"
#include "cadenza/model/layers.hpp"
#include "cadenza/model/llama.hpp"
#include "model/gemms.hpp"
#include "model/shards.hpp"

namespace cadenza::model {

template <typename Real>
void Llama<Real>::embed(int buffer, Range rows) {
  const Span s = span(rows);
  const Residual<Real> stream = held(activations(buffer, 0).input, s);
  const std::int32_t* tokens = activations(buffer).tokens.data() + s.begin;
  post_parts(stream, s, [&](std::int64_t first, std::int64_t count, auto* to) {
    model::embed(weight(parameters_.table.embedding), shape_.vocab, tokens + first, count,
                 shape_.width, to);
  });
  sum_parts(stream, s);
}

template <typename Real>
void Llama<Real>::attention_inputs(int buffer, int layer, Range rows) {
  const Span s = span(rows);
  make_inputs(buffer, layer, residual(buffer, in_chunk(layer), s), s);
}

template <typename Real>
void Llama<Real>::recompute_inputs(int buffer, int layer, Range rows) {
  make_inputs(buffer, layer, nullptr, span(rows));
}

template <typename Real>
void Llama<Real>::make_inputs(int buffer, int layer, Residual<Real> residual, const Span& s) {
  const LayerActivations<Real>& l = activations(buffer, layer);
  const LayerOffsets& w = offsets(layer);
  const std::int64_t width = shape_.width;
  const int head_dim = static_cast<int>(model_.head_dim());
  rms_norm(residual, held(l.input, s), weight(w.input_norm), s.held, width, model_.norm_eps,
           work_.normed.data(), l.rstd1.data() + s.row);
  gather(work_.normed.data(), work_.gathered.data(), s,
         [&](std::int64_t first, std::int64_t count, const Real* normed) {
           const auto make = [&](std::int64_t matrix, std::int64_t bias, std::int64_t outputs,
                                 const Array<Real>& all) {
             Real* to = all.data() + (s.begin + first) * outputs;
             project(normed, weight(matrix), count, width, outputs, to);
             if (model_.qkv_bias) add_bias(weight(bias), count, outputs, to);
           };
           make(w.q, w.q_bias, shape_.queries, model_.qk_norm ? l.unnormed_q : l.q);
           make(w.k, w.k_bias, shape_.keys, model_.qk_norm ? l.unnormed_k : l.k);
           make(w.v, w.v_bias, shape_.keys, l.v);
         });
  if (model_.qk_norm) {
    const auto norm = [&](const Array<Real>& from, std::int64_t offset, std::int64_t outputs,
                          const Array<Real>& to) {
      const std::int64_t first = s.begin * outputs;
      head_norm<Real>(from.data() + first, weight(offset), s.count * outputs / head_dim, head_dim,
                      model_.norm_eps, to.data() + first);
    };
    norm(l.unnormed_q, w.q_norm, shape_.queries, l.q);
    norm(l.unnormed_k, w.k_norm, shape_.keys, l.k);
  }
  attention::rotate_keys<Real>(
      rotary_, l.k.data() + s.begin * shape_.keys,
      Kokkos::subview(activations(buffer).positions, std::pair(s.begin, s.begin + s.count)),
      s.count, static_cast<int>(shape_.kv_heads), head_dim);
  attention::initialise(merged(l) + s.begin * shape_.queries, l.lse.data() + s.begin * shape_.heads,
                        s.count, static_cast<int>(shape_.heads), head_dim);
}

template <typename Real>
void Llama<Real>::attention_outputs(int buffer, int layer, Range rows) {
  const LayerActivations<Real>& l = activations(buffer, layer);
  const Span s = span(rows);
  const Residual<Real> stream = stream_after(buffer, layer, s);
  project_attention(buffer, layer, s);
  make_gate_up(buffer, layer, held(l.input, s), s);
  swiglu(l.gate_up.data() + s.begin * 2 * shape_.ffn, s.count, shape_.ffn, work_.hidden.data());
  // The reader of the stream adds `middle`: the next norm or output(). If the next microbatch
  // overwrites `middle` before the reader comes, it is added here.
  post_parts(stream, s, [&](std::int64_t begin, std::int64_t count, auto* to) {
    const Real* hidden = work_.hidden.data() + begin * shape_.ffn;
    project(hidden, weight(offsets(layer).down), count, shape_.ffn, shape_.width, to);
  });
  sum_parts(stream, s);
  if (!keeps_layers() && in_chunk(layer) + 1 == activations(buffer).chunk_layers) {
    stream.visit([&]<typename T>(T* rows) {
      add(rows, held(l.middle, s).template as<T>(), s.held * shape_.width, rows);
    });
  }
}

template <typename Real>
void Llama<Real>::recompute_outputs(int buffer, int layer, Range rows) {
  const Span s = span(rows);
  project_attention(buffer, layer, s);
  make_gate_up(buffer, layer, held(activations(buffer, layer).input, s), s);
}

template <typename Real>
void Llama<Real>::project_attention(int buffer, int layer, const Span& s) {
  const LayerActivations<Real>& l = activations(buffer, layer);
  const Residual<Real> middle = held(l.middle, s);
  const Real* out = keep_out(l, s);
  post_parts(middle, s, [&](std::int64_t first, std::int64_t count, auto* to) {
    project(out + first * shape_.queries, weight(offsets(layer).o), count, shape_.queries,
            shape_.width, to);
  });
  sum_parts(middle, s);
}

template <typename Real>
void Llama<Real>::make_gate_up(int buffer, int layer, Residual<Real> residual, const Span& s) {
  const LayerActivations<Real>& l = activations(buffer, layer);
  const LayerOffsets& w = offsets(layer);
  rms_norm(residual, held(l.middle, s), weight(w.post_norm), s.held, shape_.width, model_.norm_eps,
           work_.normed.data(), l.rstd2.data() + s.row);
  // Gate and up are adjacent in the parameters: one product computes both.
  gather(work_.normed.data(), work_.gathered.data(), s,
         [&](std::int64_t first, std::int64_t count, const Real* normed) {
           project(normed, weight(w.gate), count, shape_.width, 2 * shape_.ffn,
                   l.gate_up.data() + (s.begin + first) * 2 * shape_.ffn);
         });
}

#define CADENZA_INSTANTIATE(Real)                                                \
  template void Llama<Real>::embed(int, Range);                                  \
  template void Llama<Real>::attention_inputs(int, int, Range);                  \
  template void Llama<Real>::recompute_inputs(int, int, Range);                  \
  template void Llama<Real>::make_inputs(int, int, Residual<Real>, const Span&); \
  template void Llama<Real>::attention_outputs(int, int, Range);                 \
  template void Llama<Real>::recompute_outputs(int, int, Range);                 \
  template void Llama<Real>::project_attention(int, int, const Span&);           \
  template void Llama<Real>::make_gate_up(int, int, Residual<Real>, const Span&);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::model
