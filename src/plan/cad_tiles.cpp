// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "cad_flows.hpp"
#include "cad_keys.hpp"
#include "cad_tiling.hpp"
#include "cadenza/plan/cost.hpp"

namespace cadenza::plan {
namespace {

// Tilings of a document that are compared.
constexpr std::int64_t kTrials = 12;

// Part of the mean load that a tiling may add where all servers are nearly equal: tiles have edges.
constexpr double kSlack = 0.005;

class DocumentTiler {
 public:
  DocumentTiler(const Workload& workload, const Homes& homes, std::int64_t block,
                const Loads& loads, const Traffic& traffic)
      : workload_(workload),
        homes_(homes),
        block_(block),
        loads_(loads),
        flows_(traffic, workload.ranks) {}

  /// @param slack  of the mean load that a server may have more than it, whatever the slowest has
  std::vector<Assignment> run(const std::vector<Assignment>& assignments, double slack) {
    for_each_document(assignments, [&](std::span<const Assignment> of) { add_flows(of, 1); });
    flows_.set_limits();
    before_ = seconds();
    slack_ = static_cast<std::int64_t>(slack * static_cast<double>(loads_.target()));
    limit_ = std::max(slowest(), loads_.target() + slack_);
    std::vector<Assignment> result;
    result.reserve(assignments.size());
    for_each_document(assignments, [&](std::span<const Assignment> of) {
      if (!retile(of, result)) result.insert(result.end(), of.begin(), of.end());
    });
    return result;
  }

  /// Whether the plan's cost has risen.
  bool costs_more() const { return seconds() > before_; }

  const Loads& loads() const { return loads_; }

 private:
  template <typename Visit>
  static void for_each_document(const std::vector<Assignment>& assignments, Visit&& visit) {
    const std::span<const Assignment> all(assignments);
    for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
      while (end < all.size() && all[end].document == all[begin].document) ++end;
      visit(all.subspan(begin, end - begin));
    }
  }

  std::int64_t slowest() const {
    std::int64_t slowest = 0;
    for (Rank server : loads_.servers()) slowest = std::max(slowest, loads_.load(server));
    return slowest;
  }

  /// What predict() says of the plan.
  double seconds() const {
    const CostModel model;
    const AttentionShape& shape = workload_.shape;
    const double flops = 4.0 * shape.head_dim * shape.heads * static_cast<double>(slowest());
    return flops / model.attention_flops_per_second +
           static_cast<double>(flows_.largest()) / model.bytes_per_second;
  }

  /// Rows of a document travel to a server once, whatever tasks share them there.
  void add_flows(std::span<const Assignment> of, std::int64_t sign) {
    const int document = of.front().document;
    ends_.clear();
    for (const Assignment& a : of) {
      homes_.for_each_part(document, a.q, [&](const Home& part) {
        if (part.rank != a.server) flows_.add(part.rank, a.server, {part.tokens.size(), 0}, sign);
      });
      const auto known = std::find_if(ends_.begin(), ends_.end(),
                                      [&](const auto& e) { return e.first == a.server; });
      if (known == ends_.end()) {
        ends_.emplace_back(a.server, a.q.end);
      } else {
        known->second = std::max(known->second, a.q.end);
      }
    }
    for (const auto& [server, end] : ends_) {
      homes_.for_each_part(document, {0, end}, [&, to = server](const Home& part) {
        if (part.rank != to) flows_.add(part.rank, to, {0, part.tokens.size()}, sign);
      });
    }
  }

  /// Appends the document's best tiling if it is better than what it has.
  bool retile(std::span<const Assignment> of, std::vector<Assignment>& result) {
    const int document = of.front().document;
    if (homes_.of(document).size() != 1) return false;
    home_ = homes_.of(document).front().rank;
    shares_.clear();
    old_bytes_ = 0;
    std::int64_t kept = 0;
    for (const Assignment& a : of) {
      (a.server == home_ ? kept : share_of(a.server).pairs) += causal_pairs(a.q);
      if (a.server != home_) old_bytes_ += flows_.bytes({a.q.size(), 0});
    }
    if (shares_.empty()) return false;
    std::sort(shares_.begin(), shares_.end(), [](const Share& a, const Share& b) {
      return std::pair(-a.pairs, a.server) < std::pair(-b.pairs, b.server);
    });
    add_flows(of, -1);
    for (const auto& [server, end] : ends_) {
      if (server != home_) old_bytes_ += flows_.bytes({0, end});
    }
    find_best(workload_.queries_of(static_cast<std::size_t>(document)), kept);
    if (best_.empty()) {
      add_flows(of, 1);
      return false;
    }
    accept(kept);
    for (const Tile& tile : best_) result.push_back({document, tile.q, tile.server, tile.k});
    return true;
  }

  Share& share_of(Rank server) {
    for (Share& share : shares_) {
      if (share.server == server) return share;
    }
    return shares_.emplace_back(Share{server, 0});
  }

