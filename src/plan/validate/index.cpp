// SPDX-License-Identifier: Apache-2.0
// Rule `index`: whoever needs a part of the index of sparse attention gets it, once, from the one
// who has it.
#include <algorithm>
#include <map>
#include <set>

#include "cadenza/plan/index.hpp"
#include "plan/index_rounds.hpp"
#include "rules.hpp"

namespace cadenza::plan {
namespace {

class IndexRule {
 public:
  IndexRule(const Plan& plan, bool makes, Faults& faults)
      : plan_(plan), workload_(plan.workload), faults_(faults) {
    const std::vector<IndexParts> all = index_parts(workload_);
    const std::size_t rounds = all.empty() ? 0 : kIndexRounds;
    if (plan.index.size() != rounds) {
      faults_.add("index", "{} rounds; valid: {}", plan.index.size(), rounds);
      return;
    }
    std::set<int> sparse;
    for (const IndexParts& parts : all) sparse.insert(parts.document);
    for (int round = 0; round < static_cast<int>(rounds); ++round) check_form(round, sparse);
    if (!faults_.empty()) return;
    for (const IndexParts& parts : all) {
      if (makes) check_making(parts);
      check_patterns(parts);
    }
    if (makes) return;
    for (std::size_t round = 0; round + 1 < rounds; ++round) {
      if (!plan.index[round].moves.empty()) {
        faults_.add("index", "round {}: the backward pass makes no index", round);
      }
    }
  }

 private:
  const std::vector<Move>& moves(IndexRound round) const {
    return plan_.index[static_cast<std::size_t>(round)].moves;
  }

  void check_form(int round, const std::set<int>& sparse) {
    const Tensor what = carried(static_cast<IndexRound>(round));
    if (!plan_.index[static_cast<std::size_t>(round)].tasks.empty()) {
      faults_.add("index", "round {} has tasks", round);
    }
    for (const Move& move : moves(static_cast<IndexRound>(round))) {
      const auto is_rank = [&](Rank rank) { return rank >= 0 && rank < workload_.ranks; };
      if (!is_rank(move.from) || !is_rank(move.to) || move.from == move.to) {
        faults_.add("index", "{}: not from a rank to another", describe(move));
      } else if (move.what != what) {
        faults_.add("index", "{}: round {} carries {}", describe(move), round, name(what));
      } else if (!sparse.contains(move.document)) {
        faults_.add("index", "{}: not a sparse document", describe(move));
      } else if (!Range{0, workload_.lengths[static_cast<std::size_t>(move.document)]}.contains(
                     move.tokens) ||
                 !Range{0, workload_.shape.heads}.contains(move.heads)) {
        faults_.add("index", "{}: not tokens and heads of the document", describe(move));
      } else if (move.bytes !=
                 index_bytes(workload_, what, move.document, move.tokens, move.heads)) {
        faults_.add("index", "{}: {} bytes, it has {}", describe(move), move.bytes,
                    index_bytes(workload_, what, move.document, move.tokens, move.heads));
      }
    }
  }

  void check_making(const IndexParts& parts) {
    check_arrivals(parts, IndexRound::observed);
    check_pairs(parts, IndexRound::peak);
    check_pairs(parts, IndexRound::sum);
    check_arrivals(parts, IndexRound::mass);
  }

