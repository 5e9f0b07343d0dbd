// SPDX-License-Identifier: Apache-2.0
#include "plan/index_rounds.hpp"

#include <algorithm>
#include <map>

#include "plan/order.hpp"

namespace cadenza::plan {
namespace {

class Rounds {
 public:
  explicit Rounds(Plan& plan) : plan_(plan), workload_(plan.workload) {}

  void add(const IndexParts& parts) {
    parts_ = &parts;
    for (int round = 0; round < kIndexRounds; ++round) {
      const auto which = static_cast<IndexRound>(round);
      add_needs(which);
      if (tells_all(workload_, which)) add_to_all(which);
    }
    add_patterns();
  }

 private:
  void add_move(IndexRound round, Rank from, Rank to, Tensor what, Range tokens, Range heads) {
    if (from == to || heads.empty() || tokens.empty()) return;
    plan_.index[static_cast<std::size_t>(round)].moves.push_back(
        {from, to, what, parts_->document, tokens, heads,
         index_bytes(workload_, what, parts_->document, tokens, heads)});
  }

  void add_needs(IndexRound round) {
    for (std::size_t n = 0; n < parts_->holders.size(); ++n) {
      for (const IndexNeed& need : index_needs(workload_, *parts_, n, round)) {
        for (const Home& home : parts_->homes) {
          for (const Home& part : within_text(workload_, home, need.tokens)) {
            add_move(round, home.rank, parts_->holders[n], need.what, part.tokens, need.heads);
          }
        }
      }
    }
  }

  void add_to_all(IndexRound round) {
    const Tensor what = round == IndexRound::peak ? Tensor::peak : Tensor::sum;
    for (const Rank from : parts_->holders) {
      for (const Rank to : parts_->holders) {
        add_move(round, from, to, what, all_tokens(), {0, workload_.shape.heads});
      }
    }
  }

  /// Heads and rows of a server's tasks.
  struct Needed {
    Range heads;
    Range tokens;
  };

  void add_patterns() {
    std::map<Rank, Needed> servers;
    for (const Stage& stage : plan_.stages) {
      for (const PlacedTask& placed : stage.tasks) {
        if (placed.task.document != parts_->document) continue;
        const Needed needed{placed.task.heads, rows_of(placed.task)};
        const auto [at, first] = servers.try_emplace(placed.server, needed);
        if (first) continue;
        at->second.heads = hull(at->second.heads, needed.heads);
        at->second.tokens = hull(at->second.tokens, needed.tokens);
      }
    }
    for (const auto& [server, needed] : servers) {
      for (std::size_t n = 0; n < parts_->holders.size(); ++n) {
        const OwnedIndex owned = owned_index(workload_, *parts_, n);
        add_move(IndexRound::pattern, parts_->holders[n], server, Tensor::pattern,
                 intersect(owned.tokens, needed.tokens), intersect(owned.heads, needed.heads));
      }
    }
  }

  static Range hull(Range a, Range b) {
    return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
  }

  /// Stripes have rows from everywhere; a vertical-slash pattern is the same in all rows.
  Range rows_of(const Task& task) const {
    const SparseRule& rule = workload_.sparse;
    if (!workload_.order.natural() || rule.kind == SparseKind::vertical_slash) return all_tokens();
    const Range rows = rule.block_rows(task.q);
    return intersect({rows.begin * rule.block, rows.end * rule.block}, all_tokens());
  }

  Range all_tokens() const {
    return {0, workload_.lengths[static_cast<std::size_t>(parts_->document)]};
  }

  Plan& plan_;
  const Workload& workload_;
  const IndexParts* parts_ = nullptr;
};

}  // namespace

std::int64_t index_bytes(const Workload& workload, Tensor what, int document, Range tokens,
                         Range heads) {
  const std::int64_t length = workload.lengths[static_cast<std::size_t>(document)];
  const std::int64_t observed = SparseRule::observed(length).size();
  switch (what) {
    case Tensor::observed:
      return move_bytes(workload.shape, Tensor::q, tokens, heads);
    case Tensor::observed_keys:
      return move_bytes(workload.shape, Tensor::k, tokens, heads);
    case Tensor::peak:
      return observed * heads.size() * workload.shape.accumulator_bytes;
    case Tensor::sum:
      return observed * heads.size() * static_cast<std::int64_t>(sizeof(std::int64_t));
    case Tensor::mass:
      return (tokens.size() + observed_diagonals(workload, document, tokens).size()) *
             heads.size() * static_cast<std::int64_t>(sizeof(std::uint32_t));
    case Tensor::pattern:
      return workload.sparse.pattern_words(length, tokens) * heads.size() *
             static_cast<std::int64_t>(sizeof(std::uint64_t));
    case Tensor::q:
    case Tensor::k:
    case Tensor::v:
    case Tensor::o:
    case Tensor::lse:
    case Tensor::dout:
    case Tensor::delta:
    case Tensor::dq:
    case Tensor::dk:
    case Tensor::dv:
      break;
  }
  return move_bytes(workload.shape, what, tokens, heads);
}

void add_index_rounds(Plan& plan) {
  const std::vector<IndexParts> all = index_parts(plan.workload);
  if (all.empty()) return;
  plan.index.resize(kIndexRounds);
  Rounds rounds(plan);
  for (const IndexParts& parts : all) rounds.add(parts);
  for (Stage& round : plan.index) sort_stage(round);
}

}  // namespace cadenza::plan