  /// The others compute queries [x, end) x keys [0, c), the home what is left: keys near the
  /// diagonal, which few queries share. With x goes the form of the rectangle; the best is kept.
  void find_best(Range queries, std::int64_t kept) {
    best_.clear();
    std::int64_t least = old_bytes_;
    const std::int64_t away = causal_pairs(queries) - kept;
    std::int64_t last = queries.begin;  // queries from here on have enough pairs
    if (kept > 0) {
      std::int64_t enough = 0, blocks = (queries.size() + block_ - 1) / block_;
      while (blocks - enough > 1) {
        const std::int64_t middle = (enough + blocks) / 2;
        const std::int64_t x = queries.begin + middle * block_;
        (causal_pairs({x, queries.end}) >= away ? enough : blocks) = middle;
      }
      last += enough * block_;
    }
    const std::int64_t steps = (last - queries.begin) / block_;
    const std::int64_t trials = std::min(steps, kTrials - 1);
    for (std::int64_t trial = 0; trial <= trials; ++trial) {
      const std::int64_t step = trials == 0 ? 0 : steps * trial / trials;
      try_tiling(queries, queries.begin + step * block_, kept, least);
    }
  }

  void try_tiling(Range queries, std::int64_t x, std::int64_t kept, std::int64_t& least) {
    const Range q{x, queries.end};
    const std::int64_t away = causal_pairs(queries) - kept;
    const std::int64_t c = kept > 0 ? keys_for(q, away, block_) : queries.end;
    tiles_.clear();
    divide({0, q, {0, c}}, shares_, block_, flows_, tiles_);
    std::int64_t bytes = 0;
    for (const Tile& tile : tiles_) bytes += flows_.bytes(tile.flow());
    if (bytes >= least || !admissible(kept)) return;
    least = bytes;
    best_ = tiles_;
    if (x > queries.begin) best_.push_back({home_, {queries.begin, x}, {0, x}});
    if (c < queries.end) best_.push_back({home_, q, {c, queries.end}});
  }

  bool admissible(std::int64_t kept) {
    std::int64_t moved = 0;
    for (const Share& share : shares_) {
      const std::int64_t pairs = pairs_of(share.server);
      moved += pairs - share.pairs;
      if (!fits(share.server, pairs - share.pairs)) return false;
    }
    if (moved != 0 && (kept == 0 || !fits(home_, -moved))) return false;
    for (const Tile& tile : tiles_) flows_.add(home_, tile.server, tile.flow());
    bool within = flows_.within_limits(home_);
    for (const Tile& tile : tiles_) within = within && flows_.within_limits(tile.server);
    for (const Tile& tile : tiles_) flows_.add(home_, tile.server, tile.flow(), -1);
    return within;
  }

  std::int64_t pairs_of(Rank server) const {
    std::int64_t pairs = 0;
    for (const Tile& tile : tiles_) {
      if (tile.server == server) pairs += tile.pairs();
    }
    return pairs;
  }

  /// No slower than the slowest, and not further below the tolerance than it is.
  bool fits(Rank server, std::int64_t more) const {
    const std::int64_t load = loads_.load(server) + more;
    return load <= limit_ && (more >= 0 || !loads_.below(load + slack_));
  }

  void accept(std::int64_t kept) {
    std::int64_t home = -kept;
    for (const Share& share : shares_) loads_.add(share.server, -share.pairs);
    for (const Tile& tile : best_) {
      if (tile.server == home_) {
        home += tile.pairs();
      } else {
        loads_.add(tile.server, tile.pairs());
        flows_.add(home_, tile.server, tile.flow());
      }
    }
    if (home != 0) loads_.add(home_, home);
  }

  const Workload& workload_;
  const Homes& homes_;
  std::int64_t block_;
  Loads loads_;
  Flows flows_;
  double before_ = 0;
  std::int64_t slack_ = 0;
  std::int64_t limit_ = 0;  // of a server's load
  // Of the document at hand.
  Rank home_ = 0;
  std::int64_t old_bytes_ = 0;
  std::vector<std::pair<Rank, std::int64_t>> ends_;  // of the keys on each server
  std::vector<Share> shares_;                        // of servers that are not its home
  std::vector<Tile> tiles_;
  std::vector<Tile> best_;  // with the home's
};

}  // namespace

void tile_documents(const Workload& workload, const Homes& homes, std::int64_t block, Loads& loads,
                    const Traffic& traffic, std::vector<Assignment>& assignments) {
  for (const double slack : {kSlack, 0.0}) {
    DocumentTiler tiler(workload, homes, block, loads, traffic);
    std::vector<Assignment> tiled = tiler.run(assignments, slack);
    if (tiler.costs_more()) continue;  // not without slack
    loads = tiler.loads();
    assignments = std::move(tiled);
    return;
  }
}

}  // namespace cadenza::plan
