// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/exchange.hpp"

#include <algorithm>
#include <numeric>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "exec/attention/elements.hpp"

namespace cadenza::exec {
namespace {

using plan::Tensor;
using program::Operation;
using program::OtherEvent;
using program::Pass;

template <typename T>
T* as(std::byte* bytes) {
  return reinterpret_cast<T*>(bytes);
}
template <typename T>
T* as(const std::byte* bytes) {
  return reinterpret_cast<T*>(bytes);
}

/// Whether the tensor has one number per row and head.
bool is_statistic(Tensor what) {
  return what == Tensor::lse || what == Tensor::delta;
}

bool is_gradient(Tensor what) {
  return what == Tensor::dq || what == Tensor::dk || what == Tensor::dv;
}

bool is_of_results(Operation operation) {
  return operation == Operation::post_results || operation == Operation::wait_results;
}

void make_progress(void* pool) {
  static_cast<comm::Communicator*>(pool)->progress();  // of all groups: they share one engine
}

}  // namespace

template <typename Real>
AttentionExchange<Real>::AttentionExchange(const AttentionCommunicators& pool,
                                           std::vector<Rank> members, const AttentionShape& shape,
                                           AttentionKernel kernel,
                                           const kernels::RotaryTable<Sum>& rotary, int half,
                                           Tracer& tracer, MemoryLedger& ledger)
    : over_(pool),
      pool_(pool.inputs.group()),
      shape_(shape),
      kernel_(kernel),
      rotary_(rotary),
      half_(half),
      tracer_(tracer),
      ledger_(ledger),
      workspace_(shape_, ledger),
      buffer_(ledger, "messages"),
      index_(pool_, members, shape, rotary_, tracer, ledger),
      messages_(std::move(members), tracer) {}

template <typename Real>
void AttentionExchange<Real>::bind(const std::vector<const program::TickPlans*>& tick_plans,
                                   int align, int copies, bool keeps_patterns) {
  bindings_.clear();
  ExchangeNeeds needs;
  for (const program::TickPlans* plans : tick_plans) {
    const AttentionShape& planned = plans->forward.workload.shape;
    if (planned.element_bytes != sizeof(Real) || planned.accumulator_bytes != sizeof(Sum)) {
      fail(ExitCode::communication,
           "the plan was made for elements of {} bytes and accumulators of {} bytes, this run has "
           "{} and {}",
           planned.element_bytes, planned.accumulator_bytes, sizeof(Real), sizeof(Sum));
    }
    bindings_.push_back(exec::bind(*plans, pool_.rank(), align));
    needs.add(bindings_.back());
  }
  // finish() completed all messages of the previous step, so nobody reads what grows here.
  workspace_.grow(needs.query_rows, needs.key_rows, needs.copies(copies));
  buffer_.grow(needs.message_bytes);
  bind_tasks();
  index_.bind(tick_plans, copies, keeps_patterns);
}

template <typename Real>
void AttentionExchange<Real>::bind_tasks() {
  tasks_.resize(bindings_.size());
  for (std::size_t tick = 0; tick < bindings_.size(); ++tick) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const std::vector<StageBinding>& stages = bindings_[tick].of(pass);
      auto& lists = tasks_[tick][at(pass)];
      lists.resize(stages.size());
      for (std::size_t stage = 0; stage < stages.size(); ++stage) {
        lists[stage].tasks = stages[stage].tasks;
        lists[stage].kernel = kernel_;
        // Messages of later stages make progress inside the kernels: MPI moves them only when
        // called.
        lists[stage].progress = {make_progress, &pool_};
      }
    }
  }
}

template <typename Real>
void AttentionExchange<Real>::set_context(const AttentionContext<Real>& context) {
  const bool same = context.plan == context_.plan && context.layer == context_.layer &&
                    context.pass == context_.pass && context.recompute == context_.recompute;
  // All layers and ticks use the same message memory: sends must have left it before the next
  // context packs into it. A second call with the same context must not wait here: its messages are
  // meant to travel while tasks run.
  if (!same) finish();
  context_ = context;
  workspace_.use_copy(bound().keeps_inputs ? context.copy : 0);
}

