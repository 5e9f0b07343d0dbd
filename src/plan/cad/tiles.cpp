// SPDX-License-Identifier: Apache-2.0
// Cuts the attention of one document into tiles, one for each server with a share of it.
#include "plan/cad/tiles.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cadenza/base/sparse_density.hpp"
#include "plan/cad/phases.hpp"

namespace cadenza::plan {
namespace {

/// Granularity of cuts along keys. It is finer than that of queries: kernel tiles start at queries,
/// and a column of a tall tile has many pairs.
constexpr std::int64_t key_step(std::int64_t block) {
  return std::max<std::int64_t>(1, block / 8);
}

/// The multiple of `step` in `range`, at least `block` away from both ends, at which the growing
/// `pairs_to` is nearest to `wanted`; an end of the range where there is none.
template <typename PairsTo>
std::int64_t cut_at(Range range, std::int64_t block, std::int64_t step, Weight wanted,
                    PairsTo&& pairs_to) {
  std::int64_t low = (range.begin + block + step - 1) / step;
  std::int64_t high = (range.end - block) / step + 1;
  if (low >= high) return range.end;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (pairs_to(middle * step) <= wanted ? low : high) = middle;
  }
  const std::int64_t next = high * step;
  if (next > range.end - block) return low * step;
  return pairs_to(next) - wanted < wanted - pairs_to(low * step) ? next : low * step;
}

/// Length of the first of two groups of about the same sum into which the shares, largest first,
/// are split.
std::size_t half(std::span<const Share> shares, Weight total) {
  Weight sum = 0;
  for (std::size_t i = 0; i + 1 < shares.size(); ++i) {
    sum += shares[i].pairs;
    if (2 * sum >= total) return i + 1;
  }
  return shares.size() - 1;
}

}  // namespace

std::int64_t keys_for(const Weights& mask, Range q, Weight pairs, std::int64_t block) {
  const std::int64_t step = key_step(block);
  const std::int64_t end = mask.keys(q).end;
  std::int64_t low = 0;
  std::int64_t high = (end + step - 1) / step;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (mask.pairs(q, {0, middle * step}) < pairs ? low : high) = middle;
  }
  return std::min(high * step, end);
}

void divide(const Weights& mask, const Tile& whole, std::span<const Share> shares,
            std::int64_t block, const Transfers& transfers, std::vector<Tile>& tiles) {
  const Weight area = whole.pairs(mask);
  if (area == 0) return;
  if (shares.size() == 1) {
    tiles.push_back({shares.front().server, whole.q, whole.k});
    return;
  }
  Weight total = 0;
  for (const Share& share : shares) total += share.pairs;
  const std::size_t first = half(shares, total);
  Weight pairs = 0;
  for (const Share& share : shares.first(first)) pairs += share.pairs;
  const double part = static_cast<double>(pairs) / static_cast<double>(total);
  const auto wanted = static_cast<Weight>(part * static_cast<double>(area));

  const std::int64_t x = cut_at(whole.q, block, block, wanted, [&](std::int64_t end) {
    return mask.pairs({whole.q.begin, end}, whole.k);
  });
  const std::int64_t y = cut_at(whole.k, block, key_step(block), wanted, [&](std::int64_t end) {
    return mask.pairs(whole.q, {whole.k.begin, end});
  });
  using Cut = std::pair<Tile, Tile>;
  const Cut queries{{0, {whole.q.begin, x}, whole.k}, {0, {x, whole.q.end}, whole.k}};
  const Cut keys{{0, whole.q, {whole.k.begin, y}}, {0, whole.q, {y, whole.k.end}}};
  const auto bytes = [&](const Cut& cut) {
    return transfers.bytes(cut.first.travelling(mask)) +
           transfers.bytes(cut.second.travelling(mask));
  };
  const auto cuts = [&](const Cut& cut) {
    return cut.first.pairs(mask) > 0 && cut.second.pairs(mask) > 0;
  };
  const bool along_keys = cuts(keys) && (!cuts(queries) || bytes(keys) < bytes(queries));
  const Cut& best = along_keys ? keys : queries;
  divide(mask, best.first, shares.first(first), block, transfers, tiles);
  divide(mask, best.second, shares.subspan(first), block, transfers, tiles);
}

namespace {

// Number of tilings of a document that are compared.
constexpr std::int64_t kTrials = 12;

class DocumentTiler {
 public:
  DocumentTiler(const Workload& workload, const Homes& homes, std::int64_t block, Loads& loads,
                const Residency& residency)
      : workload_(workload),
        homes_(homes),
        block_(block),
        loads_(loads),
        transfers_(residency, workload.ranks) {}

