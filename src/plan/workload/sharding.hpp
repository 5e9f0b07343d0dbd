// SPDX-License-Identifier: Apache-2.0
// Homes of tokens: how a context group shares the tokens of its microbatch, and an index of homes
// by document.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "cadenza/cost/flops.hpp"
#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

class Homes {
 public:
  explicit Homes(const Workload& workload);

  /// Homes of a document, ascending by token.
  std::span<const Home> of(int document) const;

  /// Number of `tokens` that live on `rank`.
  std::int64_t held(Rank rank, int document, Range tokens) const;

  bool holds(Rank rank, int document, Range tokens) const {
    return held(rank, document, tokens) == tokens.size();
  }

  /// Calls visit(Home) for every part of `tokens`, ascending, cut where the home changes.
  template <typename Visit>
  void for_each_part(int document, Range tokens, Visit&& visit) const {
    if (tokens.empty()) return;
    const std::span<const Home> homes = of(document);
    // Documents over many ranks have many homes, so begin at the first that reaches `tokens`.
    auto home = std::partition_point(homes.begin(), homes.end(),
                                     [&](const Home& h) { return h.tokens.end <= tokens.begin; });
    for (; home != homes.end() && home->tokens.begin < tokens.end; ++home) {
      visit(Home{home->rank, document, intersect(home->tokens, tokens)});
    }
  }

 private:
  std::vector<Home> homes_;           // ascending by (document, token)
  std::vector<std::size_t> offsets_;  // begin of each document in homes_, and the end
};

/// Sorts rows by (document, rank, token) and joins those of one rank that overlap or touch.
void unite(std::vector<Home>& rows);

/// By rank: tokens of workload.queries that live there.
std::vector<std::int64_t> tokens_of_ranks(const Workload& workload);

// --- Sharing the tokens of a microbatch in a context group ---
// Documents may have any length: the tokens of ranks differ by one (block-striped: by less than two
// runs), and a document shorter than the group leaves some ranks without a part.

/// How sequences are cut. Each rank gets one contiguous chunk (`chunks` = 1) or two of 2 x ranks
/// chunks, the r-th from either end (`chunks` = 2), so that causal attention costs all ranks the
/// same.
struct Cut {
  int ranks = 1;
  int chunks = 1;
  bool documents = true;  ///< cut every document, else the whole microbatch as one sequence
  /// By rank (Workload::capacities): it gets tokens and, with two chunks, causal attention in
  /// proportion. Empty: all are equal.
  std::vector<std::int64_t> capacities = {};
};

/// Homes of documents `first`, `first` + 1, ... with these lengths; ranks count from 0. Ascending
/// by (document, token); touching parts on one rank are one home.
std::vector<Home> shard(std::span<const std::int64_t> lengths, int first, const Cut& cut);

/// Homes of striped documents: stripe c goes to rank (c + offset) mod ranks, with the offset per
/// document that makes the ranks most equal.
std::vector<Home> shard_stripes(std::span<const std::int64_t> lengths, int first,
                                const TokenOrder& order);

/// How many ranks of a group a document gets.
struct DegreeRule {
  int ranks = 1;                              ///< of the group
  std::vector<std::int64_t> capacities = {};  ///< as in Cut
  bool ends_only = false;                     ///< one rank or all; else any nested subgroup
  double longest = 1;  ///< tokens that a rank may hold, as a multiple of the mean
  cost::DocumentCost cost = {};
};

/// Homes of documents that have subgroups of their own, of adjacent ranks whose number divides the
/// group's, in two chunks a rank: the smallest whose ranks stay below 1.02 times the mean cost and
/// within the tokens that they may hold; where there is none, the one within those tokens whose
/// fullest rank has least cost, else the one whose fullest rank has fewest tokens.
std::vector<Home> shard_by_degree(std::span<const std::int64_t> lengths, int first,
                                  const DegreeRule& rule);

/// Homes of blocks of a microbatch's tokens, sorted by the pairs of their queries and dealt to the
/// ranks to and fro: the processing-time-based round robin (PTRR) of PyTorch's context parallelism.
std::vector<Home> shard_by_work(std::span<const std::int64_t> lengths, int first, int ranks,
                                std::int64_t block, const Mask& mask);

/// Ping-pong: number of first tokens of every document in the first half of a group's tokens, which
/// documents fill in order. At most one document is in both halves.
std::vector<std::int64_t> half_cuts(std::span<const std::int64_t> lengths);

/// Cuts every rank's rows, one document after another, into `parts` that differ by one row: rank r
/// becomes ranks r x parts, r x parts + 1, ...
std::vector<Home> split_ranks(std::span<const Home> homes, int ranks, int parts);

/// Joins touching parts of a document on one rank; ascending by (document, token).
void join_homes(std::vector<Home>& homes);

/// The attention of the slowest rank, in tiles of 128 queries x 128 keys, by which WLB-LLM chooses
/// a microbatch's sharding. Kernels work in such tiles, so a part of a tile costs a whole one. With
/// `capacities`, a rank's tiles are scaled to those of a full rank in the same time.
double predicted_tiles(const Mask& mask, std::span<const Home> homes, int ranks,
                       std::span<const std::int64_t> capacities = {});

// Masks in the order in which a plan counts tokens (plan::TokenOrder).

/// The stripe of a token, given by its count; 0 in the order of the text.
std::int64_t stripe_of(const TokenOrder& order, std::int64_t length, std::int64_t token);

/// Tasks that cover exactly the pairs of `rectangle` that the document's mask allows. Each has one
/// query stripe, one key stripe and one band, and no row or column at its edge without an allowed
/// pair. Between stripes the mask is a staircase with steps of `order.run` tokens: steps of one
/// token are a diagonal, wider ones are cut where an edge of the mask enters another run.
std::vector<Task> masked_tasks(const Workload& workload, const Task& rectangle);

/// Number of pairs that the document's mask allows to queries `q`, with all keys, for one head.
std::int64_t mask_pairs(const Workload& workload, int document, Range q);

/// Whether the band of a task allows in its rectangle exactly the pairs of the document's mask, at
/// the positions that the mask gives its queries.
bool is_masked(const Workload& workload, const Task& task);

}  // namespace cadenza::plan
