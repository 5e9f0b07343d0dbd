// SPDX-License-Identifier: Apache-2.0
#include "plan/workload/sharding.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"

namespace cadenza::plan {

Homes::Homes(const Workload& workload)
    : homes_(workload.homes), offsets_(workload.lengths.size() + 1, 0) {
  std::sort(homes_.begin(), homes_.end(), [](const Home& a, const Home& b) {
    return std::tie(a.document, a.tokens.begin, a.rank) <
           std::tie(b.document, b.tokens.begin, b.rank);
  });
  for (const Home& home : homes_) ++offsets_[at(home.document) + 1];
  for (std::size_t i = 1; i < offsets_.size(); ++i) offsets_[i] += offsets_[i - 1];
}

std::span<const Home> Homes::of(int document) const {
  const auto index = static_cast<std::size_t>(document);
  return std::span(homes_).subspan(offsets_[index], offsets_[index + 1] - offsets_[index]);
}

std::int64_t Homes::held(Rank rank, int document, Range tokens) const {
  std::int64_t count = 0;
  for_each_part(document, tokens, [&](const Home& part) {
    if (part.rank == rank) count += part.tokens.size();
  });
  return count;
}

std::vector<std::int64_t> tokens_of_ranks(const Workload& workload) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(workload.ranks), 0);
  for (const Home& home : workload.homes) {
    const Range own = intersect(home.tokens, workload.queries_of(at(home.document)));
    if (!own.empty())
      tokens[at(home.rank)] += own.size();  // those of no query have a negative size
  }
  return tokens;
}

void unite(std::vector<Home>& rows) {
  std::sort(rows.begin(), rows.end(), [](const Home& a, const Home& b) {
    return std::tie(a.document, a.rank, a.tokens.begin) <
           std::tie(b.document, b.rank, b.tokens.begin);
  });
  std::size_t kept = 0;
  for (const Home& next : rows) {
    if (kept > 0) {
      Home& last = rows[kept - 1];
      if (last.document == next.document && last.rank == next.rank &&
          next.tokens.begin <= last.tokens.end) {
        last.tokens.end = std::max(last.tokens.end, next.tokens.end);
        continue;
      }
    }
    rows[kept++] = next;
  }
  rows.resize(kept);
}

namespace {

/// Cuts lengths into the chunks of one group. Tokens that do not divide go to the ranks in turn or,
/// with unequal ranks, to those that earlier documents left behind: shares hold over documents.
class Cutter {
 public:
  explicit Cutter(const Cut& cut)
      : cut_(cut),
        equal_(std::ranges::adjacent_find(cut.capacities, std::not_equal_to()) ==
               cut.capacities.end()),
        given_(chunks(), 0) {}

  /// Ends of the chunks of the next document; chunk i belongs to rank_of(i).
  std::vector<std::int64_t> ends(std::int64_t length) {
    return equal_ ? equal_ends(length) : proportional_ends(length);
  }

  Rank rank_of(std::size_t chunk) const {
    const int i = static_cast<int>(chunk);
    return i < cut_.ranks ? i : 2 * cut_.ranks - 1 - i;
  }

 private:
  std::size_t chunks() const {
    return static_cast<std::size_t>(cut_.ranks) * static_cast<std::size_t>(cut_.chunks);
  }

  std::vector<std::int64_t> equal_ends(std::int64_t length) {
    const int count = cut_.ranks * cut_.chunks;
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(count), length / count);
    for (std::int64_t i = 0; i < length % count; ++i) {
      const int rank = static_cast<int>(next_++ % cut_.ranks);
      const bool second = i >= cut_.ranks;  // the rank's first chunk has one more already
      ++sizes[at(second ? count - 1 - rank : rank)];
    }
    std::partial_sum(sizes.begin(), sizes.end(), sizes.begin());
    return sizes;
  }

  /// Chooses ends such that the first i chunks of all documents so far, together, hold their share
  /// of all tokens so far.
  std::vector<std::int64_t> proportional_ends(std::int64_t length) {
    __extension__ using Wide = __int128;
    std::vector<std::int64_t> ends(chunks());
    std::int64_t sum = 0;
    for (std::size_t chunk = 0; chunk < ends.size(); ++chunk) {
      sum += cut_.capacities[at(rank_of(chunk))];
      ends[chunk] = sum;
    }
    total_ += length;
    std::int64_t begin = 0;
    for (std::size_t chunk = 0; chunk < ends.size(); ++chunk) {
      const auto due = static_cast<std::int64_t>(Wide{total_} * ends[chunk] / sum);
      ends[chunk] = std::clamp(due - given_[chunk], begin, length);
      begin = ends[chunk];
      given_[chunk] += begin;
    }
    return ends;
  }

  const Cut& cut_;
  bool equal_;
  std::int64_t next_ = 0;            // rank that gets the next token that does not divide
  std::int64_t total_ = 0;           // tokens so far
  std::vector<std::int64_t> given_;  // by chunk: tokens so far of it and those before it
};