  std::vector<Assignment> run(const std::vector<Assignment>& assignments) {
    for_each_document(assignments, [&](std::span<const Assignment> of) { add_transfers(of); });
    transfers_.set_limits();
    slowest_ = loads_.excess(loads_.servers().front());
    for (Rank server : loads_.servers()) slowest_ = std::max(slowest_, loads_.excess(server));
    std::vector<Assignment> result;
    result.reserve(assignments.size());
    for_each_document(assignments, [&](std::span<const Assignment> of) {
      if (!retile(of, result)) result.insert(result.end(), of.begin(), of.end());
    });
    return result;
  }

 private:
  template <typename Visit>
  static void for_each_document(const std::vector<Assignment>& assignments, Visit&& visit) {
    const std::span<const Assignment> all(assignments);
    for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
      while (end < all.size() && all[end].document == all[begin].document) ++end;
      visit(all.subspan(begin, end - begin));
    }
  }

  /// A server's part of a document.
  struct Held {
    Rank server = 0;
    std::int64_t queries = 0;
    Weight pairs = 0;
    Ranges keys;
    TravellingRows travelling() const { return {queries, size(keys)}; }
  };

  void gather(std::span<const Assignment> of) {
    held_.clear();
    mask_ = workload_.weights_of(of.front().document);
    for (const Assignment& a : of) {
      Held& held = held_.emplace_back(Held{a.server, a.q.size(), mask_.pairs(a.q), {}});
      mask_.for_each_key_range(a.q, [&](Range keys) { held.keys.push_back(keys); });
    }
    std::sort(held_.begin(), held_.end(),
              [](const Held& a, const Held& b) { return a.server < b.server; });
    std::size_t kept = 0;
    for (const Held& next : held_) {
      if (kept > 0 && held_[kept - 1].server == next.server) {
        Held& last = held_[kept - 1];
        last.queries += next.queries;
        last.pairs += next.pairs;
        for (const Range& keys : next.keys) add(last.keys, keys);
      } else {
        held_[kept++] = next;
      }
    }
    held_.resize(kept);
  }

  /// Adds a document's transfers. A row moves to a server once, for all tasks that share it there.
  void add_transfers(std::span<const Assignment> of) {
    const int document = of.front().document;
    if (whole_on_one_rank(document) && stays_home(of)) return;
    for (const Assignment& a : of) {
      homes_.for_each_part(document, a.q, [&](const Home& part) {
        if (part.rank != a.server) transfers_.add(part.rank, a.server, {part.tokens.size(), 0});
      });
    }
    gather(of);
    for (const Held& held : held_) {
      for (const Range& keys : held.keys) {
        homes_.for_each_part(document, keys, [&](const Home& part) {
          if (part.rank != held.server) {
            transfers_.add(part.rank, held.server, {0, part.tokens.size()});
          }
        });
      }
    }
  }

  bool whole_on_one_rank(int document) {
    const std::span<const Home> homes = homes_.of(document);
    home_ = homes.front().rank;
    return std::all_of(homes.begin(), homes.end(),
                       [&](const Home& home) { return home.rank == home_; });
  }

  /// Of a document that is whole on one rank.
  bool stays_home(std::span<const Assignment> of) const {
    return std::ranges::all_of(of, [&](const Assignment& a) { return a.server == home_; });
  }

  /// Appends the document's best tiling if it moves fewer bytes than the present one; else returns
  /// false.
  bool retile(std::span<const Assignment> of, std::vector<Assignment>& result) {
    const int document = of.front().document;
    if (!whole_on_one_rank(document) || stays_home(of)) return false;
    gather(of);
    shares_.clear();
    old_bytes_ = 0;
    Weight kept = 0;
    for (const Held& held : held_) {
      if (held.server == home_) {
        kept = held.pairs;
      } else {
        shares_.push_back({held.server, held.pairs});
        old_bytes_ += transfers_.bytes(held.travelling());
      }
    }
    if (shares_.empty()) return false;
    std::stable_sort(shares_.begin(), shares_.end(),
                     [](const Share& a, const Share& b) { return a.pairs > b.pairs; });
    add_held(-1);
    find_best(workload_.queries_of(static_cast<std::size_t>(document)), kept);
    if (best_.empty()) {
      add_held(1);
      return false;
    }
    accept(kept);
    for (const Tile& tile : best_) result.push_back({document, tile.q, tile.server, tile.k});
    return true;
  }

