// SPDX-License-Identifier: Apache-2.0
// The moves of the index of sparse attention, derived from the methods of src/plan/index.
#include "cadenza/plan/index.hpp"

#include <algorithm>
#include <map>

#include "cadenza/base/at.hpp"
#include "plan/assemble.hpp"
#include "plan/index/method.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan {
namespace {

/// The n-th of `shares` equal parts of [0, whole).
Range share_of(std::int64_t whole, std::size_t n, std::size_t shares) {
  const auto at = [&](std::size_t i) {
    return static_cast<std::int64_t>(i) * whole / static_cast<std::int64_t>(shares);
  };
  return {at(n), at(n + 1)};
}

}  // namespace

std::int64_t length_of(const Workload& workload, const IndexParts& parts) {
  return workload.lengths[at(parts.document)];
}

const IndexMethod& index_method(const Workload& workload) {
  switch (workload.sparse.kind) {
    case SparseKind::vertical_slash:
      return kVerticalSlash;
    case SparseKind::xattention:
      break;
  }
  return kXAttention;
}

int IndexParts::holder(Rank rank) const {
  const auto found = std::ranges::lower_bound(holders, rank);
  if (found == holders.end() || *found != rank) return -1;
  return static_cast<int>(found - holders.begin());
}

std::vector<IndexParts> index_parts(const Workload& workload) {
  std::vector<IndexParts> all;
  if (workload.sparse.block == 0) return all;
  const Homes homes(workload);
  for (std::size_t document = 0; document < workload.lengths.size(); ++document) {
    if (workload.sparse.is_dense(workload.lengths[document])) continue;
    IndexParts& parts = all.emplace_back();
    parts.document = static_cast<int>(document);
    for (const Home& home : homes.of(parts.document)) {
      parts.homes.push_back(home);
      parts.holders.push_back(home.rank);
    }
    std::ranges::sort(parts.holders);
    const auto twice = std::ranges::unique(parts.holders);
    parts.holders.erase(twice.begin(), twice.end());
  }
  return all;
}

std::vector<Home> within_text(const Workload& workload, const Home& home, Range text) {
  const std::int64_t length = workload.lengths[at(home.document)];
  if (text.contains({0, length})) return {home};
  std::vector<Home> parts;
  for (const TextRun& run : text_runs(workload.order, length, home.tokens)) {
    // End of the run's tokens (first, first + step, ...) that lie before a text position.
    const auto before = [&](std::int64_t position) {
      const std::int64_t count = (position - run.first + run.step - 1) / run.step;
      return run.tokens.begin + std::clamp<std::int64_t>(count, 0, run.tokens.size());
    };
    const Range tokens{before(text.begin), before(text.end)};
    if (tokens.empty()) continue;
    if (!parts.empty() && parts.back().tokens.end == tokens.begin) {
      parts.back().tokens.end = tokens.end;
    } else {
      parts.push_back({home.rank, home.document, tokens});
    }
  }
  return parts;
}

OwnedIndex owned_heads(const Workload& workload, const IndexParts& parts, std::size_t holder) {
  return {share_of(workload.shape.heads, holder, parts.holders.size()),
          {0, length_of(workload, parts)}};
}

OwnedIndex owned_index(const Workload& workload, const IndexParts& parts, std::size_t holder) {
  return index_method(workload).owned(workload, parts, holder);
}

std::vector<IndexNeed> index_needs(const Workload& workload, const IndexParts& parts,
                                   std::size_t holder, IndexRound round) {
  if (workload.reuses(length_of(workload, parts))) return {};
  return index_method(workload).needs(workload, parts, holder, round);
}

bool tells_all(const Workload& workload, const IndexParts& parts, IndexRound round) {
  return index_method(workload).tells_all && !workload.reuses(length_of(workload, parts)) &&
         (round == IndexRound::peak || round == IndexRound::sum);
}

cost::IndexWork index_work(const Workload& workload, const IndexParts& parts, std::size_t holder,
                           IndexRound round) {
  if (workload.reuses(length_of(workload, parts))) return {};
  return index_method(workload).work(workload, parts, holder, round);
}

std::array<bool, kIndexRounds> works_in(const Workload& workload, Rank rank) {
  std::array<bool, kIndexRounds> works{};
  for (const IndexParts& parts : index_parts(workload)) {
    const int holder = parts.holder(rank);
    if (holder < 0) continue;
    for (std::size_t round = 0; round < works.size(); ++round) {
      const cost::IndexWork work = index_work(workload, parts, static_cast<std::size_t>(holder),
                                              static_cast<IndexRound>(round));
      works[round] = works[round] || work.flops + work.scores + work.masses > 0;
    }
  }
  return works;
}

Range observed_diagonals(const Workload& workload, int document, Range tokens) {
  const std::int64_t length = workload.lengths[at(document)];
  const Range observed = SparseRule::observed(length);
  std::int64_t first = length;
  std::int64_t last = 0;
  for (const TextRun& run : text_runs(workload.order, length, tokens)) {
    first = std::min(first, run.first);
    last = std::max(last, run.last());
  }
  return {std::max<std::int64_t>(0, observed.begin - last), observed.end - first};
}

namespace {

class Rounds {
 public:
  explicit Rounds(Plan& plan) : plan_(plan), workload_(plan.workload) {}

  void add(const IndexParts& parts) {
    parts_ = &parts;
    for (int round = 0; round < kIndexRounds; ++round) {
      const auto which = static_cast<IndexRound>(round);
      add_needs(which);
      if (tells_all(workload_, parts, which)) add_to_all(which);
    }
    add_patterns();
  }

 private:
  void add_move(IndexRound round, Rank from, Rank to, Tensor what, Range tokens, Range heads) {
    if (from == to || heads.empty() || tokens.empty()) return;
    plan_.index[at(round)].moves.push_back(
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

  /// Heads and rows of a server's tasks in one document.
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

  /// Rows whose pattern a task needs: all with stripes, which have rows from everywhere, and in the
  /// form vertical_slash, whose offsets are the same in all rows.
  Range rows_of(const Task& task) const {
    const SparseRule& rule = workload_.sparse;
    if (!workload_.order.natural() || rule.form() == PatternForm::vertical_slash)
      return all_tokens();
    const Range rows = rule.block_rows(task.q);
    return intersect({rows.begin * rule.block, rows.end * rule.block}, all_tokens());
  }

  Range all_tokens() const { return {0, workload_.lengths[at(parts_->document)]}; }

  Plan& plan_;
  const Workload& workload_;
  const IndexParts* parts_ = nullptr;
};

}  // namespace

std::int64_t index_bytes(const Workload& workload, Tensor what, int document, Range tokens,
                         Range heads) {
  const std::int64_t length = workload.lengths[at(document)];
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
