// SPDX-License-Identifier: Apache-2.0
// Activation buffers, rows, and data at the boundaries of a part.
#include "cadenza/model/llama.hpp"

#include <algorithm>
#include <type_traits>

#include "cadenza/model/layers.hpp"
#include "model/shards.hpp"

namespace cadenza::model {
namespace {

template <typename Real>
constexpr config::Dtype kDtype = std::is_same_v<Real, double>  ? config::Dtype::float64
                                 : std::is_same_v<Real, float> ? config::Dtype::float32
                                                               : config::Dtype::bfloat16;

}  // namespace

template <typename Real>
Llama<Real>::Llama(const config::Model& model, const ModelPart& part, Capacity capacity,
                   config::Recompute recompute, const kernels::RotaryTable<Sum>& rotary,
                   Parameters<Real>& parameters, TensorGroup<Sum>* group, MemoryLedger& ledger)
    : model_(model),
      part_(part),
      shape_(model, part),
      capacity_(capacity),
      recompute_(recompute),
      rotary_(rotary),
      parameters_(parameters),
      group_(part.tensor_size == 1 ? nullptr : group),
      ledger_(ledger),
      work_(make_activations<Real>(model, part, capacity, recompute, ledger)) {}

template <typename Real>
void Llama<Real>::reserve(std::int64_t rows) {
  if (rows <= capacity_.rows) return;
  work_ = {};
  ledger_.remove(MemoryKind::activations,
                 activation_bytes(model_, part_, capacity_, recompute_, kDtype<Real>));
  capacity_.rows = rows;
  work_ = make_activations<Real>(model_, part_, capacity_, recompute_, ledger_);
}

template <typename Real>
void Llama<Real>::set_batch(int buffer, int chunk, const TokenBatch& batch) {
  ActivationBuffer<Real>& to = activations(buffer);
  to.chunk_layers = part_.chunks[at(chunk)].size();
  to.rows = static_cast<std::int64_t>(batch.tokens.size());
  copy_in<std::int32_t>(batch.tokens, to.tokens.data());
  copy_in<std::int32_t>(batch.positions, to.positions.data());
  copy_in<std::int32_t>(batch.targets, to.targets.data());
  if (!part_.embedding) return;
  const RowsByToken sorted = rows_by_token(batch.tokens, shape_.vocab);
  to.run_count = std::ssize(sorted.tokens);
  copy_in<std::int32_t>(sorted.rows, to.run_rows.data());
  copy_in<std::int32_t>(sorted.tokens, to.run_tokens.data());
  copy_in<std::int32_t>(sorted.begins, to.run_begins.data());
}

template <typename Real>
AttentionBuffers<Real> Llama<Real>::attention_buffers(int buffer, int layer) {
  const LayerActivations<Real>& l = activations(buffer, layer);
  return {l.q.data(),      l.k.data(),        l.v.data(),         merged(l),
          l.lse.data(),    work_.dout.data(), work_.delta.data(), work_.dq.data(),
          work_.dk.data(), work_.dv.data(),   l.out.data()};
}

template <typename Real>
std::vector<std::span<std::byte>> Llama<Real>::kept(int slot) const {
  const LayerActivations<Real>& l = work_.slots[at(slot)];
  std::vector<std::span<std::byte>> arrays;
  const auto add = [&](const auto&... all) {
    (arrays.push_back(std::as_writable_bytes(std::span(all.data(), all.size()))), ...);
  };
  const Keeps keeps(recompute_);
  add(l.input);
  if (keeps.attention) add(l.rstd1, l.q, l.k, l.v, l.unnormed_q, l.unnormed_k, l.out, l.lse);
  if (keeps.middle) add(l.middle, l.rstd2);
  if (keeps.gate_up) add(l.gate_up);
  return arrays;
}

template <typename Real>
Accumulator<Real>* Llama<Real>::merged(const LayerActivations<Real>& layer) {
  if constexpr (std::is_same_v<Real, Sum>) {
    return layer.out.data();
  } else {
    return work_.merged.data();
  }
}

template <typename Real>
const Real* Llama<Real>::keep_out(const LayerActivations<Real>& layer, const Span& rows) {
  const std::int64_t first = rows.begin * shape_.queries;
  return as_real(merged(layer) + first, rows.count * shape_.queries, layer.out.data() + first);
}

template <typename Real>
typename Llama<Real>::Span Llama<Real>::span(Range rows) const {
  return {rows.begin, rows.size(), rows.begin / part_.tensor_size, rows.size() / part_.tensor_size};
}

template <typename Real>
Residual<Real> Llama<Real>::stream_after(int buffer, int layer, const Span& rows) {
  ActivationBuffer<Real>& of = activations(buffer);
  const int next = in_chunk(layer) + 1;
  return held(next < of.chunk_layers ? in_buffer(buffer, next).input : of.last, rows);
}

template <typename Real>
Real* Llama<Real>::rounded(const Span& rows) {
  if (work_.rounded.size() == 0) return held(work_.dx, rows).template as<Real>();
  return work_.rounded.data() + rows.row * shape_.width;
}

template <typename Real>
int Llama<Real>::in_chunk(int layer) const {
  for (const Range& chunk : part_.chunks) {
    if (layer < chunk.size()) break;
    layer -= static_cast<int>(chunk.size());
  }
  return layer;
}

template <typename Real>
Residual<Real> Llama<Real>::residual(int buffer, std::int64_t in_chunk, const Span& rows) {
  if (in_chunk == 0) return nullptr;
  return held(in_buffer(buffer, in_chunk - 1).middle, rows);
}

template <typename Real>
Residual<Real> Llama<Real>::last_residual(int buffer, const Span& rows) {
  if (!keeps_layers()) return nullptr;
  return residual(buffer, activations(buffer).chunk_layers, rows);
}

template <typename Real>
const Real* Llama<Real>::as_real(const Sum* values, std::int64_t count, Real* rounded) {
  if constexpr (std::is_same_v<Real, Sum>) {
    return values;
  } else {
    round(values, count, rounded);
    return rounded;
  }
}

template <typename Real>
void Llama<Real>::sum_parts(Residual<Real> held, const Span& rows) {
  if (group_ == nullptr) return;
  for (int step = 1; step < group_->size(); ++step) group_->wait(Collective::reduce_scatter, step);
  with_parts(held, [&]<typename T>(const T* parts) {
    const T* own = parts + group_->rank() * rows.held * shape_.width;
    const ShardParts<T> shards{own, arrived<T>(), group_->rank(), group_->size()};
    held.visit([&](auto* sum) { model::sum_parts(shards, rows.held, shape_.width, sum); });
  });
}

template <typename Real>
std::int64_t Llama<Real>::boundary_bytes(Range rows) const {
  return span(rows).held * shape_.width * Residual<Real>::bytes_of(rounds_residual());
}

template <typename Real>
void Llama<Real>::output(int buffer, Range rows, std::byte* to) {
  const Span s = span(rows);
  const std::int64_t elements = s.held * shape_.width;
  const Residual<Real> before = last_residual(buffer, s);
  held(activations(buffer).last, s).visit([&]<typename T>(T* stream) {
    T* message = reinterpret_cast<T*>(to);
    before ? add(stream, before.template as<T>(), elements, message)
           : copy(stream, elements, message);
  });
}

template <typename Real>
void Llama<Real>::set_input(int buffer, Range rows, const std::byte* from) {
  const Span s = span(rows);
  held(activations(buffer, 0).input, s).visit([&]<typename T>(T* stream) {
    copy(reinterpret_cast<const T*>(from), s.held * shape_.width, stream);
  });
}

template <typename Real>
void Llama<Real>::gradient(Range rows, std::byte* to) const {
  const Span s = span(rows);
  held(work_.dx, s).visit([&]<typename T>(const T* dx) {
    copy(dx, s.held * shape_.width, reinterpret_cast<T*>(to));
  });
}

template <typename Real>
void Llama<Real>::set_gradient(Range rows, const std::byte* from) {
  const Span s = span(rows);
  const std::int64_t elements = s.held * shape_.width;
  held(work_.dx, s).visit([&]<typename T>(T* dx) {
    copy(reinterpret_cast<const T*>(from), elements, dx);
    if constexpr (std::is_same_v<T, Sum>) as_real(dx, elements, rounded(s));
  });
}

template <typename Real>
void Llama<Real>::reduce_norm_gradients() {
  if (group_ == nullptr) return;
  const std::int64_t sliced = parameters_.table.sliced_elements;
  group_->all_reduce_sum(
      {gradient_of(sliced), static_cast<std::size_t>(parameters_.table.elements - sliced)});
}

#define CADENZA_INSTANTIATE(Real)                                                                  \
  template Llama<Real>::Llama(const config::Model&, const ModelPart&, Capacity, config::Recompute, \
                              const kernels::RotaryTable<Sum>&, Parameters<Real>&,                 \
                              TensorGroup<Sum>*, MemoryLedger&);                                   \
  template void Llama<Real>::reserve(std::int64_t);                                                \
  template void Llama<Real>::set_batch(int, int, const TokenBatch&);                               \
  template AttentionBuffers<Real> Llama<Real>::attention_buffers(int, int);                        \
  template typename Llama<Real>::Span Llama<Real>::span(Range) const;                              \
  template Residual<Real> Llama<Real>::stream_after(int, int, const Span&);                        \
  template Real* Llama<Real>::rounded(const Span&);                                                \
  template int Llama<Real>::in_chunk(int) const;                                                   \
  template Residual<Real> Llama<Real>::residual(int, std::int64_t, const Span&);                   \
  template Residual<Real> Llama<Real>::last_residual(int, const Span&);                            \
  template std::vector<std::span<std::byte>> Llama<Real>::kept(int) const;                         \
  template Accumulator<Real>* Llama<Real>::merged(const LayerActivations<Real>&);                  \
  template const Real* Llama<Real>::keep_out(const LayerActivations<Real>&, const Span&);          \
  template const Real* Llama<Real>::as_real(const Sum*, std::int64_t, Real*);                      \
  template void Llama<Real>::sum_parts(Residual<Real>, const Span&);                               \
  template std::int64_t Llama<Real>::boundary_bytes(Range) const;                                  \
  template void Llama<Real>::output(int, Range, std::byte*);                                       \
  template void Llama<Real>::set_input(int, Range, const std::byte*);                              \
  template void Llama<Real>::gradient(Range, std::byte*) const;                                    \
  template void Llama<Real>::set_gradient(Range, const std::byte*);                                \
  template void Llama<Real>::reduce_norm_gradients();
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
CADENZA_INSTANTIATE(bfloat16)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::model