template <typename Real>
void AttentionExchange<Real>::run(program::Operation operation, int stage) {
  using Exchange = AttentionExchange;
  using Handler = void (*)(Exchange&, Operation, int stage);
  constexpr Handler start = [](Exchange& e, Operation o, int stage) { e.start_messages(o, stage); };
  constexpr Handler complete = [](Exchange& e, Operation o, int stage) {
    e.complete_messages(o, stage);
  };
  static constexpr auto kHandlers = program::handlers_of<Handler>(
      program::Actor::exchange,
      {{Operation::begin_attention, [](Exchange& e, Operation, int) { e.begin(); }},
       {Operation::post, start},
       {Operation::wait, complete},
       {Operation::attend, [](Exchange& e, Operation, int stage) { e.attend(stage); }},
       {Operation::post_results, start},
       {Operation::wait_results, complete}});
  const Handler handler = kHandlers[at(operation)];
  handler != nullptr ? handler(*this, operation, stage) : index_.run(operation, stage, context_);
}

template <typename Real>
void AttentionExchange<Real>::finish() {
  index_.finish();
  messages_.finish();
}

template <typename Real>
const StageBinding& AttentionExchange<Real>::stage_of(int stage) const {
  return bound().of(context_.pass)[at(stage)];
}

template <typename Real>
const model::AttentionBuffers<Real>& AttentionExchange<Real>::buffers_of(bool home) const {
  return home ? context_.home : workspace_.buffers();
}

template <typename Real>
Real* AttentionExchange<Real>::inputs_of(bool home, Tensor what, std::int64_t head_row) const {
  const model::AttentionBuffers<Real>& buffers = buffers_of(home);
  Real* base = what == Tensor::q ? buffers.q : what == Tensor::k ? buffers.k : buffers.v;
  if (what == Tensor::dout) base = buffers.dout;
  return base + head_row * head_elements(shape_, what);
}

template <typename Real>
Accumulator<Real>* AttentionExchange<Real>::sums_of(bool home, Tensor what,
                                                    std::int64_t head_row) const {
  const model::AttentionBuffers<Real>& buffers = buffers_of(home);
  Sum* base = nullptr;
  switch (what) {
    case Tensor::lse:
      base = buffers.lse;
      break;
    case Tensor::delta:
      base = buffers.delta;
      break;
    case Tensor::dq:
      base = buffers.dq;
      break;
    case Tensor::dk:
      base = buffers.dk;
      break;
    case Tensor::dv:
      base = buffers.dv;
      break;
    case Tensor::o:
      base = buffers.out;
      break;
    case Tensor::q:
    case Tensor::k:
    case Tensor::v:
    case Tensor::dout:
    case Tensor::observed:
    case Tensor::observed_keys:
    case Tensor::peak:
    case Tensor::sum:
    case Tensor::mass:
    case Tensor::pattern:
      fail(ExitCode::internal, "{} is no sum of attention", plan::name(what));
  }
  return base + head_row * head_elements(shape_, what);
}

template <typename Real>
void AttentionExchange<Real>::begin() {
  tracer_.time(Operation::begin_attention, {}, [&] {
    const Range rows = bound().home.halves[at(half_)];
    const std::int64_t first = rows.begin * shape_.heads;
    const auto write_delta = [&](const auto* out) {
      attention::delta<Real>(out, inputs_of(true, Tensor::dout, first), rows.size(), shape_.heads,
                             shape_.head_dim, sums_of(true, Tensor::delta, first));
    };
    const Real* kept = buffers_of(true).kept;
    kept != nullptr ? write_delta(kept + first * head_elements(shape_, Tensor::o))
                    : write_delta(sums_of(true, Tensor::o, first));
  });
}

template <typename Real>
StageCall AttentionExchange<Real>::call_of(Operation operation, int stage) const {
  const bool results = is_of_results(operation);
  return stage_call(results ? over_.results : over_.inputs, operation, stage, results, half_,
                    context_);
}

template <typename Real>
const Direction& AttentionExchange<Real>::direction_of(Operation operation, int stage) const {
  const StageBinding& bound = stage_of(stage);
  return is_of_results(operation) ? bound.results : bound.inputs;
}

template <typename Real>
StridedRows AttentionExchange<Real>::stride_of(const Segment& segment) const {
  const std::int64_t elements = head_elements(shape_, segment.what);
  return {segment.rows, segment.heads.size() * elements, segment.row_heads * elements};
}

