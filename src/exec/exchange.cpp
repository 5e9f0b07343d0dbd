// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/exchange.hpp"

#include <algorithm>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"
#include "elements.hpp"

namespace cadenza::exec {
namespace {

using plan::Tensor;
using program::Pass;
using trace::Category;

template <typename T>
T* as(std::byte* bytes) {
  return reinterpret_cast<T*>(bytes);
}
template <typename T>
T* as(const std::byte* bytes) {
  return reinterpret_cast<T*>(bytes);
}

/// One number per row and head.
bool is_statistic(Tensor what) {
  return what == Tensor::lse || what == Tensor::delta;
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
                                           const kernels::RotaryTable<Sum>& rotary, Tracer& tracer,
                                           MemoryLedger& ledger)
    : world_(world),
      shape_(shape),
      plan_shape_{shape.heads, shape.kv_heads, shape.head_dim, static_cast<int>(sizeof(Real)),
                  static_cast<int>(sizeof(Sum))},
      rotary_(rotary),
      tracer_(tracer),
      ledger_(ledger),
      names_{tracer.intern("pack"),
             tracer.intern("unpack"),
             tracer.intern("wait"),
             tracer.intern("attend"),
             tracer.intern("begin_attention"),
             tracer.intern("attention_inputs_message"),
             tracer.intern("attention_results_message")},
      workspace_(plan_shape_, ledger) {}

template <typename Real>
void AttentionExchange<Real>::bind(const program::TickPlans& plans, int tick) {
  const plan::AttentionShape& planned = plans.forward.workload.shape;
  if (planned.element_bytes != plan_shape_.element_bytes ||
      planned.accumulator_bytes != plan_shape_.accumulator_bytes) {
    fail(ExitCode::communication,
         "the plan moves elements of {} and {} bytes, this run of {} and {}", planned.element_bytes,
         planned.accumulator_bytes, plan_shape_.element_bytes, plan_shape_.accumulator_bytes);
  }
  binding_ = exec::bind(plans, world_.rank());
  tick_ = tick;
  workspace_.grow(binding_.query_rows, binding_.key_rows);
  if constexpr (!std::is_same_v<Real, Sum>) grow_arriving();
  const std::size_t stages = std::max(binding_.forward.size(), binding_.backward.size());
  send_.resize(std::max(send_.size(), stages));
  receive_.resize(std::max(receive_.size(), stages));
  for (const auto* bound : {&binding_.forward, &binding_.backward}) {
    for (std::size_t stage = 0; stage < bound->size(); ++stage) {
      grow(send_[stage], (*bound)[stage].sends.bytes);
      grow(receive_[stage], (*bound)[stage].receives.bytes);
    }
  }
}

template <typename Real>
void AttentionExchange<Real>::grow(Buffer& buffer, std::int64_t bytes) {
  const auto present = static_cast<std::int64_t>(buffer.device.extent(0));
  if (bytes <= present) return;
  ledger_.remove(MemoryKind::communication, present);
  buffer.host = {};
  buffer.device = {};
  buffer.device = allocate<std::byte>(ledger_, MemoryKind::communication, "messages", bytes);
  buffer.host = Kokkos::create_mirror_view(buffer.device);
}

template <typename Real>
void AttentionExchange<Real>::grow_arriving() {
  const std::int64_t elements = arriving_elements(plan_shape_, binding_);
  const auto present = static_cast<std::int64_t>(arriving_.extent(0));
  if (elements <= present) return;
  ledger_.remove(MemoryKind::communication, present * static_cast<std::int64_t>(sizeof(Sum)));
  arriving_ = {};
  arriving_ = allocate<Sum>(ledger_, MemoryKind::communication, "arriving", elements);
}

template <typename Real>
void AttentionExchange<Real>::set_layer(int layer, const model::AttentionSlot<Real>& home) {
  layer_ = layer;
  home_ = home;
}

template <typename Real>
Real* AttentionExchange<Real>::inputs_of(const model::AttentionSlot<Real>& slot, Tensor what,
                                         std::int64_t row) const {
  Real* base = what == Tensor::q ? slot.q : what == Tensor::k ? slot.k : slot.v;
  if (what == Tensor::dout) base = slot.dout;
  return base + row * row_elements(plan_shape_, what);
}

template <typename Real>
Accumulator<Real>* AttentionExchange<Real>::sums_of(const model::AttentionSlot<Real>& slot,
                                                    Tensor what, std::int64_t row) const {
  Sum* base = nullptr;
  switch (what) {
    case Tensor::lse:
      base = slot.lse;
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
    default:
      base = slot.out;
      break;
  }
  return base + row * row_elements(plan_shape_, what);
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
    start(workspace_.slot(), binding_.query_rows, binding_.key_rows);
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
    const auto& slot = part.home ? home_ : workspace_.slot();
    std::byte* target = buffer.device.data() + part.offset;
    const std::int64_t count = part.rows * row_elements(plan_shape_, part.what);
    if (is_input(part.what)) {
      convert_elements(inputs_of(slot, part.what, part.row), as<Real>(target), count);
    } else if (is_statistic(part.what)) {
      copy_unaligned<Sum>(sums_of(slot, part.what, part.row), target, count);
    } else {
      convert_elements(sums_of(slot, part.what, part.row), as<Real>(target), count);
    }
  }
  Kokkos::deep_copy(buffer.host, buffer.device);
}

template <typename Real>
std::span<std::byte> AttentionExchange<Real>::bytes_of(const Buffer& buffer,
                                                       const Message& message) {
  return {buffer.host.data() + message.offset, static_cast<std::size_t>(message.bytes)};
}

template <typename Real>
void AttentionExchange<Real>::post(Pass pass, int stage) {
  const auto at = static_cast<std::size_t>(stage);
  const StageBinding& bound = binding_.of(pass)[at];
  for (const Message& message : bound.receives.messages) {
    world_.post_receive(bytes_of(receive_[at], message), message.peer, tag(pass, stage), stage);
  }
  receive_[at].posted_ns = trace::now_ns();
  if (bound.sends.messages.empty()) return;
  tracer_.time(Category::compute_other, names_.pack, {bound.sends.bytes},
               [&] { pack(bound.sends, send_[at]); });
  send_[at].posted_ns = trace::now_ns();
  for (const Message& message : bound.sends.messages) {
    world_.post_send(bytes_of(send_[at], message), message.peer, tag(pass, stage), stage);
  }
  tracer_.count_sent(bound.sends.bytes);
}

template <typename Real>
void AttentionExchange<Real>::wait(Pass pass, int stage) {
  const auto at = static_cast<std::size_t>(stage);
  const StageBinding& bound = binding_.of(pass)[at];
  tracer_.time(Category::wait, names_.wait, {}, [&] { world_.wait(stage); });
  record_messages(bound.sends, pass, stage, true, send_[at].posted_ns);
  record_messages(bound.receives, pass, stage, false, receive_[at].posted_ns);
  if (bound.receives.messages.empty()) return;
  tracer_.time(Category::compute_other, names_.unpack, {bound.receives.bytes},
               [&] { unpack(bound.receives, receive_[at]); });
  tracer_.count_received(bound.receives.bytes);
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
    tracer_.message(results ? Category::attention_return : Category::attention_dispatch,
                    results ? names_.results : names_.inputs, begin, end,
                    {message.bytes, 0, message.peer, flow});
  }
}

