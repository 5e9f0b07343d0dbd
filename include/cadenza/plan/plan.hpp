// SPDX-License-Identifier: Apache-2.0
// The plan of one tick: which server computes which attention task in which stage, which token
// ranges move between ranks, how partial outputs merge. Data only: no tensors, no MPI.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/mask.hpp"
#include "cadenza/base/range.hpp"
#include "cadenza/base/sparse_density.hpp"
#include "cadenza/base/sparse_pattern.hpp"
#include "cadenza/base/task.hpp"
#include "cadenza/config/limits.hpp"

namespace cadenza::plan {

/// The order in which a plan counts the tokens of its documents, so that a rank holds a range.
/// Stripe c has the runs c, c + stripes, c + 2 stripes, ... of `run` tokens each; the tokens of
/// stripe 0 are counted first, then those of stripe 1, ... One stripe gives the order of the text.
/// Every "token" of a plan (homes, moves, tasks, merges) is such a count.
struct TokenOrder {
  std::int64_t stripes = 1;
  std::int64_t run = 1;
  bool natural() const { return stripes == 1; }
  friend bool operator==(const TokenOrder&, const TokenOrder&) = default;
};

/// Text position of the token with count `token`, in a document of `length` tokens.
std::int64_t position_of(const TokenOrder& order, std::int64_t length, std::int64_t token);

/// Counts of the tokens of a stripe; empty where the document is too short for it.
Range stripe_tokens(const TokenOrder& order, std::int64_t length, std::int64_t stripe);

/// A range of counts whose tokens are evenly spaced in the text.
struct TextRun {
  Range tokens;
  std::int64_t first = 0;  ///< text position of the first token
  std::int64_t step = 1;
  std::int64_t last() const { return first + (tokens.size() - 1) * step; }
};
std::vector<TextRun> text_runs(const TokenOrder& order, std::int64_t length, Range tokens);

/// A range of a document's tokens that lives on a trainer rank. A rank's token buffer holds the
/// rows of its homes one after another, in the order of Workload::homes.
struct Home {
  Rank rank = 0;
  int document = 0;
  Range tokens;
  friend bool operator==(const Home&, const Home&) = default;
};

using config::kFullCapacity;
/// A capacity as a multiple of a usual rank's.
constexpr double usual_ranks(std::int64_t capacity) {
  return static_cast<double>(capacity) / static_cast<double>(kFullCapacity);
}

/// A tick as a placement sees it: lengths, the homes of tokens, the servers.
struct Workload {
  std::vector<std::int64_t> lengths;  ///< tokens of each document
  std::vector<Home> homes;            ///< cover every token of every document exactly once
  std::vector<Rank> servers;          ///< ranks that compute attention, ascending
  /// By rank: the planned speed in percent of a usual rank's; empty: all ranks are equal.
  std::vector<std::int64_t> capacities;
  int ranks = 1;  ///< number of ranks in the plan
  AttentionShape shape;
  /// Trainers [g * context, (g + 1) * context) share the tokens of one microbatch, for every g.
  int context = 1;
  TokenOrder order;   ///< of every document
  Mask mask;          ///< of every document, in the order of the text; see mask_of()
  SparseRule sparse;  ///< of every document
  /// Lengths, ascending: sparse documents of these take patterns that an earlier step has chosen.
  std::vector<std::int64_t> reused;
  bool reuses(std::int64_t length) const { return std::ranges::binary_search(reused, length); }
  /// By document: shares of its pairs that are expected to be computed; empty: all are dense.
  std::vector<SparseDensity> density;
  /// By document: the queries that the plan covers; empty: all of every document. In ping-pong a
  /// half has ranges that begin at 0 or end at the document's end.
  std::vector<Range> queries;
  /// Layers of the model that the plan covers, ascending; empty: all.
  std::vector<int> layers;
  Range queries_of(std::size_t document) const {
    return queries.empty() ? Range{0, lengths[document]} : queries[document];
  }
  Mask mask_of(int document) const { return mask.within(lengths[at(document)]); }
  /// The document's mask with the weights of its pairs, in the order of the text.
  Weights weights_of(int document) const;
  std::int64_t capacity(Rank rank) const {
    return capacities.empty() ? kFullCapacity : capacities[at(rank)];
  }
  std::int64_t pool_capacity() const;  ///< sum over all servers
};

/// The tensor that a move carries. `delta` is rowsum(dO * O) of the merged O. The last six serve
/// the index of sparse attention (IndexRound): observed queries and keys, rotated; each query's
/// largest logit (peak) and its sum of e^(logit - largest) over the sender's keys; the mass of
/// those keys and of their diagonals; the pattern of some rows of a document.
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
/// Whether tasks of this pass produce the tensor: lse is an input of the backward pass.
bool is_result(Tensor what, Pass pass);

/// A move of token rows of one tensor of one document from one rank to another.
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

/// Whether the rows of a move are sent from where they lie and received where they are needed: rows
/// that tasks only read, enough of them to be a message of their own. Others share one, into which
/// they are copied.
bool travels_in_place(const Move& move);
/// Fewer are copied as fast as they are sent alone.
inline constexpr std::int64_t kInPlaceBytes = std::int64_t{64} << 10;

struct PlacedTask {
  Rank server = 0;
  Task task;
  double cost = 0;  ///< FLOPs of the pass: forward, or 2.5 times as many in a backward plan
  double kept = 1;  ///< expected share of its pairs that are computed; `cost` counts only those
  std::int64_t block = 0;  ///< sparse: tokens of a block that lie in its rows; 0: dense
  double adjoining = 0;    ///< sparse: share of the active blocks that adjoin others
  friend bool operator==(const PlacedTask&, const PlacedTask&) = default;
};

/// A stage: its moves arrive, then its tasks run. A move of inputs (Q, K, V, dO, LSE, delta) sends
/// rows that its source holds, at home or since an earlier stage (a ring passes keys on); a move of
/// results (O, LSE; dQ, dK, dV) sends rows that tasks of earlier stages produced.
struct Stage {
  std::vector<Move> moves;
  std::vector<PlacedTask> tasks;
};

/// Rounds of messages after which all servers of a document have the same index. In each round the
/// moves of all documents arrive, then every rank works on them. vertical_slash uses all rounds,
/// xattention the first and the last.
enum class IndexRound : std::uint8_t {
  observed,  ///< vertical_slash: sends the last queries to all holders of keys, which compute
  ///< logits. xattention: sends queries and keys to the owner of the rows, which chooses
  ///< their pattern
  peak,     ///< sends each query's largest logit to all holders, which compute sums
  sum,      ///< sends each query's sum to all holders, which compute masses
  mass,     ///< sends masses to the owner of the head, which chooses the pattern
  pattern,  ///< sends patterns from their owners to the servers
};
inline constexpr int kIndexRounds = 5;

/// A range of outputs and its contributors: all servers that computed a part of it.
struct Merge {
  Rank owner = 0;
  int document = 0;
  Range tokens;
  Range heads;
  std::vector<Rank> contributors;  ///< ascending; the owner itself where it computed a part
  friend bool operator==(const Merge&, const Merge&) = default;
};

/// A tolerance that was tried for attention.tolerance: auto.
struct Trial {
  double tolerance = 0;
  double layer_seconds = 0;  ///< predicted time of a layer of the tick, both passes
  friend bool operator==(const Trial&, const Trial&) = default;
};

struct Plan {
  Workload workload;
  /// By IndexRound: stages of moves only, before the first stage; empty where all documents are
  /// dense. A backward plan has only the last round: owners keep their patterns, servers do not.
  std::vector<Stage> index;
  std::vector<Stage> stages;
  std::vector<Merge> merges;
  std::vector<double> cost_per_rank;  ///< FLOPs
  std::vector<std::int64_t> bytes_sent_per_rank;
  /// Whether servers keep Q, K and V from the forward to the backward pass.
  bool keeps_inputs = false;
  /// attention.gather: all: ranks get all keys and values of their context group, read or not.
  bool gathers_all = false;
  /// Whether inputs leave at most two stages ahead: where a rank sends to many others in turn, what
  /// leaves sooner delays messages of earlier stages.
  bool paced = false;
  /// attention.tolerance: auto: the tolerances that were compared, the chosen one first.
  std::vector<Trial> trials;
};

/// Bytes of a move: inputs have element_bytes; results, LSE and delta have accumulator_bytes.
std::int64_t move_bytes(const AttentionShape& shape, Tensor what, Range tokens, Range heads);

/// A move with its bytes filled in.
Move make_move(const AttentionShape& shape, Rank from, Rank to, Tensor what, int document,
               Range tokens, Range heads);

/// Expected share of a task's pairs that are computed.
double kept_share(const Workload& workload, const Task& task);

/// A task of a forward plan with its cost, share and block filled in.
PlacedTask place_task(const Workload& workload, Rank server, const Task& task);

/// Fills cost_per_rank and bytes_sent_per_rank from tasks and moves.
void add_totals(Plan& plan);

/// [ranks] The cost of each server if the plan's cost were divided by capacity: the mean, where all
/// capacities are equal.
std::vector<double> fair_costs(const Plan& plan);

/// Largest ratio of a server's cost to its fair cost; 1 when there is no work.
double imbalance(const Plan& plan);

/// The backward plan of `forward`, its mirror. It has the same tasks. Where the forward plan moved
/// Q, K, V to a server, it moves Q, dO, LSE, delta and K, V there (only dO, LSE and delta where the
/// plan keeps its inputs), and dQ, dK, dV back to their owners as soon as the server's last task
/// with them has run. Its `merges` are empty because gradients are sums. Of the index rounds it has
/// only the last.
Plan mirror(const Plan& forward);

/// The last stage whose tasks compute rows that a stage sends as results; -1 where it sends none,
/// the stage before where no task computes them, which is a fault.
int last_tasks_of_results(const Plan& plan, std::size_t stage, Pass pass);

/// Hash of a plan. Ranks compare hashes before the first byte moves.
std::uint64_t hash(const Plan& plan);

}  // namespace cadenza::plan