  /// Tokens that come to a rank and those that it holds are all, each once: the observed queries
  /// for every holder; the keys for every owner of heads.
  void check_arrivals(const IndexParts& parts, IndexRound round) {
    const bool mass = round == IndexRound::mass;
    const auto heads_of = [&](std::size_t n) {
      return mass ? parts.owned(n, workload_.shape.heads) : Range{0, workload_.shape.heads};
    };
    const std::vector<Home>& homes = mass ? parts.homes : parts.queries;
    std::vector<std::vector<Range>> arrived(parts.holders.size());
    std::int64_t all = 0;
    for (const Home& home : homes) {
      arrived[static_cast<std::size_t>(parts.holder(home.rank))].push_back(home.tokens);
      all += home.tokens.size();
    }
    for (const Move& move : moves(round)) {
      if (move.document != parts.document) continue;
      const int to = parts.holder(move.to);
      if (to < 0 || move.heads != heads_of(static_cast<std::size_t>(to))) {
        faults_.add("index", "{}: not the heads that the receiver works on", describe(move));
      } else if (!at_home(homes, move.from, move.tokens)) {
        faults_.add("index", "{}: not at home on the sender", describe(move));
      } else {
        arrived[static_cast<std::size_t>(to)].push_back(move.tokens);
      }
    }
    for (std::size_t n = 0; n < arrived.size(); ++n) {
      if (heads_of(n).empty()) continue;
      std::ranges::sort(arrived[n], {}, &Range::begin);
      std::int64_t sum = 0;
      std::int64_t end = 0;
      for (const Range& tokens : arrived[n]) {
        if (tokens.begin < end) {
          faults_.add("index", "{} of document {}: rank {} gets token {} twice",
                      name(carried(round)), parts.document, parts.holders[n], tokens.begin);
        }
        end = std::max(end, tokens.end);
        sum += tokens.size();
      }
      if (sum < all) {
        faults_.add("index", "{} of document {}: rank {} has {} of {} tokens", name(carried(round)),
                    parts.document, parts.holders[n], sum, all);
      }
    }
  }

  static bool at_home(const std::vector<Home>& homes, Rank rank, Range tokens) {
    return std::ranges::any_of(
        homes, [&](const Home& home) { return home.rank == rank && home.tokens.contains(tokens); });
  }

  /// Every holder tells every other once.
  void check_pairs(const IndexParts& parts, IndexRound round) {
    std::map<std::pair<Rank, Rank>, int> told;
    for (const Move& move : moves(round)) {
      if (move.document != parts.document) continue;
      const bool whole = move.heads == Range{0, workload_.shape.heads};
      if (!whole || ++told[{move.from, move.to}] > 1) {
        faults_.add("index", "{}: {}", describe(move), whole ? "told twice" : "not all heads");
      }
    }
    for (const Rank from : parts.holders) {
      for (const Rank to : parts.holders) {
        if (from == to || told.erase({from, to}) > 0) continue;
        faults_.add("index", "{} of document {}: rank {} does not tell rank {}",
                    name(carried(round)), parts.document, from, to);
      }
    }
    if (!told.empty()) {
      faults_.add("index", "{} of document {}: rank {} tells rank {}, of whom one holds no keys",
                  name(carried(round)), parts.document, told.begin()->first.first,
                  told.begin()->first.second);
    }
  }

  /// A server has the patterns of its tasks' heads: as their owner, or from the owner, once.
  void check_patterns(const IndexParts& parts) {
    std::set<std::pair<Rank, std::int64_t>> has;  // server, head
    for (std::size_t n = 0; n < parts.holders.size(); ++n) {
      const Range owned = parts.owned(n, workload_.shape.heads);
      for (std::int64_t head = owned.begin; head < owned.end; ++head) {
        has.emplace(parts.holders[n], head);
      }
    }
    for (const Move& move : moves(IndexRound::pattern)) {
      if (move.document != parts.document) continue;
      const int owner = parts.holder(move.from);
      const bool owns =
          owner >= 0 &&
          parts.owned(static_cast<std::size_t>(owner), workload_.shape.heads).contains(move.heads);
      if (!owns) faults_.add("index", "{}: the sender does not own it", describe(move));
      for (std::int64_t head = move.heads.begin; head < move.heads.end; ++head) {
        if (!has.emplace(move.to, head).second) {
          faults_.add("index", "{}: head {} is there already", describe(move), head);
        }
      }
    }
    for (const Stage& stage : plan_.stages) {
      for (const PlacedTask& placed : stage.tasks) {
        if (placed.task.document != parts.document) continue;
        for (std::int64_t head = placed.task.heads.begin; head < placed.task.heads.end; ++head) {
          if (has.contains({placed.server, head})) continue;
          faults_.add("index", "{}: the server has no pattern of head {}", describe(placed), head);
          break;
        }
      }
    }
  }

  const Plan& plan_;
  const Workload& workload_;
  Faults& faults_;
};

}  // namespace

void check_index(const Plan& plan, bool makes, Faults& faults) {
  IndexRule(plan, makes, faults);
}

}  // namespace cadenza::plan
