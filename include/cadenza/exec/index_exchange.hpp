// SPDX-License-Identifier: Apache-2.0
// Exchanges the index of sparse attention of one layer in a plan's index rounds (plan::IndexRound):
// an estimator's inputs travel, the owner of a head chooses its pattern and sends it to the
// servers. There is no gradient: in the backward pass, the owners send the patterns that they kept.
//
// Masses and patterns are in host memory; Q and K are copied to it if they are elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "cadenza/base/recall.hpp"
#include "cadenza/base/sparse_density.hpp"
#include "cadenza/base/sparse_index.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/exec/memory/binding.hpp"
#include "cadenza/exec/memory/index_needs.hpp"
#include "cadenza/exec/stage_messages.hpp"
#include "cadenza/exec/tracer.hpp"
#include "cadenza/model/llama.hpp"
#include "cadenza/plan/index.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::exec {

template <typename Real>
struct AttentionContext;
template <typename Real>
class IndexEstimator;
class KeptPatterns;
struct IndexDocument;

template <typename Real>
class IndexExchange {
 public:
  using Sum = Accumulator<Real>;

  IndexExchange(comm::Communicator& pool, std::vector<Rank> members, const AttentionShape& shape,
                const kernels::RotaryTable<Sum>& rotary, Tracer& tracer, MemoryLedger& ledger);
  ~IndexExchange();

  /// Takes the plans of a step, one per tick, and discards the state of the previous step.
  /// @param copies  layers x activation buffers
  /// @param keeps_patterns  the step chooses patterns for later ones
  void bind(const std::vector<const program::TickPlans*>& tick_plans, int copies,
            bool keeps_patterns);

  /// Runs an operation of an index round: see program::Operation.
  void run(program::Operation operation, int round, const AttentionContext<Real>& context);
  /// Completes this rank's sends.
  void finish();
  /// Gives all ranks the patterns that a step that keeps them has chosen. Collective; after
  /// finish().
  /// @param layers  of this rank
  void share_patterns(int layers);

  /// Restricts the tasks of the context's pass to the pairs of the index.
  void use(const AttentionContext<Real>& context, kernels::TaskList<Real>& list);
  /// Checks, after all passes of a step, that the tasks of all ranks together computed each pair of
  /// the indices once. Collective. @throws Error(communication) if not
  void require_all_computed();

  /// Adds the recall of random queries, after the forward pass of the context's layer. Collective
  /// over the trainers of a context group.
  /// @param seed  of the choice of queries
  void sample(const AttentionContext<Real>& context, comm::Communicator& group, std::uint64_t seed);

  /// Counts of the patterns that this rank has chosen since bind(), by layer as the trace counts
  /// them.
  const SparseCounts& counts_of_step() const { return step_counts_; }
  /// Recall of the queries that were sampled since bind(); a sum over all ranks counts each once.
  const Recall& recall_of_step() const { return step_recall_; }

  /// Uses these patterns instead of choosing any. Documents and heads as the plan counts them.
  void set_patterns(const SparseIndex* given) { given_ = given; }
  /// Returns [documents, heads] of one layer of a tick: the patterns that this rank owns; others
  /// are empty.
  std::vector<SparsePattern> owned(int tick) const;

 private:
  struct Tick;
  struct Counts;
  /// Tick, layer, pass, recomputed.
  using Place = std::tuple<int, int, program::Pass, bool>;
  using Bytes = std::vector<std::byte>;

  void add_tick(const program::TickPlans& plans);
  void note_ticks();
  Place place() const;
  void begin_layer();
  void start_messages(plan::IndexRound round);
  void complete_messages(plan::IndexRound round);
  StageCall call_of(program::Operation operation, plan::IndexRound round) const;
  void pack(const plan::Move& move, std::byte*& to);
  void unpack(const plan::Move& move, const std::byte*& from);
  void estimate(plan::IndexRound round);
  void keep(const IndexDocument& document, std::int64_t head, SparsePattern pattern);
  void take_reused();
  void enter();
  Counts& counts();
  int first_of_group(const program::TickPlans& plans) const;
  std::int64_t kept_place(const IndexDocument& document, std::int64_t head) const;

  comm::Communicator& pool_;
  AttentionShape shape_;
  const kernels::RotaryTable<Sum>& rotary_;
  Tracer& tracer_;
  MemoryLedger& ledger_;
  std::int64_t entered_ = 0;  ///< bytes of this exchange in the ledger
  std::vector<Tick> ticks_;
  Tick* tick_ = nullptr;  ///< of the current operation
  const AttentionContext<Real>* context_ = nullptr;
  std::map<plan::IndexRound, std::vector<Bytes>> sending_;    ///< by flow
  std::map<plan::IndexRound, std::vector<Bytes>> receiving_;  ///< by flow
  StageMessages messages_;
  std::vector<std::vector<SparsePattern>> kept_;  ///< by copy: [documents of the group, heads]
  std::vector<SparsePattern> patterns_;           ///< [documents, heads] as they arrive
  std::unique_ptr<IndexEstimator<Real>> estimator_;
  Place begun_at_{-1, -1, program::Pass::forward, false};    ///< place of the estimator
  Place entered_at_{-1, -1, program::Pass::forward, false};  ///< place of `patterns_`
  bool is_built_ = false;  ///< whether index_ has been built from them
  SparseIndex index_;
  SparseCounts step_counts_;
  Recall step_recall_;
  const SparseIndex* given_ = nullptr;
  std::unique_ptr<KeptPatterns> patterns_of_earlier_;  ///< steps, which later ones reuse
};

}  // namespace cadenza::exec
