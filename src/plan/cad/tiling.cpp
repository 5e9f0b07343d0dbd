// SPDX-License-Identifier: Apache-2.0
#include "plan/cad/tiling.hpp"

#include <algorithm>
#include <utility>

namespace cadenza::plan {
namespace {

/// Keys are cut more finely than queries: a kernel's tiles begin at queries, and a column of a tall
/// tile is many pairs.
constexpr std::int64_t key_step(std::int64_t block) {
  return std::max<std::int64_t>(1, block / 8);
}

/// The place in `range`, a multiple of `step` and at least `block` away from both ends, where a
/// growing `pairs_to` comes nearest to `wanted`; an end of the range where there is no such place.
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

/// Where the largest-first shares part into two groups of about the same sum.
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
            std::int64_t block, const Flows& flows, std::vector<Tile>& tiles) {
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
    return flows.bytes(cut.first.flow(mask)) + flows.bytes(cut.second.flow(mask));
  };
  const auto cuts = [&](const Cut& cut) {
    return cut.first.pairs(mask) > 0 && cut.second.pairs(mask) > 0;
  };
  const bool along_keys = cuts(keys) && (!cuts(queries) || bytes(keys) < bytes(queries));
  const Cut& best = along_keys ? keys : queries;
  divide(mask, best.first, shares.first(first), block, flows, tiles);
  divide(mask, best.second, shares.subspan(first), block, flows, tiles);
}

}  // namespace cadenza::plan