/// The offset of stripes that minimizes the sum of squared tokens of ranks: long stripes go to
/// ranks with few tokens. Ties go to the first offset from the rank with fewest tokens on.
std::size_t best_offset(const std::vector<Range>& stripes, const std::vector<std::int64_t>& held) {
  const std::size_t count = held.size();
  const auto least =
      static_cast<std::size_t>(std::min_element(held.begin(), held.end()) - held.begin());
  std::size_t best = least;
  std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t offset = (least + i) % count;
    std::int64_t product = 0;
    for (std::size_t c = 0; c < count; ++c) {
      product += (held[(c + offset) % count] - held[least]) * stripes[c].size();
    }
    if (product < smallest) best = offset;
    smallest = std::min(smallest, product);
  }
  return best;
}

}  // namespace

std::vector<Home> shard(std::span<const std::int64_t> lengths, int first, const Cut& cut) {
  Cutter cutter(cut);
  std::vector<Home> homes;
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  std::vector<std::int64_t> ends;
  if (!cut.documents) ends = cutter.ends(total);
  std::int64_t start = 0;  // position of the document in the sequence
  for (std::size_t document = 0; document < lengths.size(); ++document) {
    if (cut.documents) {
      ends = cutter.ends(lengths[document]);
      start = 0;
    }
    const Range whole{start, start + lengths[document]};
    for (std::size_t chunk = 0; chunk < ends.size(); ++chunk) {
      const Range part = intersect(whole, {chunk > 0 ? ends[chunk - 1] : 0, ends[chunk]});
      if (part.empty()) continue;
      homes.push_back({cutter.rank_of(chunk),
                       first + static_cast<int>(document),
                       {part.begin - start, part.end - start}});
    }
    start = whole.end;
  }
  join_homes(homes);
  return homes;
}

std::vector<Home> shard_stripes(std::span<const std::int64_t> lengths, int first,
                                const TokenOrder& order) {
  std::vector<Home> homes;
  std::vector<std::int64_t> held(static_cast<std::size_t>(order.stripes), 0);
  for (std::size_t document = 0; document < lengths.size(); ++document) {
    std::vector<Range> stripes;
    for (std::int64_t c = 0; c < order.stripes; ++c) {
      stripes.push_back(stripe_tokens(order, lengths[document], c));
    }
    const std::size_t offset = best_offset(stripes, held);
    for (std::size_t c = 0; c < stripes.size(); ++c) {
      const std::size_t rank = (c + offset) % held.size();
      held[rank] += stripes[c].size();
      if (stripes[c].empty()) continue;
      homes.push_back({static_cast<Rank>(rank), first + static_cast<int>(document), stripes[c]});
    }
  }
  return homes;
}

std::vector<Home> shard_by_work(std::span<const std::int64_t> lengths, int first, int ranks,
                                std::int64_t block, const Mask& mask) {
  struct Block {
    std::vector<Home> parts;
    std::int64_t pairs = 0;
  };
  std::vector<Block> blocks;
  std::int64_t room = 0;  // of the last block
  for (std::size_t document = 0; document < lengths.size(); ++document) {
    const Mask of_document = mask.within(lengths[document]);
    for (std::int64_t begin = 0; begin < lengths[document];) {
      if (room == 0) {
        blocks.emplace_back();
        room = block;
      }
      const Range part{begin, std::min(begin + room, lengths[document])};
      blocks.back().parts.push_back({0, first + static_cast<int>(document), part});
      blocks.back().pairs += of_document.pairs(part, of_document.keys(part));
      room -= part.size();
      begin = part.end;
    }
  }
  std::ranges::stable_sort(blocks, std::greater(), &Block::pairs);
  std::vector<Home> homes;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const int place = static_cast<int>(i % static_cast<std::size_t>(ranks));
    const bool backwards = i / static_cast<std::size_t>(ranks) % 2 == 1;
    for (Home part : blocks[i].parts) {
      part.rank = backwards ? ranks - 1 - place : place;
      homes.push_back(part);
    }
  }
  join_homes(homes);
  return homes;
}

std::vector<std::int64_t> half_cuts(std::span<const std::int64_t> lengths) {
  std::int64_t left = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}) / 2;
  std::vector<std::int64_t> cuts;
  for (const std::int64_t length : lengths) {
    cuts.push_back(std::min(left, length));
    left -= cuts.back();
  }
  return cuts;
}

std::vector<Home> split_ranks(std::span<const Home> homes, int ranks, int parts) {
  std::vector<std::int64_t> total(static_cast<std::size_t>(ranks), 0);
  for (const Home& home : homes) total[at(home.rank)] += home.tokens.size();
  std::vector<std::int64_t> seen(total.size(), 0);
  std::vector<Home> split;
  for (const Home& home : homes) {
    const auto rank = static_cast<std::size_t>(home.rank);
    const std::int64_t row = std::exchange(seen[rank], seen[rank] + home.tokens.size());
    for (int part = 0; part < parts; ++part) {
      const Range rows = intersect({row, row + home.tokens.size()},
                                   {total[rank] * part / parts, total[rank] * (part + 1) / parts});
      if (rows.empty()) continue;
      const std::int64_t shift = home.tokens.begin - row;
      split.push_back(
          {home.rank * parts + part, home.document, {rows.begin + shift, rows.end + shift}});
    }
  }
  join_homes(split);
  return split;
}

