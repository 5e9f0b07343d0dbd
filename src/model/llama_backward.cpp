// SPDX-License-Identifier: Apache-2.0
// The loss and the backward pass.
#include <algorithm>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/model/layers.hpp"
#include "cadenza/model/llama.hpp"
#include "model/gemms.hpp"
#include "model/shards.hpp"

namespace cadenza::model {

template <typename Real>
double Llama<Real>::loss(int buffer, Range rows, double scale, bool gradient) {
  const Span s = span(rows);
  const std::int64_t width = shape_.width;
  const std::int64_t norm = parameters_.table.final_norm;
  const Residual<Real> last = held(activations(buffer).last, s);
  rms_norm(last_residual(buffer, s), last, weight(norm), s.held, width, model_.norm_eps,
           work_.normed.data(), work_.rstd_last.data());
  // All ranks compute the logits of the same rows at the same time: the statistics meet.
  const Real* normed = gather(work_.normed.data(), work_.gathered.data(), s, kNothing);
  double sum = 0;
  with_parts(work_.dnormed.data(),
             [&](auto* dnormed) { sum = head_loss(buffer, normed, scale, s, dnormed, gradient); });
  if (!gradient) return sum;
  post_parts(work_.dnormed.data(), s, kNothing);  // they are there
  sum_parts(work_.dnormed.data(), s);
  rms_norm_gradient<Real>({work_.dnormed.data(), last, work_.rstd_last.data(), weight(norm)},
                          {nullptr, held(work_.dx, s), rounded(s), nullptr, gradient_of(norm),
                           work_.norm_partials.data()},
                          s.held, width);
  return sum;
}

template <typename Real>
TokenLosses<Accumulator<Real>> Llama<Real>::token_losses(Range rows) const {
  using Host = Kokkos::View<Sum*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  const auto count = static_cast<std::size_t>(rows.size());
  const auto copy = [&](std::int64_t first) {
    std::vector<Sum> values(count);
    const auto begin = static_cast<std::size_t>(first + rows.begin);
    copy_and_wait(Host(values.data(), count),
                  Kokkos::subview(work_.losses, std::pair(begin, begin + count)));
    return values;
  };
  return {copy(0), copy(capacity_.rows)};
}

template <typename Real>
template <typename Out>
double Llama<Real>::head_loss(int buffer, const Real* normed, double scale, const Span& s,
                              Out* dnormed, bool gradient) {
  const std::int64_t width = shape_.width;
  const std::int64_t vocab = shape_.vocab.size();
  const Real* head = weight(parameters_.table.head);
  const Real* dlogits = work_.dlogits.data();
  double sum = 0;
  for (std::int64_t row = 0; row < s.count; row += work_.logit_rows) {
    const std::int64_t count = std::min(work_.logit_rows, s.count - row);
    const Real* hidden = normed + row * width;
    project(hidden, head, count, width, vocab, work_.logits.data());
    sum += chunk_loss(buffer, s.begin + row, count, scale);
    if (!gradient) continue;
    input_gradient_gemm(dlogits, head, count, width, vocab, dnormed + row * width);
    weight_gradient(hidden, dlogits, count, width, vocab, gradient_of(parameters_.table.head));
  }
  return sum;
}

template <typename Real>
double Llama<Real>::chunk_loss(int buffer, std::int64_t first, std::int64_t count, double scale) {
  const std::int32_t* targets = activations(buffer).targets.data() + first;
  const RowLosses<Sum> losses{work_.losses.data() + first,
                              work_.losses.data() + capacity_.rows + first};
  Sum* logits = work_.logits.data();
  Real* dlogits = work_.dlogits.data();
  if (group_ == nullptr) {
    return cross_entropy(logits, targets, count, shape_.vocab.size(), scale, dlogits, losses);
  }
  Sum* largest = work_.statistics.data();
  const RowStatistics<Sum> statistics{largest, largest + count, largest + 2 * count};
  const auto rows = static_cast<std::size_t>(count);
  slice_largest(logits, targets, count, shape_.vocab, statistics);
  group_->all_reduce_max({largest, rows});
  slice_sums(logits, targets, count, shape_.vocab, statistics);
  group_->all_reduce_sum({statistics.sum, 2 * rows});
  return slice_gradient(static_cast<const Sum*>(logits), targets, count, shape_.vocab, scale,
                        statistics, dlogits, losses);
}

template <typename Real>
void Llama<Real>::attention_outputs_gradient(int buffer, int layer, Range rows) {
  const LayerActivations<Real>& l = activations(buffer, layer);
  const LayerOffsets& w = offsets(layer);
  const Span s = span(rows);
  const std::int64_t width = shape_.width, ffn = shape_.ffn, queries = shape_.queries;
  const Real* rounded = this->rounded(s);
  Real* hidden = work_.hidden.data();
  Real* gate_up = l.gate_up.data() + s.begin * 2 * ffn;
  // The feed-forward activation and its normed input are recomputed, not kept.
  const bool again = recompute_ == config::Recompute::mlp;
  if (recompute_ == config::Recompute::attention) keep_out(l, s);
  if (again) make_gate_up(buffer, layer, nullptr, s);
  const Real* dx = gather(
      rounded, arrived<Real>(), s, [&](std::int64_t first, std::int64_t count, const Real* dx) {
        input_gradient_gemm(dx, weight(w.down), count, ffn, width, hidden + first * ffn);
      });
  swiglu_gradient(gate_up, s.count, ffn, hidden);
  weight_gradient(hidden, dx, s.count, ffn, width, gradient_of(w.down));
  if (!again) post_normed(held(l.middle, s), l.rstd2.data(), w.post_norm, s);
  post_parts(work_.dnormed.data(), s, [&](std::int64_t first, std::int64_t count, auto* to) {
    input_gradient_gemm<Real>(gate_up + first * 2 * ffn, weight(w.gate), count, width, 2 * ffn, to);
  });
  const Real* normed = take_normed(!again, s);
  norm_gradient(held(l.middle, s), l.rstd2.data(), w.post_norm, s);
  post_gather(rounded, arrived<Real>(), s);
  weight_gradient<Real>(normed, gate_up, s.count, width, 2 * ffn, gradient_of(w.gate));
  dx = take_gathered(rounded, arrived<Real>(), s,
                     [&](std::int64_t first, std::int64_t count, const Real* dx) {
                       input_gradient_gemm(dx, weight(w.o), count, queries, width,
                                           work_.dout.data() + (s.begin + first) * queries);
                     });
  weight_gradient<Real>(l.out.data() + s.begin * queries, dx, s.count, queries, width,
                        gradient_of(w.o));
  clear(work_.dq.data() + s.begin * queries, s.count * queries);
  clear(work_.dk.data() + s.begin * shape_.keys, s.count * shape_.keys);
  clear(work_.dv.data() + s.begin * shape_.keys, s.count * shape_.keys);
}

template <typename Real>
void Llama<Real>::attention_inputs_gradient(int buffer, int layer, Range rows) {
  const LayerActivations<Real>& l = activations(buffer, layer);
  const LayerOffsets& w = offsets(layer);
  const Span s = span(rows);
  const std::int64_t width = shape_.width, joined = shape_.joined();
  const Real* gradients = work_.hidden.data();
  attention::join_gradients<Real>(
      rotary_, config::attention_shape(model_, part_.tensor_size),
      {work_.dq.data() + s.begin * shape_.queries, work_.dk.data() + s.begin * shape_.keys,
       work_.dv.data() + s.begin * shape_.keys},
      Kokkos::subview(activations(buffer).positions, std::pair(s.begin, s.begin + s.count)),
      s.count, work_.hidden.data());
  if (model_.qk_norm) {
    head_norm_gradient<Real>({l.unnormed_q.data() + s.begin * shape_.queries,
                              l.unnormed_k.data() + s.begin * shape_.keys, weight(w.q_norm)},
                             config::attention_shape(model_, part_.tensor_size), s.count,
                             model_.norm_eps, work_.hidden.data(), gradient_of(w.q_norm),
                             work_.norm_partials.data());
  }
  // Q, K and V are adjacent in the parameters: one sum and one product take all.
  if (model_.qkv_bias) {
    bias_gradient(gradients, s.count, joined, gradient_of(w.q_bias), work_.norm_partials.data());
  }
  post_normed(held(l.input, s), l.rstd1.data(), w.input_norm, s);
  post_parts(work_.dnormed.data(), s, [&](std::int64_t first, std::int64_t count, auto* to) {
    input_gradient_gemm(gradients + first * joined, weight(w.q), count, width, joined, to);
  });
  // In a group, the weights' gradient is computed while the last parts travel; without one, the
  // norm's gradient makes its input.
  if (group_ == nullptr) norm_gradient(held(l.input, s), l.rstd1.data(), w.input_norm, s);
  weight_gradient(take_normed(true, s), gradients, s.count, width, joined, gradient_of(w.q));
  if (group_ != nullptr) norm_gradient(held(l.input, s), l.rstd1.data(), w.input_norm, s);
}

template <typename Real>
void Llama<Real>::post_normed(Residual<Real> x, Sum* rstd, std::int64_t norm, const Span& s) {
  if (group_ == nullptr) return;
  rms_norm<Real>(nullptr, x, weight(norm), s.held, shape_.width, model_.norm_eps,
                 work_.normed.data(), rstd + s.row);
  post_gather(work_.normed.data(), work_.gathered.data(), s);
}

template <typename Real>
const Real* Llama<Real>::take_normed(bool posted, const Span& s) {
  if (group_ != nullptr && !posted) return work_.gathered.data();
  return take_gathered(work_.normed.data(), work_.gathered.data(), s, kNothing);
}

template <typename Real>
void Llama<Real>::norm_gradient(Residual<Real> x, const Sum* rstd, std::int64_t norm,
                                const Span& s) {
  const Residual<Real> dx = held(work_.dx, s);
  Real* normed = group_ == nullptr ? work_.normed.data() : nullptr;
  sum_parts(work_.dnormed.data(), s);
  rms_norm_gradient<Real>(
      {work_.dnormed.data(), x, rstd + s.row, weight(norm)},
      {dx, dx, rounded(s), normed, gradient_of(norm), work_.norm_partials.data()}, s.held,
      shape_.width);
}

template <typename Real>
void Llama<Real>::embed_gradient(int buffer, Range rows) {
  const Span s = span(rows);
  const ActivationBuffer<Real>& of = activations(buffer);
  held(work_.dx, s).visit([&]<typename T>(const T* own) {
    // All that is for parts has room for the rows as sums, whatever type parts have.
    T* all = reinterpret_cast<T*>(work_.parts.data());
    post_gather(own, all, s);
    const T* dx = take_gathered(own, all, s, kNothing);
    model::embed_gradient(
        dx, {of.run_rows.data(), of.run_tokens.data(), of.run_begins.data(), of.run_count},
        {s.begin, s.begin + s.count}, shape_.vocab, shape_.width,
        gradient_of(parameters_.table.embedding));
  });
}

#define CADENZA_INSTANTIATE(Real)                                                                  \
  template double Llama<Real>::loss(int, Range, double, bool);                                     \
  template TokenLosses<Accumulator<Real>> Llama<Real>::token_losses(Range) const;                  \
  template double Llama<Real>::chunk_loss(int, std::int64_t, std::int64_t, double);                \
  template void Llama<Real>::attention_outputs_gradient(int, int, Range);                          \
  template void Llama<Real>::attention_inputs_gradient(int, int, Range);                           \
  template void Llama<Real>::norm_gradient(Residual<Real>, const Sum*, std::int64_t, const Span&); \
  template void Llama<Real>::post_normed(Residual<Real>, Sum*, std::int64_t, const Span&);         \
  template const Real* Llama<Real>::take_normed(bool, const Span&);                                \
  template void Llama<Real>::embed_gradient(int, Range);
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::model
