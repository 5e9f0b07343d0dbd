// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/exchange.hpp"

#include <algorithm>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"

namespace cadenza::exec {
namespace {

using plan::Tensor;
using program::Pass;
using trace::Category;

template <typename Real>
void copy_elements(const Real* from, Real* to, std::int64_t count) {
  Kokkos::parallel_for(
      "copy_rows", Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>(0, count),
      KOKKOS_LAMBDA(const std::int64_t i) { to[i] = from[i]; });
}

template <typename Real>
void add_elements(const Real* from, Real* to, std::int64_t count) {
  Kokkos::parallel_for(
      "add_rows", Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>(0, count),
      KOKKOS_LAMBDA(const std::int64_t i) { to[i] += from[i]; });
}

template <typename Real>
void zero_elements(Real* to, std::int64_t count) {
  Kokkos::parallel_for(
      "zero_rows", Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>(0, count),
      KOKKOS_LAMBDA(const std::int64_t i) { to[i] = Real(0); });
}

/// Rows of the homes of a rank.
std::int64_t home_rows(const Binding& binding) {
  return binding.homes.empty() ? 0 : binding.homes.back().row + binding.homes.back().tokens.size();
}

bool carries_results(const Traffic& traffic, Pass pass) {
  return std::ranges::any_of(traffic.segments, [pass](const Segment& part) {
    return program::is_result(part.what, pass);
  });
}

}  // namespace

template <typename Real>
AttentionExchange<Real>::AttentionExchange(comm::Communicator& world,
                                           const kernels::AttentionShape& shape,
                                           const kernels::RotaryTable<Real>& rotary, Tracer& tracer,
                                           MemoryLedger& ledger)
    : world_(world),
      shape_(shape),
      plan_shape_{shape.heads, shape.kv_heads, shape.head_dim, static_cast<int>(sizeof(Real))},
      rotary_(rotary),
      tracer_(tracer),
      ledger_(ledger),
      names_{tracer.intern("pack"),
             tracer.intern("unpack"),
             tracer.intern("wait"),
             tracer.intern("attend"),
             tracer.intern("begin_attention"),
             tracer.intern("attention_inputs_message"),
             tracer.intern("attention_results_message")} {}

template <typename Real>
void AttentionExchange<Real>::bind(const program::TickPlans& plans, int tick) {
  binding_ = exec::bind(plans, world_.rank());
  tick_ = tick;
  grow_workspace();
  const std::size_t stages = std::max(binding_.forward.size(), binding_.backward.size());
  send_.resize(std::max(send_.size(), stages));
  receive_.resize(std::max(receive_.size(), stages));
  for (const auto* bound : {&binding_.forward, &binding_.backward}) {
    for (std::size_t stage = 0; stage < bound->size(); ++stage) {
      grow(send_[stage], (*bound)[stage].sends.elements);
      grow(receive_[stage], (*bound)[stage].receives.elements);
    }
  }
}

template <typename Real>
void AttentionExchange<Real>::grow(Buffer& buffer, std::int64_t elements) {
  const auto present = static_cast<std::int64_t>(buffer.device.extent(0));
  if (elements <= present) return;
  ledger_.remove(MemoryKind::communication, present * static_cast<std::int64_t>(sizeof(Real)));
  buffer.host = {};
  buffer.device = {};
  buffer.device = allocate<Real>(ledger_, MemoryKind::communication, "messages", elements);
  buffer.host = Kokkos::create_mirror_view(buffer.device);
}

template <typename Real>
Array<Real> AttentionExchange<Real>::workspace_array(const char* label, std::int64_t elements) {
  return workspace_arrays_.emplace_back(
      allocate<Real>(ledger_, MemoryKind::attention, label, elements));
}

template <typename Real>
void AttentionExchange<Real>::grow_workspace() {
  if (binding_.query_rows <= query_capacity_ && binding_.key_rows <= key_capacity_) return;
  query_capacity_ = std::max(query_capacity_, binding_.query_rows);
  key_capacity_ = std::max(key_capacity_, binding_.key_rows);
  for (const Array<Real>& array : workspace_arrays_) {
    ledger_.remove(MemoryKind::attention,
                   static_cast<std::int64_t>(array.extent(0) * sizeof(Real)));
  }
  workspace_arrays_.clear();
  const auto make = [&](const char* label, Tensor what) {
    const std::int64_t rows = plan::is_key_side(what) ? key_capacity_ : query_capacity_;
    return workspace_array(label, rows * row_elements(plan_shape_, what)).data();
  };
  workspace_ = {make("workspace_q", Tensor::q),         make("workspace_k", Tensor::k),
                make("workspace_v", Tensor::v),         make("workspace_o", Tensor::o),
                make("workspace_lse", Tensor::lse),     make("workspace_dout", Tensor::dout),
                make("workspace_delta", Tensor::delta), make("workspace_dq", Tensor::dq),
                make("workspace_dk", Tensor::dk),       make("workspace_dv", Tensor::dv)};
}

template <typename Real>
void AttentionExchange<Real>::set_layer(int layer, const model::AttentionSlot<Real>& home) {
  layer_ = layer;
  home_ = home;
}

template <typename Real>
Real* AttentionExchange<Real>::rows_of(const model::AttentionSlot<Real>& slot, Tensor what,
                                       std::int64_t row) const {
  Real* base = nullptr;
  switch (what) {
    case Tensor::q:
      base = slot.q;
      break;
    case Tensor::k:
      base = slot.k;
      break;
    case Tensor::v:
      base = slot.v;
      break;
    case Tensor::o:
      base = slot.out;
      break;
    case Tensor::lse:
      base = slot.lse;
      break;
    case Tensor::dout:
      base = slot.dout;
      break;
    case Tensor::delta:
      base = slot.delta;
      break;
    case Tensor::dq:
      base = slot.dq;
      break;
    case Tensor::dk:
      base = slot.dk;
      break;
    case Tensor::dv:
      base = slot.dv;
      break;
  }
  return base == nullptr ? nullptr : base + row * row_elements(plan_shape_, what);
}

template <typename Real>
void AttentionExchange<Real>::begin(Pass pass) {
  tracer_.time(Category::compute_other, names_.begin, {}, [&] {
    const auto start = [&](const model::AttentionSlot<Real>& slot, std::int64_t query_rows,
                           std::int64_t key_rows) {
      if (pass == Pass::forward) {
        attention::initialise(slot.out, slot.lse, query_rows, shape_.heads, shape_.head_dim);
        return;
      }
      zero_elements(slot.dq, query_rows * row_elements(plan_shape_, Tensor::dq));
      zero_elements(slot.dk, key_rows * row_elements(plan_shape_, Tensor::dk));
      zero_elements(slot.dv, key_rows * row_elements(plan_shape_, Tensor::dv));
    };
    const std::int64_t rows = home_rows(binding_);
    start(home_, rows, rows);
    start(workspace_, binding_.query_rows, binding_.key_rows);
    if (pass == Pass::backward) {
      attention::delta<Real>(home_.out, home_.dout, rows, shape_.heads, shape_.head_dim,
                             home_.delta);
    }
  });
}

template <typename Real>
int AttentionExchange<Real>::tag(Pass pass, int stage) const {
  // Tags only tell stages apart: order keeps layers and ticks apart.
  return 2 * stage + (pass == Pass::backward ? 1 : 0);
}

template <typename Real>
void AttentionExchange<Real>::pack(const Traffic& traffic, const Buffer& buffer) {
  for (const Segment& part : traffic.segments) {
    const auto& slot = part.home ? home_ : workspace_;
    copy_elements<Real>(rows_of(slot, part.what, part.row), buffer.device.data() + part.offset,
                        part.rows * row_elements(plan_shape_, part.what));
  }
  Kokkos::deep_copy(buffer.host, buffer.device);
}

template <typename Real>
void AttentionExchange<Real>::post(Pass pass, int stage) {
  const auto at = static_cast<std::size_t>(stage);
  const StageBinding& bound = binding_.of(pass)[at];
  for (const Message& message : bound.receives.messages) {
    Real* data = receive_[at].host.data() + message.offset;
    world_.post_receive(
        std::as_writable_bytes(std::span(data, static_cast<std::size_t>(message.count))),
        message.peer, tag(pass, stage), stage);
  }
  receive_[at].posted_ns = trace::now_ns();
  if (bound.sends.messages.empty()) return;
  const std::int64_t bytes = bound.sends.elements * static_cast<std::int64_t>(sizeof(Real));
  tracer_.time(Category::compute_other, names_.pack, {bytes},
               [&] { pack(bound.sends, send_[at]); });
  send_[at].posted_ns = trace::now_ns();
  for (const Message& message : bound.sends.messages) {
    const Real* data = send_[at].host.data() + message.offset;
    world_.post_send(std::as_bytes(std::span(data, static_cast<std::size_t>(message.count))),
                     message.peer, tag(pass, stage), stage);
  }
  tracer_.count_sent(bytes);
}

template <typename Real>
void AttentionExchange<Real>::wait(Pass pass, int stage) {
  const auto at = static_cast<std::size_t>(stage);
  const StageBinding& bound = binding_.of(pass)[at];
  tracer_.time(Category::wait, names_.wait, {}, [&] { world_.wait(stage); });
  record_messages(bound.sends, pass, stage, true, send_[at].posted_ns);
  record_messages(bound.receives, pass, stage, false, receive_[at].posted_ns);
  if (bound.receives.messages.empty()) return;
  const std::int64_t bytes = bound.receives.elements * static_cast<std::int64_t>(sizeof(Real));
  tracer_.time(Category::compute_other, names_.unpack, {bytes},
               [&] { unpack(bound.receives, receive_[at]); });
  tracer_.count_received(bytes);
}

template <typename Real>
void AttentionExchange<Real>::record_messages(const Traffic& traffic, Pass pass, int stage,
                                              bool sends, std::int64_t begin) {
  const bool results = carries_results(traffic, pass);
  const std::int64_t end = trace::now_ns();
  for (const Message& message : traffic.messages) {
    const int from = sends ? world_.rank() : message.peer;
    const int to = sends ? message.peer : world_.rank();
    const auto flow = static_cast<std::uint32_t>(Hasher()
                                                     .add(static_cast<std::uint64_t>(from))
                                                     .add(static_cast<std::uint64_t>(to))
                                                     .add(static_cast<std::uint64_t>(tick_))
                                                     .add(static_cast<std::uint64_t>(layer_))
                                                     .add(static_cast<std::uint64_t>(stage))
                                                     .add(static_cast<std::uint64_t>(pass))
                                                     .value());
    tracer_.message(
        results ? Category::attention_return : Category::attention_dispatch,
        results ? names_.results : names_.inputs, begin, end,
        {message.count * static_cast<std::int64_t>(sizeof(Real)), 0, message.peer, flow});
  }
}

template <typename Real>
void AttentionExchange<Real>::unpack(const Traffic& traffic, const Buffer& buffer) {
  Kokkos::deep_copy(buffer.device, buffer.host);
  for (const Segment& part : traffic.segments) {
    const Real* source = buffer.device.data() + part.offset;
    const std::int64_t count = part.rows * row_elements(plan_shape_, part.what);
    Real* target = rows_of(part.home ? home_ : workspace_, part.what, part.row);
    switch (part.what) {
      case Tensor::o:
        merge_output(traffic, part, buffer);
        break;
      case Tensor::lse:
        // Forward: merged with its O. Backward: an input.
        if (!part.home) copy_elements(source, target, count);
        break;
      case Tensor::dq:
      case Tensor::dk:
      case Tensor::dv:
        add_elements(source, target, count);
        break;
      default:
        copy_elements(source, target, count);
        break;
    }
  }
}

template <typename Real>
void AttentionExchange<Real>::merge_output(const Traffic& traffic, const Segment& out,
                                           const Buffer& buffer) {
  // The LSE of the same rows follows its O in the same message.
  const auto lse = std::ranges::find_if(traffic.segments, [&](const Segment& part) {
    return part.what == Tensor::lse && part.row == out.row && part.rows == out.rows &&
           part.offset > out.offset;
  });
  if (lse == traffic.segments.end()) {
    fail(ExitCode::communication, "O rows arrive on rank {} without their LSE", world_.rank());
  }
  attention::merge_partial<Real>(
      rows_of(home_, Tensor::o, out.row), rows_of(home_, Tensor::lse, out.row),
      buffer.device.data() + out.offset, buffer.device.data() + lse->offset, out.rows, shape_.heads,
      shape_.head_dim);
}

template <typename Real>
kernels::TaskList<Real> AttentionExchange<Real>::task_list(const StageBinding& stage) const {
  kernels::TaskList<Real> list;
  const auto queries = [&](const model::AttentionSlot<Real>& slot, const RowPiece& piece) {
    const auto at = [&](Tensor what) { return rows_of(slot, what, piece.row); };
    list.queries.push_back({piece.tokens, at(Tensor::q), at(Tensor::o), at(Tensor::lse),
                            at(Tensor::dout), at(Tensor::delta), at(Tensor::dq)});
  };
  const auto keys = [&](const model::AttentionSlot<Real>& slot, const RowPiece& piece) {
    const auto at = [&](Tensor what) { return rows_of(slot, what, piece.row); };
    list.keys.push_back(
        {piece.tokens, at(Tensor::k), at(Tensor::v), at(Tensor::dk), at(Tensor::dv)});
  };
  for (const RowPiece& piece : binding_.homes) {
    queries(home_, piece);
    keys(home_, piece);
  }
  for (const RowPiece& piece : binding_.query_pieces) queries(workspace_, piece);
  for (const RowPiece& piece : binding_.key_pieces) keys(workspace_, piece);
  list.tasks = stage.tasks;
  return list;
}

template <typename Real>
void AttentionExchange<Real>::attend(Pass pass, int stage) {
  const StageBinding& bound = binding_.of(pass)[static_cast<std::size_t>(stage)];
  tracer_.time(Category::compute_attention, names_.attend, {0, bound.flops}, [&] {
    const kernels::TaskList<Real> list = task_list(bound);
    if (pass == Pass::forward) {
      kernels::attention_forward(shape_, rotary_, list);
    } else {
      kernels::attention_backward(shape_, rotary_, list);
    }
  });
}

template class AttentionExchange<float>;
template class AttentionExchange<double>;

}  // namespace cadenza::exec
