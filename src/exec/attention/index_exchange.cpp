// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/index_exchange.hpp"

#include <algorithm>
#include <array>

#include "cadenza/base/error.hpp"
#include "cadenza/exec/exchange.hpp"
#include "exec/attention/index_estimator.hpp"
#include "exec/attention/kept_patterns.hpp"
#include "exec/attention/measure_recall.hpp"

namespace cadenza::exec {
namespace {

using plan::IndexRound;
using plan::Tensor;
using program::Operation;
using program::Pass;

}  // namespace

/// Computed pairs by document and head of a tick, over the layers of a step.
template <typename Real>
struct IndexExchange<Real>::Counts {
  std::vector<std::int64_t> expected;  ///< pairs of the patterns that this rank owns
  std::vector<std::int64_t> computed;  ///< by this rank's tasks
};

template <typename Real>
struct IndexExchange<Real>::Tick {
  const program::TickPlans* plans = nullptr;
  HomeRows home;
  int group = 0;                         ///< number of the first document of this rank's group
  std::vector<IndexDocument> documents;  ///< sparse ones; those that reuse a pattern come last
  std::size_t choosing = 0;              ///< number of those that do not
  std::array<Counts, 2> counts;          ///< by pass
  const plan::Workload& workload() const { return plans->forward.workload; }
};

template <typename Real>
IndexExchange<Real>::IndexExchange(comm::Communicator& pool, std::vector<Rank> members,
                                   const AttentionShape& shape,
                                   const kernels::RotaryTable<Sum>& rotary, Tracer& tracer,
                                   MemoryLedger& ledger)
    : pool_(pool),
      shape_(shape),
      rotary_(rotary),
      tracer_(tracer),
      ledger_(ledger),
      messages_(std::move(members), tracer),
      patterns_of_earlier_(std::make_unique<KeptPatterns>()) {}

template <typename Real>
IndexExchange<Real>::~IndexExchange() {
  ledger_.remove(MemoryKind::attention, entered_);
}

template <typename Real>
void IndexExchange<Real>::bind(const std::vector<const program::TickPlans*>& tick_plans, int copies,
                               bool keeps_patterns) {
  ticks_.clear();
  kept_.assign(at(copies), {});
  step_counts_ = {};
  step_recall_ = {};
  IndexNeeds needs;
  for (const program::TickPlans* plans : tick_plans) {
    needs.add(*plans, pool_.rank());
    add_tick(*plans);
  }
  patterns_of_earlier_->skip();
  if (keeps_patterns) note_ticks();
  entered_at_ = {-1, -1, Pass::forward, false};
  begun_at_ = entered_at_;
  const std::int64_t bytes = needs.working + needs.kept * copies;
  ledger_.add(MemoryKind::attention, bytes - entered_);
  entered_ = bytes;
}

template <typename Real>
void IndexExchange<Real>::note_ticks() {
  std::vector<KeptPatterns::Tick> ticks;
  for (const Tick& tick : ticks_) ticks.push_back({tick.workload(), tick.documents});
  patterns_of_earlier_->begin(std::move(ticks), shape_.heads);
}

template <typename Real>
void IndexExchange<Real>::add_tick(const program::TickPlans& plans) {
  Tick& tick = ticks_.emplace_back();
  tick.plans = &plans;
  tick.home = home_rows(plans, pool_.rank(), 1);
  tick.group = first_of_group(plans);
  const plan::Workload& workload = tick.workload();
  for (plan::IndexParts& parts : plan::index_parts(workload)) {
    IndexDocument& document = tick.documents.emplace_back();
    document.parts = std::move(parts);
    document.length = workload.lengths[at(document.parts.document)];
    const int holder = document.parts.holder(pool_.rank());
    if (holder >= 0) document.owned = plan::owned_index(workload, document.parts, at(holder));
    for (const RowPiece& piece : tick.home.pieces) {
      if (piece.document != document.parts.document) continue;
      document.homes.push_back({pool_.rank(), piece.document, piece.tokens});
      for (const plan::TextRun& run :
           plan::text_runs(workload.order, document.length, piece.tokens)) {
        document.runs.push_back({run, piece.row + run.tokens.begin - piece.tokens.begin,
                                 document.keys, document.homes.size() - 1});
        document.keys += run.tokens.size();
      }
    }
  }
  if (tick.documents.empty()) return;
  tick.choosing = at(
      std::ranges::stable_partition(
          tick.documents, [&](const auto& document) { return !workload.reuses(document.length); })
          .begin() -
      tick.documents.begin());
  for (Counts& counts : tick.counts) {
    counts.expected.assign(workload.lengths.size() * at(shape_.heads), 0);
    counts.computed = counts.expected;
  }
  if (!estimator_) estimator_ = make_estimator<Real>(workload.sparse.kind, shape_, rotary_);
}

template <typename Real>
int IndexExchange<Real>::first_of_group(const program::TickPlans& plans) const {
  const auto group = at(pool_.rank() / plans.forward.workload.context);
  return group < plans.first_document.size() ? plans.first_document[group] : 0;
}

template <typename Real>
void IndexExchange<Real>::run(Operation operation, int round,
                              const AttentionContext<Real>& context) {
  context_ = &context;
  tick_ = &ticks_[at(context.plan)];
  using Handler = void (*)(IndexExchange&, IndexRound);
  static constexpr auto kHandlers = program::handlers_of<Handler>(
      program::Actor::index,
      {{Operation::post_index, [](IndexExchange& e, IndexRound at) { e.start_messages(at); }},
       {Operation::wait_index, [](IndexExchange& e, IndexRound at) { e.complete_messages(at); }},
       {Operation::estimate, [](IndexExchange& e, IndexRound at) { e.estimate(at); }}});
  kHandlers[at(static_cast<int>(operation))](*this, static_cast<IndexRound>(round));
}

template <typename Real>
typename IndexExchange<Real>::Place IndexExchange<Real>::place() const {
  return {context_->plan, context_->layer, context_->pass, context_->recompute};
}

/// Begins a layer before its first round, which may have neither messages nor work on this rank.
template <typename Real>
void IndexExchange<Real>::begin_layer() {
  if (place() == begun_at_) return;
  begun_at_ = place();
  estimator_->begin(tick_->workload(), std::span(tick_->documents).first(tick_->choosing),
                    context_->rules, context_->home.q, context_->home.k);
}

template <typename Real>
void IndexExchange<Real>::estimate(IndexRound round) {
  tracer_.time(Operation::estimate, {}, [&] {
    if (round == IndexRound::observed) begin_layer();
    estimator_->estimate(
        round, [this](const IndexDocument& document, std::int64_t head, SparsePattern pattern) {
          keep(document, head, std::move(pattern));
        });
  });
}

template <typename Real>
std::int64_t IndexExchange<Real>::kept_place(const IndexDocument& document,
                                             std::int64_t head) const {
  return (document.parts.document - tick_->group) * std::int64_t{shape_.heads} + head;
}

template <typename Real>
void IndexExchange<Real>::keep(const IndexDocument& document, std::int64_t head,
                               SparsePattern pattern) {
  std::vector<SparsePattern>& kept = kept_[at(context_->copy)];
  const std::int64_t place = kept_place(document, head);
  if (std::ssize(kept) <= place) kept.resize(at(place + 1));
  kept[at(place)] =
      given_ != nullptr ? *given_->of(document.parts.document, head) : std::move(pattern);
  step_counts_.add(context_->layer, kept[at(place)], document.owned.tokens);
  patterns_of_earlier_->note(context_->layer, context_->plan, document, head, kept[at(place)]);
}

/// Owners keep the patterns that earlier steps have chosen, as if they had chosen them now.
template <typename Real>
void IndexExchange<Real>::take_reused() {
  if (context_->pass == Pass::backward || context_->recompute) return;
  for (const IndexDocument& document : std::span(tick_->documents).subspan(tick_->choosing)) {
    if (document.owned.empty()) continue;
    for (std::int64_t head = document.owned.heads.begin; head < document.owned.heads.end; ++head) {
      keep(document, head, patterns_of_earlier_->of(context_->layer, document.length, head));
    }
  }
}

template <typename Real>
void IndexExchange<Real>::share_patterns(int layers) {
  patterns_of_earlier_->share(pool_, layers);
}

template <typename Real>
void IndexExchange<Real>::sample(const AttentionContext<Real>& context, comm::Communicator& group,
                                 std::uint64_t seed) {
  tick_ = &ticks_[at(context.plan)];
  const auto group_of = [this](Rank rank) { return rank / tick_->workload().context; };
  RecallInputs<Real> inputs{
      shape_,
      rotary_,
      tick_->workload(),
      {},
      seed,
      context.home.q,
      context.home.k,
      [&](const IndexDocument& document, std::int64_t head) -> const SparsePattern& {
        return kept_[at(context.copy)][at(kept_place(document, head))];
      }};
  for (const IndexDocument& document : tick_->documents) {
    if (group_of(document.parts.homes.front().rank) != group_of(pool_.rank())) continue;
    inputs.documents.push_back(&document);
  }
  if (inputs.documents.empty()) return;
  tracer_.time_collective(group, program::OtherEvent::sample_recall, {},
                          [&] { step_recall_.add(measure_recall<Real>(group, inputs)); });
}

template <typename Real>
void IndexExchange<Real>::finish() {
  messages_.finish();
}

template <typename Real>
StageCall IndexExchange<Real>::call_of(Operation operation, IndexRound round) const {
  // The channels of the second half are free: sparse attention has no ping-pong.
  constexpr int kSecondHalf = 1;
  return stage_call(pool_, operation, static_cast<int>(round), false, kSecondHalf, *context_);
}

template <typename Real>
void IndexExchange<Real>::start_messages(IndexRound round) {
  const auto number = static_cast<int>(round);
  const program::Traffic& traffic = tick_->plans->index_traffic(context_->pass);
  const program::Part part = traffic.of(pool_.rank(), number);
  const auto sent = traffic.messages(number).subspan(at(part.sends.begin), at(part.sends.size()));
  const plan::Stage& planned = tick_->plans->of(context_->pass).index[at(number)];
  const StageCall call = call_of(Operation::post_index, round);
  if (round == IndexRound::pattern) enter();
  if (round == IndexRound::observed) begin_layer();
  std::vector<Bytes>& sending = sending_[round];
  std::vector<Bytes>& receiving = receiving_[round];
  messages_.finish_channel(call);  // before its memory is reused
  sending.clear();
  receiving.clear();
  std::int64_t copied = 0;
  std::vector<comm::Send> sends;
  for (const program::PlannedMessage& message : sent) {
    copied += message.bytes;
    sends.push_back({sending.emplace_back(at(message.bytes)), message.to, call.tag});
  }
  std::vector<comm::Receive> receives;
  for (const std::uint32_t i : part.receives) {
    const program::PlannedMessage& message = traffic.messages(number)[i];
    receives.push_back({receiving.emplace_back(at(message.bytes)), message.from, call.tag});
  }
  messages_.start(call, receives, sends, copied, [&] {
    for (std::size_t i = 0; i < sent.size(); ++i) {
      std::byte* to = sending[i].data();
      for (const std::uint32_t move : traffic.moves(number, sent[i])) pack(planned.moves[move], to);
    }
  });
}

template <typename Real>
void IndexExchange<Real>::complete_messages(IndexRound round) {
  const auto number = static_cast<int>(round);
  const program::Traffic& traffic = tick_->plans->index_traffic(context_->pass);
  const program::Part part = traffic.of(pool_.rank(), number);
  const plan::Stage& planned = tick_->plans->of(context_->pass).index[at(number)];
  std::int64_t copied = 0;
  for (const Bytes& bytes : receiving_[round]) copied += std::ssize(bytes);
  messages_.complete(call_of(Operation::wait_index, round), copied, [&] {
    for (std::size_t n = 0; n < part.receives.size(); ++n) {
      const std::byte* from = receiving_[round][n].data();
      for (const std::uint32_t move :
           traffic.moves(number, traffic.messages(number)[part.receives[n]])) {
        unpack(planned.moves[move], from);
      }
    }
  });
}

template <typename Real>
void IndexExchange<Real>::pack(const plan::Move& move, std::byte*& to) {
  if (move.what != Tensor::pattern) return estimator_->pack(move, to);
  const IndexDocument& document = document_of(tick_->documents, move.document);
  const SparseRule& rule = tick_->workload().sparse;
  std::vector<std::uint64_t> words(at(rule.pattern_words(document.length, move.tokens)));
  for (std::int64_t head = move.heads.begin; head < move.heads.end; ++head) {
    rule.pack(kept_[at(context_->copy)][at(kept_place(document, head))], move.tokens, words);
    write(to, words.data(), std::ssize(words));
  }
}

template <typename Real>
void IndexExchange<Real>::unpack(const plan::Move& move, const std::byte*& from) {
  if (move.what != Tensor::pattern) return estimator_->unpack(move, from);
  const IndexDocument& document = document_of(tick_->documents, move.document);
  const SparseRule& rule = tick_->workload().sparse;
  std::vector<std::uint64_t> words(at(rule.pattern_words(document.length, move.tokens)));
  for (std::int64_t head = move.heads.begin; head < move.heads.end; ++head) {
    SparsePattern& pattern = patterns_[at(move.document * shape_.heads + head)];
    if (pattern.length() == 0) pattern = rule.diagonal(document.length);
    read(from, words.data(), std::ssize(words));
    rule.unpack(words, move.tokens, pattern);
  }
}

/// Starts collecting the patterns of a pass of a layer, once in each.
template <typename Real>
void IndexExchange<Real>::enter() {
  if (place() == entered_at_) return;
  entered_at_ = place();
  is_built_ = false;
  take_reused();
  const std::size_t documents = tick_->workload().lengths.size();
  patterns_.assign(documents * at(shape_.heads), {});
  const std::vector<SparsePattern>& kept = kept_[at(context_->copy)];
  for (const IndexDocument& document : tick_->documents) {
    if (document.owned.empty()) continue;
    for (std::int64_t head = document.owned.heads.begin; head < document.owned.heads.end; ++head) {
      const std::int64_t place = document.parts.document * std::int64_t{shape_.heads} + head;
      patterns_[at(place)] = kept[at(kept_place(document, head))];
      counts().expected[at(place)] +=
          patterns_[at(place)].pairs(document.owned.tokens, {0, document.length});
    }
  }
}

template <typename Real>
std::vector<SparsePattern> IndexExchange<Real>::owned(int tick) const {
  const Tick& of = ticks_[at(tick)];
  const std::size_t documents = of.plans->forward.workload.lengths.size();
  std::vector<SparsePattern> patterns(documents * at(shape_.heads));
  std::ranges::copy(kept_.front(), patterns.begin() + std::ptrdiff_t{of.group} * shape_.heads);
  return patterns;
}

template <typename Real>
typename IndexExchange<Real>::Counts& IndexExchange<Real>::counts() {
  return tick_->counts[context_->pass == Pass::forward ? 0 : 1];
}

template <typename Real>
void IndexExchange<Real>::use(const AttentionContext<Real>& context,
                              kernels::TaskList<Real>& list) {
  context_ = &context;
  tick_ = &ticks_[at(context.plan)];
  if (tick_->documents.empty()) return;  // all are dense
  enter();
  if (!is_built_) {
    // Heads that this rank does not compute get a pattern too: the index is whole.
    const SparseRule& rule = tick_->workload().sparse;
    for (const IndexDocument& document : tick_->documents) {
      for (std::int64_t head = 0; head < shape_.heads; ++head) {
        SparsePattern& pattern = patterns_[at(document.parts.document * shape_.heads + head)];
        if (pattern.length() == 0) pattern = rule.diagonal(document.length);
      }
    }
    index_ = SparseIndex(shape_.heads, patterns_);
    is_built_ = true;
  }
  list.index = &index_;
  list.pairs = counts().computed.data();
}

/// Checks that each pair of an index was computed once, wherever its task ran: that rectangles
/// cover a document says nothing about the pairs inside them.
template <typename Real>
void IndexExchange<Real>::require_all_computed() {
  for (Tick& tick : ticks_) {
    if (tick.documents.empty()) continue;
    std::vector<std::int64_t> missing;
    for (const Counts& each : tick.counts) {
      for (std::size_t i = 0; i < each.expected.size(); ++i) {
        missing.push_back(each.expected[i] - each.computed[i]);
      }
    }
    pool_.all_reduce(std::span(missing), comm::Reduction::sum);
    const auto wrong = std::ranges::find_if(missing, [](std::int64_t pairs) { return pairs != 0; });
    if (wrong == missing.end()) continue;
    const auto each = std::ssize(missing) / 2;
    const std::int64_t place = (wrong - missing.begin()) % each;
    fail(
        ExitCode::communication,
        "sparse attention of document {} head {}, {} pass: the ranks computed {} {} pairs than the "
        "index has",
        place / shape_.heads, place % shape_.heads,
        wrong - missing.begin() < each ? "forward" : "backward", std::abs(*wrong),
        *wrong > 0 ? "fewer" : "more");
  }
}

template class IndexExchange<bfloat16>;
template class IndexExchange<float>;
template class IndexExchange<double>;
}  // namespace cadenza::exec
