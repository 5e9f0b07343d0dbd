// SPDX-License-Identifier: Apache-2.0
#include "index_rounds.hpp"

#include <algorithm>
#include <map>

#include "order.hpp"

namespace cadenza::plan {
namespace {

/// The tokens of a home that stand at or behind a text position: of each stripe the last ones.
void add_from(const Workload& workload, const Home& home, std::int64_t position,
              std::vector<Home>& parts) {
  const std::int64_t length = workload.lengths[static_cast<std::size_t>(home.document)];
  for (const TextRun& run : text_runs(workload.order, length, home.tokens)) {
    if (run.last() < position) continue;
    const std::int64_t before =
        run.first >= position ? 0 : (position - run.first + run.step - 1) / run.step;
    parts.push_back({home.rank, home.document, {run.tokens.begin + before, run.tokens.end}});
  }
}

class Rounds {
 public:
  explicit Rounds(Plan& plan) : plan_(plan), workload_(plan.workload) {}

  void add(const IndexParts& parts) {
    parts_ = &parts;
    add_observed();
    add_to_all(IndexRound::peak);
    add_to_all(IndexRound::sum);
    add_masses();
    add_patterns();
  }

 private:
  void add_move(IndexRound round, Rank from, Rank to, Range tokens, Range heads) {
    if (from == to || heads.empty()) return;
    const Tensor what = carried(round);
    plan_.index[static_cast<std::size_t>(round)].moves.push_back(
        {from, to, what, parts_->document, tokens, heads,
         index_bytes(workload_, what, parts_->document, tokens, heads)});
  }

  void add_observed() {
    for (const Home& part : parts_->queries) {
      for (const Rank holder : parts_->holders) {
        add_move(IndexRound::observed, part.rank, holder, part.tokens, all_heads());
      }
    }
  }

  void add_to_all(IndexRound round) {
    for (const Rank from : parts_->holders) {
      for (const Rank to : parts_->holders) add_move(round, from, to, all_tokens(), all_heads());
    }
  }

  void add_masses() {
    for (const Home& home : parts_->homes) {
      for (std::size_t n = 0; n < parts_->holders.size(); ++n) {
        add_move(IndexRound::mass, home.rank, parts_->holders[n], home.tokens, owned(n));
      }
    }
  }

  void add_patterns() {
    std::map<Rank, Range> needed;  // heads of a server's tasks
    for (const Stage& stage : plan_.stages) {
      for (const PlacedTask& placed : stage.tasks) {
        if (placed.task.document != parts_->document) continue;
        const Range heads = placed.task.heads;
        const auto [at, first] = needed.try_emplace(placed.server, heads);
        if (first) continue;
        at->second = {std::min(at->second.begin, heads.begin), std::max(at->second.end, heads.end)};
      }
    }
    for (const auto& [server, heads] : needed) {
      for (std::size_t n = 0; n < parts_->holders.size(); ++n) {
        add_move(IndexRound::pattern, parts_->holders[n], server, all_tokens(),
                 intersect(owned(n), heads));
      }
    }
  }

  Range owned(std::size_t holder) const { return parts_->owned(holder, workload_.shape.heads); }
  Range all_heads() const { return {0, workload_.shape.heads}; }
  Range all_tokens() const {
    return {0, workload_.lengths[static_cast<std::size_t>(parts_->document)]};
  }

  Plan& plan_;
  const Workload& workload_;
  const IndexParts* parts_ = nullptr;
};

}  // namespace

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
    const std::int64_t length = workload.lengths[document];
    if (workload.sparse.is_dense(length)) continue;
    IndexParts& parts = all.emplace_back();
    parts.document = static_cast<int>(document);
    parts.observed = SparseRule::observed(length);
    for (const Home& home : homes.of(parts.document)) {
      parts.homes.push_back(home);
      parts.holders.push_back(home.rank);
      add_from(workload, home, parts.observed.begin, parts.queries);
    }
    std::ranges::sort(parts.holders);
    const auto twice = std::ranges::unique(parts.holders);
    parts.holders.erase(twice.begin(), twice.end());
  }
  return all;
}

bool works_in(const Workload& workload, Rank rank, IndexRound round) {
  if (round == IndexRound::pattern) return false;
  return std::ranges::any_of(index_parts(workload), [&](const IndexParts& parts) {
    const int holder = parts.holder(rank);
    if (holder < 0) return false;
    return round != IndexRound::mass ||
           !parts.owned(static_cast<std::size_t>(holder), workload.shape.heads).empty();
  });
}

Range observed_diagonals(const Workload& workload, int document, Range tokens) {
  const std::int64_t length = workload.lengths[static_cast<std::size_t>(document)];
  const Range observed = SparseRule::observed(length);
  std::int64_t first = length;
  std::int64_t last = 0;
  for (const TextRun& run : text_runs(workload.order, length, tokens)) {
    first = std::min(first, run.first);
    last = std::max(last, run.last());
  }
  return {std::max<std::int64_t>(0, observed.begin - last), observed.end - first};
}

std::int64_t index_bytes(const Workload& workload, Tensor what, int document, Range tokens,
                         Range heads) {
  const std::int64_t length = workload.lengths[static_cast<std::size_t>(document)];
  const std::int64_t observed = SparseRule::observed(length).size();
  switch (what) {
    case Tensor::observed:
      return move_bytes(workload.shape, Tensor::q, tokens, heads);
    case Tensor::peak:
      return observed * heads.size() * workload.shape.accumulator_bytes;
    case Tensor::sum:
      return observed * heads.size() * static_cast<std::int64_t>(sizeof(std::int64_t));
    case Tensor::mass:
      return (tokens.size() + observed_diagonals(workload, document, tokens).size()) *
             heads.size() * static_cast<std::int64_t>(sizeof(std::uint32_t));
    case Tensor::pattern:
      return workload.sparse.pattern_words(length) * heads.size() *
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