template <typename Real>
std::span<std::byte> AttentionExchange<Real>::place_of(const MessageSet& messages,
                                                       const MessagePart& part) const {
  if (part.in_place < 0) return buffer_.bytes(messages.buffer + part.offset, part.bytes);
  const Segment& rows = messages.in_place[at(part.in_place)];
  auto* first = reinterpret_cast<std::byte*>(inputs_of(rows.home, rows.what, rows.row));
  return {first, static_cast<std::size_t>(part.bytes)};
}

/// Packs messages. Clears gradients that leave: the workspace holds zeros whenever no backward pass
/// adds to it, so that the next one need not clear it.
template <typename Real>
void AttentionExchange<Real>::pack(const MessageSet& messages) {
  for (const Segment& segment : messages.segments) {
    std::byte* target = bytes_of(messages) + segment.offset;
    const std::int64_t head_row = segment.row + segment.heads.begin;
    const StridedRows rows = stride_of(segment);
    if (is_input(segment.what)) {
      pack_elements<Real>(inputs_of(segment.home, segment.what, head_row), as<Real>(target), rows);
      continue;
    }
    Sum* values = sums_of(segment.home, segment.what, head_row);
    if (is_statistic(segment.what)) {
      pack_unaligned<Sum>(values, target, rows);
    } else {
      pack_elements<Sum>(values, as<Sum>(target), rows);
    }
    if (is_gradient(segment.what)) clear_elements(values, rows);
  }
}

/// Starts messages of a stage. The packed rows are free at once, the message memory when the
/// messages are complete.
template <typename Real>
void AttentionExchange<Real>::start_messages(Operation operation, int stage) {
  const StageCall call = call_of(operation, stage);
  const Direction& direction = direction_of(operation, stage);
  receives_.clear();
  for (const MessagePart& each : direction.receives.parts) {
    receives_.push_back({place_of(direction.receives, each), each.peer, call.tag});
  }
  sends_.clear();
  for (const MessagePart& each : direction.sends.parts) {
    sends_.push_back({place_of(direction.sends, each), each.peer, call.tag});
  }
  messages_.start(call, receives_, sends_, direction.sends.copied, [&] { pack(direction.sends); });
}

/// Completes messages of a stage. Afterwards its tasks may read the rows that arrived, and later
/// stages may pass them on.
template <typename Real>
void AttentionExchange<Real>::complete_messages(Operation operation, int stage) {
  const MessageSet& received = direction_of(operation, stage).receives;
  messages_.complete(call_of(operation, stage), received.copied, [&] { unpack(received); });
}

/// Unpacks segments in plan order, whichever sender was first: results merge and add up in an order
/// that does not depend on time, so losses are bitwise the same in every run.
template <typename Real>
void AttentionExchange<Real>::unpack(const MessageSet& messages) {
  for (const Segment& segment : messages.segments) {
    const std::byte* source = bytes_of(messages) + segment.offset;
    if (segment.what == Tensor::o) {
      merge_output(messages, segment);
    } else if (is_gradient(segment.what)) {
      add_elements<Sum>(as<const Sum>(source),
                        sums_of(segment.home, segment.what, segment.row + segment.heads.begin),
                        stride_of(segment));
    } else if (!segment.home) {  // an LSE that arrives at home is merged with its O
      place_input(segment, source);
    }
  }
  for (const Segment& segment : messages.in_place) begin_outputs(segment);
}

template <typename Real>
void AttentionExchange<Real>::place_input(const Segment& segment, const std::byte* source) {
  const std::int64_t head_row = segment.row + segment.heads.begin;
  if (is_statistic(segment.what)) {
    place_unaligned<Sum>(source, sums_of(false, segment.what, head_row), stride_of(segment));
    return;
  }
  place_elements<Real>(as<const Real>(source), inputs_of(false, segment.what, head_row),
                       stride_of(segment));
  begin_outputs(segment);
}

/// Tasks merge into O and LSE, so a query's rows begin as attention to no keys. The backward pass
/// only reads LSE, which travels with Q.
template <typename Real>
void AttentionExchange<Real>::begin_outputs(const Segment& segment) {
  if (segment.what != Tensor::q || context_.pass == Pass::backward) return;
  attention::initialise(sums_of(false, Tensor::o, segment.row),
                        sums_of(false, Tensor::lse, segment.row), segment.rows,
                        static_cast<int>(segment.row_heads), shape_.head_dim);
}