template <typename Real>
void AttentionExchange<Real>::unpack(const Traffic& traffic, const Buffer& buffer) {
  Kokkos::deep_copy(buffer.device, buffer.host);
  for (const Segment& part : traffic.segments) {
    const auto& slot = part.home ? home_ : workspace_.slot();
    const std::byte* source = buffer.device.data() + part.offset;
    const std::int64_t count = part.rows * row_elements(plan_shape_, part.what);
    if (is_input(part.what)) {
      convert_elements(as<const Real>(source), inputs_of(slot, part.what, part.row), count);
    } else if (part.what == Tensor::o) {
      merge_output(traffic, part, buffer);
    } else if (!is_statistic(part.what)) {
      add_elements(as<const Real>(source), sums_of(slot, part.what, part.row), count);
    } else if (!part.home) {  // an input of the backward pass; at home, LSE is merged with its O
      copy_unaligned<Sum>(source, sums_of(slot, part.what, part.row), count);
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
  const std::byte* part_out = buffer.device.data() + out.offset;
  const std::byte* part_lse = buffer.device.data() + lse->offset;
  if constexpr (!std::is_same_v<Real, Sum>) {
    const std::int64_t count = out.rows * row_elements(plan_shape_, Tensor::o);
    const std::int64_t statistics = out.rows * row_elements(plan_shape_, Tensor::lse);
    Sum* wide = arriving_.data();
    convert_elements(as<const Real>(part_out), wide, count);
    copy_unaligned<Sum>(part_lse, wide + count, statistics);
    part_out = reinterpret_cast<const std::byte*>(wide);
    part_lse = reinterpret_cast<const std::byte*>(wide + count);
  }
  attention::merge_partial<Sum>(sums_of(home_, Tensor::o, out.row),
                                sums_of(home_, Tensor::lse, out.row), as<const Sum>(part_out),
                                as<const Sum>(part_lse), out.rows, shape_.heads, shape_.head_dim);
}

template <typename Real>
void AttentionExchange<Real>::list_tasks(const StageBinding& stage) {
  list_.queries.clear();
  list_.keys.clear();
  const auto queries = [&](const model::AttentionSlot<Real>& slot, const RowPiece& piece) {
    const auto in = [&](Tensor what) { return inputs_of(slot, what, piece.row); };
    const auto sum = [&](Tensor what) { return sums_of(slot, what, piece.row); };
    list_.queries.push_back({piece.tokens, in(Tensor::q), sum(Tensor::o), sum(Tensor::lse),
                             in(Tensor::dout), sum(Tensor::delta), sum(Tensor::dq)});
  };
  const auto keys = [&](const model::AttentionSlot<Real>& slot, const RowPiece& piece) {
    list_.keys.push_back(
        {piece.tokens, inputs_of(slot, Tensor::k, piece.row), inputs_of(slot, Tensor::v, piece.row),
         sums_of(slot, Tensor::dk, piece.row), sums_of(slot, Tensor::dv, piece.row)});
  };
  for (const RowPiece& piece : binding_.homes) {
    queries(home_, piece);
    keys(home_, piece);
  }
  for (const RowPiece& piece : binding_.query_pieces) queries(workspace_.slot(), piece);
  for (const RowPiece& piece : binding_.key_pieces) keys(workspace_.slot(), piece);
  list_.tasks = stage.tasks;
}

template <typename Real>
void AttentionExchange<Real>::attend(Pass pass, int stage) {
  const StageBinding& bound = binding_.of(pass)[static_cast<std::size_t>(stage)];
  tracer_.time(Category::compute_attention, names_.attend, {0, bound.flops}, [&] {
    list_tasks(bound);
    if (pass == Pass::forward) {
      kernels::attention_forward(shape_, rotary_, list_);
    } else {
      kernels::attention_backward(shape_, rotary_, list_);
    }
  });
}

template class AttentionExchange<bfloat16>;
template class AttentionExchange<float>;
template class AttentionExchange<double>;

}  // namespace cadenza::exec