  void add_held(std::int64_t sign) {
    for (const Held& held : held_) {
      if (held.server != home_) {
        transfers_.add(home_, held.server, held.travelling(), sign);
      }
    }
  }

  /// Finds the tiling that moves fewest bytes. The other servers compute queries [x, end) x keys
  /// [0, c), the home computes the rest: keys near the diagonal, which few queries share. Each x
  /// gives another form of the rectangle.
  void find_best(Range queries, Weight kept) {
    best_.clear();
    std::int64_t least = old_bytes_;
    const Weight away = mask_.pairs(queries) - kept;
    std::int64_t last = queries.begin;  // largest x from which on queries have enough pairs
    if (kept > 0) {
      std::int64_t enough = 0, blocks = (queries.size() + block_ - 1) / block_;
      while (blocks - enough > 1) {
        const std::int64_t middle = (enough + blocks) / 2;
        const std::int64_t x = queries.begin + middle * block_;
        (mask_.pairs({x, queries.end}) >= away ? enough : blocks) = middle;
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

  void try_tiling(Range queries, std::int64_t x, Weight kept, std::int64_t& least) {
    const Range q{x, queries.end};
    const Weight away = mask_.pairs(queries) - kept;
    const std::int64_t end = mask_.keys(queries).end;
    const std::int64_t c = kept > 0 ? keys_for(mask_, q, away, block_) : end;
    tiles_.clear();
    divide(mask_, {0, q, {0, c}}, shares_, block_, transfers_, tiles_);
    std::int64_t bytes = 0;
    for (const Tile& tile : tiles_) bytes += transfers_.bytes(tile.travelling(mask_));
    if (bytes >= least || !admissible(kept)) return;
    least = bytes;
    best_ = tiles_;
    if (x > queries.begin) {
      const Range before{queries.begin, x};
      best_.push_back({home_, before, {0, mask_.keys(before).end}});
    }
    if (c < end) best_.push_back({home_, q, {c, end}});
  }

  bool admissible(Weight kept) {
    Weight moved = 0;
    std::size_t next = 0;  // tiles are in the order of shares, at most one per share
    for (const Share& share : shares_) {
      const bool has = next < tiles_.size() && tiles_[next].server == share.server;
      const Weight more = (has ? tiles_[next++].pairs(mask_) : 0) - share.pairs;
      moved += more;
      if (!fits(share.server, more)) return false;
    }
    if (moved != 0 && (kept == 0 || !fits(home_, -moved))) return false;
    for (const Tile& tile : tiles_) transfers_.add(home_, tile.server, tile.travelling(mask_));
    bool within = transfers_.within_limits(home_);
    for (const Tile& tile : tiles_) within = within && transfers_.within_limits(tile.server);
    for (const Tile& tile : tiles_) transfers_.add(home_, tile.server, tile.travelling(mask_), -1);
    return within;
  }

  /// Whether a server with `more` pairs is no slower than the slowest and, if it loses pairs, not
  /// below the tolerance.
  bool fits(Rank server, Weight more) const {
    const Weight load = loads_.load(server) + more;
    return loads_.excess(server, load) <= slowest_ && (more >= 0 || !loads_.below(server, load));
  }

  void accept(Weight kept) {
    Weight home = -kept;
    for (const Share& share : shares_) loads_.add(share.server, -share.pairs);
    for (const Tile& tile : best_) {
      if (tile.server == home_) {
        home += tile.pairs(mask_);
      } else {
        loads_.add(tile.server, tile.pairs(mask_));
        transfers_.add(home_, tile.server, tile.travelling(mask_));
      }
    }
    if (home != 0) loads_.add(home_, home);
  }

  const Workload& workload_;
  const Homes& homes_;
  std::int64_t block_;
  Loads& loads_;
  Transfers transfers_;
  Weight slowest_ = 0;  // largest excess of a server
  // The present document:
  Weights mask_;
  Rank home_ = 0;
  std::int64_t old_bytes_ = 0;
  std::vector<Held> held_;     // ascending by server
  std::vector<Share> shares_;  // of servers other than the home
  std::vector<Tile> tiles_;
  std::vector<Tile> best_;  // the home's tiles included
};

}  // namespace

void tile_documents(const Workload& workload, const Homes& homes, std::int64_t block, Loads& loads,
                    const Residency& residency, std::vector<Assignment>& assignments) {
  assignments = DocumentTiler(workload, homes, block, loads, residency).run(assignments);
}

}  // namespace cadenza::plan
