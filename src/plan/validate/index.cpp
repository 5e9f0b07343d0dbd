// SPDX-License-Identifier: Apache-2.0
// Rule `index`: every rank that needs a part of the index of sparse attention gets it once, from a
// rank that has it.
#include "cadenza/plan/index.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "cadenza/base/at.hpp"
#include "plan/index/method.hpp"
#include "plan/validate/rules.hpp"

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
  const std::vector<Move>& moves(IndexRound round) const { return plan_.index[at(round)].moves; }

  void check_form(int round, const std::set<int>& sparse) {
    if (!plan_.index[at(round)].tasks.empty()) {
      faults_.add("index", "round {} has tasks", round);
    }
    const std::set<Tensor> carried = carried_in(static_cast<IndexRound>(round));
    for (const Move& move : moves(static_cast<IndexRound>(round))) {
      const auto is_rank = [&](Rank rank) { return rank >= 0 && rank < workload_.ranks; };
      const std::int64_t heads =
          is_key_side(move.what) ? workload_.shape.kv_heads : workload_.shape.heads;
      if (!is_rank(move.from) || !is_rank(move.to) || move.from == move.to) {
        faults_.add("index", "{}: not from a rank to another", describe(move));
      } else if (!carried.contains(move.what)) {
        faults_.add("index", "{}: round {} does not carry it", describe(move), round);
      } else if (!sparse.contains(move.document)) {
        faults_.add("index", "{}: not a sparse document", describe(move));
      } else if (!Range{0, workload_.lengths[at(move.document)]}.contains(move.tokens) ||
                 !Range{0, heads}.contains(move.heads)) {
        faults_.add("index", "{}: not tokens and heads of the document", describe(move));
      } else if (move.bytes !=
                 index_bytes(workload_, move.what, move.document, move.tokens, move.heads)) {
        faults_.add("index", "{}: {} bytes, it has {}", describe(move), move.bytes,
                    index_bytes(workload_, move.what, move.document, move.tokens, move.heads));
      }
    }
  }

  std::set<Tensor> carried_in(IndexRound round) const {
    switch (round) {
      case IndexRound::observed:
        if (index_method(workload_).gathers_keys) {
          return {Tensor::observed, Tensor::observed_keys};
        }
        return {Tensor::observed};
      case IndexRound::peak:
        return {Tensor::peak};
      case IndexRound::sum:
        return {Tensor::sum};
      case IndexRound::mass:
        return {Tensor::mass};
      case IndexRound::pattern:
        break;
    }
    return {Tensor::pattern};
  }

  void check_making(const IndexParts& parts) {
    for (int round = 0; round < kIndexRounds; ++round) {
      const auto which = static_cast<IndexRound>(round);
      for (const Tensor what : carried_in(which)) {
        if (what != Tensor::pattern && !tells_all(workload_, parts, which)) {
          check_arrivals(parts, which, what);
        }
      }
      if (tells_all(workload_, parts, which)) check_pairs(parts, which);
    }
  }

  /// Checks that the tokens of `what` that arrive at a rank and those that it holds are exactly the
  /// needed ones, each once.
  void check_arrivals(const IndexParts& parts, IndexRound round, Tensor what) {
    std::vector<IndexNeed> needs;
    for (std::size_t n = 0; n < parts.holders.size(); ++n) {
      needs.push_back({what, {}, {}});
      for (const IndexNeed& need : index_needs(workload_, parts, n, round)) {
        if (need.what == what) needs.back() = need;
      }
    }
    std::vector<std::vector<Range>> arrived(needs.size());
    std::vector<std::int64_t> all(needs.size(), 0);
    for (std::size_t n = 0; n < needs.size(); ++n) {
      for (const Home& part : needed_at_home(parts, needs[n])) {
        all[n] += part.tokens.size();
        if (part.rank == parts.holders[n]) arrived[n].push_back(part.tokens);
      }
    }
    for (const Move& move : moves(round)) {
      if (move.document != parts.document || move.what != what) continue;
      const int to = parts.holder(move.to);
      const auto n = static_cast<std::size_t>(std::max(to, 0));
      if (to < 0 || move.heads != needs[n].heads || needs[n].heads.empty()) {
        faults_.add("index", "{}: not the heads that the receiver works on", describe(move));
      } else if (!at_home(needed_at_home(parts, needs[n]), move.from, move.tokens)) {
        faults_.add("index", "{}: not at home on the sender, or not needed", describe(move));
      } else {
        arrived[n].push_back(move.tokens);
      }
    }
    for (std::size_t n = 0; n < needs.size(); ++n) {
      if (!needs[n].heads.empty()) check_once(parts, n, what, arrived[n], all[n]);
    }
  }

  void check_once(const IndexParts& parts, std::size_t holder, Tensor what,
                  std::vector<Range>& arrived, std::int64_t all) {
    std::ranges::sort(arrived, {}, &Range::begin);
    std::int64_t sum = 0;
    std::int64_t end = 0;
    for (const Range& tokens : arrived) {
      if (tokens.begin < end) {
        faults_.add("index", "{} of document {}: rank {} gets token {} twice", name(what),
                    parts.document, parts.holders[holder], tokens.begin);
      }
      end = std::max(end, tokens.end);
      sum += tokens.size();
    }
    if (sum < all) {
      faults_.add("index", "{} of document {}: rank {} has {} of {} tokens", name(what),
                  parts.document, parts.holders[holder], sum, all);
    }
  }

  /// The homes of the rows of a need.
  std::vector<Home> needed_at_home(const IndexParts& parts, const IndexNeed& need) const {
    std::vector<Home> found;
    if (need.tokens.empty()) return found;
    for (const Home& home : parts.homes) {
      std::ranges::copy(within_text(workload_, home, need.tokens), std::back_inserter(found));
    }
    return found;
  }

  static bool at_home(const std::vector<Home>& homes, Rank rank, Range tokens) {
    return std::ranges::any_of(
        homes, [&](const Home& home) { return home.rank == rank && home.tokens.contains(tokens); });
  }

  /// Checks that every holder sends to every other once.
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
        faults_.add("index", "round {} of document {}: rank {} does not tell rank {}",
                    static_cast<int>(round), parts.document, from, to);
      }
    }
    if (!told.empty()) {
      faults_.add("index",
                  "round {} of document {}: rank {} tells rank {}, of whom one holds no keys",
                  static_cast<int>(round), parts.document, told.begin()->first.first,
                  told.begin()->first.second);
    }
  }

  /// Checks that a server has the patterns of its tasks' heads and rows: as their owner or, once,
  /// from the owner.
  void check_patterns(const IndexParts& parts) {
    std::map<std::pair<Rank, std::int64_t>, std::vector<Range>> has;  // by server and head
    for (std::size_t n = 0; n < parts.holders.size(); ++n) {
      const OwnedIndex owned = owned_index(workload_, parts, n);
      for (std::int64_t head = owned.heads.begin; head < owned.heads.end; ++head) {
        has[{parts.holders[n], head}].push_back(owned.tokens);
      }
    }
    for (const Move& move : moves(IndexRound::pattern)) {
      if (move.document != parts.document) continue;
      const int owner = parts.holder(move.from);
      const OwnedIndex owned =
          owner < 0 ? OwnedIndex{} : owned_index(workload_, parts, static_cast<std::size_t>(owner));
      if (!owned.heads.contains(move.heads) || !owned.tokens.contains(move.tokens)) {
        faults_.add("index", "{}: the sender does not own it", describe(move));
      }
      for (std::int64_t head = move.heads.begin; head < move.heads.end; ++head) {
        std::vector<Range>& rows = has[{move.to, head}];
        if (std::ranges::any_of(rows, [&](Range of) { return of.overlaps(move.tokens); })) {
          faults_.add("index", "{}: head {} is there already", describe(move), head);
        }
        rows.push_back(move.tokens);
      }
    }
    for (auto& [of, rows] : has) std::ranges::sort(rows, {}, &Range::begin);
    for (const Stage& stage : plan_.stages) {
      for (const PlacedTask& placed : stage.tasks) {
        if (placed.task.document == parts.document) check_task(placed, has);
      }
    }
  }

  void check_task(const PlacedTask& placed,
                  std::map<std::pair<Rank, std::int64_t>, std::vector<Range>>& has) {
    const Range rows = workload_.order.natural()
                           ? placed.task.q
                           : Range{0, workload_.lengths[at(placed.task.document)]};
    for (std::int64_t head = placed.task.heads.begin; head < placed.task.heads.end; ++head) {
      std::int64_t end = rows.begin;  // rows before it are present
      for (const Range& part : has[{placed.server, head}]) {
        if (part.begin <= end) end = std::max(end, part.end);
      }
      if (end >= rows.end) continue;
      faults_.add("index", "{}: the server has no pattern of head {} from token {} on",
                  describe(placed), head, end);
      break;
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