template <typename Real>
void AttentionExchange<Real>::merge_output(const MessageSet& messages, const Segment& out) {
  // The LSE of the same rows follows its O in the same message.
  const auto lse = std::ranges::find_if(messages.segments, [&](const Segment& segment) {
    return segment.what == Tensor::lse && segment.row == out.row && segment.rows == out.rows &&
           segment.heads == out.heads && segment.offset > out.offset;
  });
  if (lse == messages.segments.end()) {
    fail(ExitCode::communication, "rank {} received rows of O without their LSE", pool_.rank());
  }
  const std::byte* part = bytes_of(messages);
  const attention::HeadSlice slice{static_cast<int>(out.row_heads), out.heads};
  attention::merge_partial<Sum>(sums_of(true, Tensor::o, out.row),
                                sums_of(true, Tensor::lse, out.row), slice,
                                as<const Sum>(part + out.offset), as<const Sum>(part + lse->offset),
                                out.rows, shape_.head_dim);
}

/// Returns the tasks of a stage with the row addresses of this layer: the binding holds offsets for
/// all layers, and home rows are those of the layer's activations.
template <typename Real>
kernels::TaskList<Real>& AttentionExchange<Real>::tasks_of(int stage) {
  const StageBinding& bound = stage_of(stage);
  kernels::TaskList<Real>& list = tasks_[at(context_.plan)][at(context_.pass)][at(stage)];
  list.queries.clear();
  list.keys.clear();
  for (std::size_t i = 0; i < bound.queries.size(); ++i) {
    const RowPiece& piece = bound.queries[i];
    const auto in = [&](Tensor what) { return inputs_of(piece.home, what, piece.row); };
    const auto sum = [&](Tensor what) { return sums_of(piece.home, what, piece.row); };
    list.queries.push_back({piece.tokens, in(Tensor::q), sum(Tensor::o), sum(Tensor::lse),
                            in(Tensor::dout), sum(Tensor::delta), sum(Tensor::dq), piece.heads,
                            bound.positions[i]});
  }
  for (std::size_t i = 0; i < bound.keys.size(); ++i) {
    const RowPiece& piece = bound.keys[i];
    const auto in = [&](Tensor what) { return inputs_of(piece.home, what, piece.row); };
    const auto sum = [&](Tensor what) { return sums_of(piece.home, what, piece.row); };
    list.keys.push_back({piece.tokens, in(Tensor::k), in(Tensor::v), sum(Tensor::dk),
                         sum(Tensor::dv), piece.heads, bound.key_positions[i]});
  }
  list.index = nullptr;
  list.pairs = nullptr;
  index_.use(context_, list);
  return list;
}

/// FLOPs of the pairs computed with indices since the step began.
template <typename Real>
double AttentionExchange<Real>::sparse_flops(const kernels::TaskList<Real>& list) const {
  const std::size_t count = list.index->place(list.index->documents(), 0);
  const auto pairs =
      static_cast<double>(std::accumulate(list.pairs, list.pairs + count, std::int64_t{0}));
  return pairs * 4.0 * shape_.head_dim * (context_.pass == Pass::forward ? 1 : kBackwardFlopsRatio);
}

/// FLOPs of the documents without an index.
template <typename Real>
double AttentionExchange<Real>::dense_flops(const kernels::TaskList<Real>& list) const {
  double flops = 0;
  for (const TaskRows& rows : list.tasks) {
    if (list.index->is_dense(rows.task.document)) {
      flops += forward_flops(rows.task, shape_.head_dim);
    }
  }
  return flops * (context_.pass == Pass::forward ? 1 : kBackwardFlopsRatio);
}

template <typename Real>
void AttentionExchange<Real>::attend(int stage) {
  Work work{0, stage_of(stage).flops};
  tracer_.time(Operation::attend, work, [&] {
    const kernels::TaskList<Real>& list = tasks_of(stage);
    if (list.index != nullptr) work.flops = -sparse_flops(list);
    if (context_.pass == Pass::forward) {
      kernels::attention_forward(shape_, rotary_, list);
    } else {
      kernels::attention_backward(shape_, rotary_, list);
    }
    if (list.index != nullptr) work.flops += sparse_flops(list) + dense_flops(list);
  });
}

template class AttentionExchange<bfloat16>;
template class AttentionExchange<float>;
template class AttentionExchange<double>;

}  // namespace cadenza::exec
