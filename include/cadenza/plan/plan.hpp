// SPDX-License-Identifier: Apache-2.0
// The plan of one tick: which server computes which attention task in which stage, which token
// ranges move between ranks, how partial outputs merge. Data only: no tensors, no MPI.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/mask.hpp"
#include "cadenza/base/pass.hpp"
#include "cadenza/base/range.hpp"
#include "cadenza/base/sparse_density.hpp"
#include "cadenza/base/sparse_pattern.hpp"
#include "cadenza/base/task.hpp"
#include "cadenza/config/limits.hpp"

namespace cadenza::plan {

/// Heads and sizes of elements: all that bytes and costs depend on.
struct AttentionShape {
  int heads = 1;     ///< query heads
  int kv_heads = 1;  ///< divides heads; query head h reads key head h / (heads / kv_heads)
  int head_dim = 1;
  int element_bytes = 4;      ///< of Q, K, V and dO, which are only read
  int accumulator_bytes = 4;  ///< of all that is added up: results, delta; at least element_bytes
  int group() const { return heads / kv_heads; }
};

/// The order in which a plan counts the tokens of its documents, so that what a rank holds is a
/// range. Stripe c has the runs c, c + stripes, c + 2 stripes, ... of `run` tokens each; the tokens
/// of stripe 0 are counted first, then those of stripe 1, ... With one stripe it is the order of
/// the text. Every "token" of a plan - homes, moves, tasks, merges - is such a count.
struct TokenOrder {
  std::int64_t stripes = 1;
  std::int64_t run = 1;
  bool natural() const { return stripes == 1; }
  friend bool operator==(const TokenOrder&, const TokenOrder&) = default;
};

/// The text position of a token that a plan counts as `token`, in a document of `length` tokens.
std::int64_t position_of(const TokenOrder& order, std::int64_t length, std::int64_t token);

/// The tokens of a stripe, as a plan counts them; empty where the document is too short for it.
Range stripe_tokens(const TokenOrder& order, std::int64_t length, std::int64_t stripe);

/// Neighbouring tokens of a plan that stand at even distances in the text.
struct TextRun {
  Range tokens;
  std::int64_t first = 0;  ///< text position of the first
  std::int64_t step = 1;
  std::int64_t last() const { return first + (tokens.size() - 1) * step; }
};
std::vector<TextRun> text_runs(const TokenOrder& order, std::int64_t length, Range tokens);

/// Tokens of a document that live on a trainer rank. The rows of a rank's token buffer hold its
/// homes one after another, in the order in which they are listed.
struct Home {
  Rank rank = 0;
  int document = 0;
  Range tokens;
  friend bool operator==(const Home&, const Home&) = default;
};

using config::kFullCapacity;
/// How many usual ranks a capacity is worth.
constexpr double usual_ranks(std::int64_t capacity) {
  return static_cast<double>(capacity) / static_cast<double>(kFullCapacity);
}

/// What a placement sees of a tick: lengths, where the tokens live, who may compute.
struct Workload {
  std::vector<std::int64_t> lengths;  ///< tokens of each document
  std::vector<Home> homes;            ///< cover every token of every document exactly once
  std::vector<Rank> servers;          ///< the pool, ascending
  /// By rank: the speed that plans count on, in percent of a usual rank's; empty: all are alike.
  std::vector<std::int64_t> capacities;
  int ranks = 1;  ///< ranks that the plan speaks of
  AttentionShape shape;
  /// Trainers [g * context, (g + 1) * context) share the tokens of one microbatch, for every g.
  int context = 1;
  TokenOrder order;   ///< of every document
  Mask mask;          ///< of every document, in the order of the text; see mask_of()
  SparseRule sparse;  ///< of every document
  /// By document: what is expected of its pairs; empty: all documents are dense.
  std::vector<SparseDensity> density;
  /// By document: the queries whose attention the plan is for; empty: all of every document. Half
  /// of a microbatch in ping-pong: a range that begins at 0 or ends at the document's end.
  std::vector<Range> queries;
  /// Layers of the model whose attention the plan is for, ascending; empty: all.
  std::vector<int> layers;
  Range queries_of(std::size_t document) const {
    return queries.empty() ? Range{0, lengths[document]} : queries[document];
  }
  Mask mask_of(int document) const { return mask.within(lengths[at(document)]); }
  /// The document's pairs as they are weighed, in the order of the text.
  Weights weights_of(int document) const;
  std::int64_t capacity(Rank rank) const {
    return capacities.empty() ? kFullCapacity : capacities[at(rank)];
  }
  std::int64_t pool_capacity() const;  ///< of all servers
};

/// What a move carries. `delta` is rowsum(dO * O) of the merged O. The last six make the index of
/// sparse attention (IndexRound): observed queries and keys, rotated; of each query the largest
/// logit and the sum of e^(logit - largest) over the sender's keys; the mass of those keys and of
/// their diagonals; the pattern of some rows of a document.
enum class Tensor : std::uint8_t {
  q,
  k,
  v,
  o,
  lse,
  dout,
  delta,
  dq,
  dk,
  dv,
  observed,
  observed_keys,
  peak,
  sum,
  mass,
  pattern
};
std::string_view name(Tensor what);  ///< "Q", "K", ..., "pattern"
bool is_key_side(Tensor what);       ///< k, v, dk, dv, observed_keys: heads count key-value heads
bool is_result(Tensor what);         ///< o, lse, dq, dk, dv: produced by tasks, partial, merged
/// Whether tasks of this pass produce it: the backward pass reads the forward pass's lse.
bool is_result(Tensor what, Pass pass);

/// Token rows of one tensor of one document, from one rank to another.
struct Move {
  Rank from = 0;
  Rank to = 0;
  Tensor what = Tensor::q;
  int document = 0;
  Range tokens;
  Range heads;  ///< query heads, or key-value heads where is_key_side(what)
  std::int64_t bytes = 0;
  friend bool operator==(const Move&, const Move&) = default;
};

struct PlacedTask {
  Rank server = 0;
  Task task;
  double cost = 0;  ///< FLOPs of the pass: forward, or 2.5 times as many in a backward plan
  double kept = 1;  ///< share of its pairs that is expected to be computed; `cost` is of those
  std::int64_t block = 0;  ///< sparse: queries and keys of a block that its rows have; 0: dense
  friend bool operator==(const PlacedTask&, const PlacedTask&) = default;
};

/// A stage: its moves arrive, then its tasks run. A move of inputs (Q, K, V, dO, LSE, delta) takes
/// what its source holds: at home, or brought there by an earlier stage (a ring passes keys on); a
/// move of results (O, LSE; dQ, dK, dV) takes what tasks of earlier stages produced.
struct Stage {
  std::vector<Move> moves;
  std::vector<PlacedTask> tasks;
};

/// What ranks tell each other so that all servers of a document get the same index. In each round
/// the moves of all its documents arrive; then every rank works with them. vertical_slash needs all
/// rounds, xattention the first and the last.
enum class IndexRound : std::uint8_t {
  observed,  ///< vertical_slash: the last queries, to all who hold keys: logits. xattention:
             ///< queries and keys, to the owner of the rows, who chooses their pattern
  peak,      ///< of each query, to all others: sums
  sum,       ///< ... to all others: masses
  mass,      ///< of every key and diagonal, to the owner of the head, who chooses the pattern
  pattern,   ///< from the owner to the servers
};
inline constexpr int kIndexRounds = 5;

/// Who contributes to a range of outputs: every server that computed a part of it.
struct Merge {
  Rank owner = 0;
  int document = 0;
  Range tokens;
  Range heads;
  std::vector<Rank> contributors;  ///< ascending; the owner itself where it computed a part
  friend bool operator==(const Merge&, const Merge&) = default;
};

/// A tolerance that attention.tolerance: auto tried.
struct Trial {
  double tolerance = 0;
  double layer_seconds = 0;  ///< predicted for a layer of the tick, both passes
  friend bool operator==(const Trial&, const Trial&) = default;
};

struct Plan {
  Workload workload;
  /// By IndexRound, moves only, before the first stage; empty where all documents are dense. A
  /// backward plan has the last round alone: owners keep their patterns, servers do not.
  std::vector<Stage> index;
  std::vector<Stage> stages;
  std::vector<Merge> merges;
  std::vector<double> cost_per_rank;  ///< FLOPs
  std::vector<std::int64_t> bytes_sent_per_rank;
  /// Servers keep Q, K and V from the forward to the backward pass.
  bool keeps_inputs = false;
  /// Ranks get all keys and values of their context group, read or not: attention.gather: all.
  bool gathers_all = false;
  /// attention.tolerance: auto: what was compared for the tick, the one that was taken first.
  std::vector<Trial> trials;
};

/// Key-value heads that query heads read.
Range key_heads(const AttentionShape& shape, Range heads);

/// Bytes of a move: of inputs in element_bytes, of results, LSE and delta in accumulator_bytes.
std::int64_t move_bytes(const AttentionShape& shape, Tensor what, Range tokens, Range heads);

/// A move with its bytes.
Move make_move(const AttentionShape& shape, Rank from, Rank to, Tensor what, int document,
               Range tokens, Range heads);

/// Share of a task's pairs that is expected to be computed.
double kept_share(const Workload& workload, const Task& task);

/// A task of a forward plan, with its cost.
PlacedTask place_task(const Workload& workload, Rank server, const Task& task);

/// Fills cost_per_rank and bytes_sent_per_rank from tasks and moves.
void add_totals(Plan& plan);

/// [ranks] Cost of a server that has its share of the plan's: the mean, where all have the same
/// capacity.
std::vector<double> fair_costs(const Plan& plan);

/// Largest server cost over the server's share (1 when nothing is to do).
double imbalance(const Plan& plan);

/// The backward plan of `forward`, its mirror: the same tasks; where the forward plan moved Q, K, V
/// to a server, the backward one moves Q, dO, LSE, delta and K, V there (dO, LSE and delta alone
/// where the plan keeps its inputs) and dQ, dK, dV back to their owners as soon as the server's
/// last task with them has run. Gradients are sums: its `merges` are empty. Of the index rounds it
/// has the last one.
Plan mirror(const Plan& forward);

/// Equal plans have equal hashes; ranks compare them before the first byte moves.
std::uint64_t hash(const Plan& plan);

}  // namespace cadenza::plan