void join_homes(std::vector<Home>& homes) {
  std::sort(homes.begin(), homes.end(), [](const Home& a, const Home& b) {
    return std::tie(a.document, a.tokens.begin) < std::tie(b.document, b.tokens.begin);
  });
  std::size_t kept = 0;
  for (const Home& next : homes) {
    if (kept > 0) {
      Home& last = homes[kept - 1];
      if (last.document == next.document && last.rank == next.rank &&
          last.tokens.end == next.tokens.begin) {
        last.tokens.end = next.tokens.end;
        continue;
      }
    }
    homes[kept++] = next;
  }
  homes.resize(kept);
}

double predicted_tiles(const Mask& mask, std::span<const Home> homes, int ranks,
                       std::span<const std::int64_t> capacities) {
  constexpr std::int64_t kTile = 128;
  std::vector<double> tiles(static_cast<std::size_t>(ranks), 0.0);
  std::map<int, std::int64_t> lengths;  // by document: its homes cover it
  for (const Home& home : homes) {
    std::int64_t& length = lengths[home.document];
    length = std::max(length, home.tokens.end);
  }
  for (const Home& home : homes) {
    const Mask of_document = mask.within(lengths[home.document]);
    // A tile of queries costs the tiles of keys up to its end, except those that it does not see.
    std::int64_t end = (home.tokens.begin + kTile - 1) / kTile;
    for (std::int64_t begin = home.tokens.begin; begin < home.tokens.end; begin += kTile) {
      const Range queries{begin, std::min(begin + kTile, home.tokens.end)};
      ++end;
      std::int64_t seen = 0;
      of_document.for_each_key_range(queries, [&](Range keys) {
        const std::int64_t last = keys.end == queries.end ? end : (keys.end + kTile - 1) / kTile;
        seen += last - keys.begin / kTile;
      });
      tiles[at(home.rank)] += static_cast<double>(seen);
    }
  }
  for (std::size_t rank = 0; rank < capacities.size(); ++rank) {
    tiles[rank] /= usual_ranks(capacities[rank]);
  }
  return tiles.empty() ? 0.0 : *std::max_element(tiles.begin(), tiles.end());
}

// --- The two halves of a tick in ping-pong: one computes while the other's rows travel ---

namespace {

/// By document: number of its first queries that belong to the first half.
std::vector<std::int64_t> cuts_of(const Workload& workload) {
  std::vector<Rank> group(workload.lengths.size(), 0);
  for (const Home& home : workload.homes) {
    group[at(home.document)] = home.rank / workload.context;
  }
  std::vector<std::int64_t> cuts;
  for (std::size_t end = 0; end < group.size();) {
    const std::size_t begin = end;
    while (end < group.size() && group[end] == group[begin]) ++end;
    const std::span<const std::int64_t> lengths(workload.lengths);
    std::ranges::copy(half_cuts(lengths.subspan(begin, end - begin)), std::back_inserter(cuts));
  }
  return cuts;
}

}  // namespace

std::array<Workload, 2> halves(const Workload& workload) {
  if (!workload.order.natural()) {
    fail(ExitCode::usage,
         "attention.overlap: found ping_pong with tokens in {} stripes, whose first half sees keys "
         "of the second; valid: none",
         workload.order.stripes);
  }
  if (!workload.mask.is_causal()) {
    fail(ExitCode::usage,
         "attention.overlap: found ping_pong with queries that see later keys, some of them of the "
         "second half; valid: none");
  }
  const std::vector<std::int64_t> cuts = cuts_of(workload);
  std::array<Workload, 2> both = {workload, workload};
  std::vector<Home> first;
  std::vector<Home> second;
  for (const Home& home : workload.homes) {
    const std::int64_t cut = cuts[at(home.document)];
    const Range before = intersect(home.tokens, {0, cut});
    const Range after = intersect(home.tokens, {cut, home.tokens.end});
    if (!before.empty()) first.push_back({home.rank, home.document, before});
    if (!after.empty()) second.push_back({home.rank, home.document, after});
  }
  first.insert(first.end(), second.begin(), second.end());
  for (std::size_t half = 0; half < both.size(); ++half) {
    both[half].homes = first;
    both[half].queries.clear();
    for (std::size_t document = 0; document < cuts.size(); ++document) {
      both[half].queries.push_back(half == 0 ? Range{0, cuts[document]}
                                             : Range{cuts[document], workload.lengths[document]});
    }
  }
  return both;
}

}  // namespace cadenza::plan
