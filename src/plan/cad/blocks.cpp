// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/at.hpp"
#include "plan/cad/phases.hpp"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace cadenza::plan {
namespace {

struct Piece {
  std::size_t assignment = 0;
  Range q;
  Weight cost = 0;
  double gain = -1;  ///< query-key pairs per byte; negative: no piece
};

class BlockRefiner {
 public:
  BlockRefiner(const Workload& workload, std::int64_t block, Loads& loads, Residency& residency,
               std::vector<Assignment>& assignments)
      : workload_(workload),
        block_(block),
        loads_(loads),
        residency_(residency),
        assignments_(assignments),
        by_rank_(static_cast<std::size_t>(workload.ranks)) {
    for (std::size_t i = 0; i < assignments_.size(); ++i) on(assignments_[i].server).push_back(i);
    for (Rank rank = 0; rank < loads_.ranks(); ++rank)
      by_excess_.insert({-loads_.excess(rank), rank});
  }

  void run() {
    while (step()) {
    }
  }

 private:
  std::vector<std::size_t>& on(Rank rank) { return by_rank_[at(rank)]; }

  /// Moves one piece to the server that finishes first, from the one that finishes last and can
  /// give. Returns false when no move is left. Ends: both finish before the giver did.
  bool step() {
    const Rank to = loads_.least();
    const bool takes_any = loads_.under(to);
    for (const auto& [negative_excess, from] : by_excess_) {
      const bool gives = loads_.over(from) || (takes_any && loads_.surplus(from) > 0);
      if (!gives && loads_.serves(from)) return false;  // nor do ranks with less excess
      if (!gives) continue;
      const Weight useful = loads_.useful(from, to);
      Piece piece =
          best_run(from, to, std::min({loads_.surplus(from), loads_.deficit(to), useful}));
      if (piece.gain < 0) piece = cheapest_block(from, to, useful);
      if (piece.gain < 0) continue;
      apply(piece, from, to);
      return true;
    }
    return false;
  }

  Weight pairs(std::size_t assignment, Range q) const {
    return workload_.weights_of(assignments_[assignment].document).pairs(q);
  }

  void change(Rank rank, Weight pairs) {
    by_excess_.erase({-loads_.excess(rank), rank});
    loads_.add(rank, pairs);
    by_excess_.insert({-loads_.excess(rank), rank});
  }

  Range first_blocks(Range q, std::int64_t count) const {
    return {q.begin, std::min(q.end, (q.begin / block_ + count) * block_)};
  }
  Range last_blocks(Range q, std::int64_t count) const {
    const std::int64_t blocks = (q.end + block_ - 1) / block_;
    return {std::max(q.begin, (blocks - count) * block_), q.end};
  }

  /// The run of blocks with the largest gain. Candidates are the longest runs, one at each end of
  /// every assignment, that cost at most `limit`.
  Piece best_run(Rank from, Rank to, Weight limit) {
    Piece best;
    if (limit <= 0) return best;
    for (std::size_t i : on(from)) {
      const Range q = assignments_[i].q;
      const Weights mask = workload_.weights_of(assignments_[i].document);
      const auto longest = [&](auto&& run) {
        std::int64_t low = 0;
        std::int64_t high = (q.size() + block_ - 1) / block_ + 1;
        while (high - low > 1) {
          const std::int64_t middle = (low + high) / 2;
          (mask.pairs(run(middle)) <= limit ? low : high) = middle;
        }
        return low;
      };
      const auto first = [&](std::int64_t count) { return first_blocks(q, count); };
      const auto last = [&](std::int64_t count) { return last_blocks(q, count); };
      if (const std::int64_t n = longest(first)) consider(i, first(n), to, best);
      if (const std::int64_t n = longest(last)) consider(i, last(n), to, best);
    }
    return best;
  }

  void consider(std::size_t i, Range q, Rank to, Piece& best) const {
    const Weight cost = pairs(i, q);
    const std::int64_t bytes = residency_.bytes(to, assignments_[i].document, {q});
    const double gain =
        static_cast<double>(cost) / static_cast<double>(std::max<std::int64_t>(1, bytes));
    if (gain > best.gain || (gain == best.gain && before(i, q, best))) best = {i, q, cost, gain};
  }

  /// The cheapest single block at an end of an assignment, if it costs at most `limit`.
  Piece cheapest_block(Rank from, Rank to, Weight limit) {
    Piece best;
    for (std::size_t i : on(from)) {
      for (Range q : {first_blocks(assignments_[i].q, 1), last_blocks(assignments_[i].q, 1)}) {
        const Weight cost = pairs(i, q);
        if (cost > limit || (best.gain >= 0 && cost > best.cost)) continue;
        if (best.gain < 0 || cost < best.cost) best = {};
        consider(i, q, to, best);
      }
    }
    return best;
  }

  bool before(std::size_t i, Range q, const Piece& other) const {
    return std::tie(assignments_[i].document, q.begin) <
           std::tie(assignments_[other.assignment].document, other.q.begin);
  }

  void apply(const Piece& piece, Rank from, Rank to) {
    change(from, -piece.cost);
    change(to, piece.cost);
    residency_.bring(to, assignments_[piece.assignment].document, {piece.q});
    const int document = assignments_[piece.assignment].document;
    Range& rest = assignments_[piece.assignment].q;
    if (piece.q == rest) {
      std::erase(on(from), piece.assignment);
      on(to).push_back(piece.assignment);
      assignments_[piece.assignment].server = to;
      return;
    }
    if (piece.q.begin == rest.begin) {
      rest.begin = piece.q.end;
    } else {
      rest.end = piece.q.begin;
    }
    on(to).push_back(assignments_.size());
    assignments_.push_back({document, piece.q, to});
  }

  const Workload& workload_;
  std::int64_t block_;
  Loads& loads_;
  Residency& residency_;
  std::vector<Assignment>& assignments_;
  std::vector<std::vector<std::size_t>> by_rank_;  // indices of assignments
  std::set<std::pair<Weight, Rank>> by_excess_;    // largest excess first: (-excess, rank)
};

}  // namespace

void refine_blocks(const Workload& workload, std::int64_t block, Loads& loads, Residency& residency,
                   std::vector<Assignment>& assignments) {
  BlockRefiner(workload, block, loads, residency, assignments).run();
}

}  // namespace cadenza::plan
