// SPDX-License-Identifier: Apache-2.0
#include "plan/cad/items.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "cadenza/base/at.hpp"

namespace cadenza::plan {

// The estimate of DistCA (arXiv 2510.18121), appendix B, in its head-tail form. The head gives up
// its innermost n queries, such that the moved share of its area equals the moved share of the
// item. Their mirror images see all keys except those after the head's remaining queries. Q of the
// head, K and V count as bytes, also where they are already present.
double Score::paper(const DocumentShard& shard, Range item, Weight item_cost,
                    const Offer& offer) const {
  Range head = shard.head_of(item);
  if (head.empty()) head = shard.tail_of(item);  // a single block
  const auto keys = static_cast<double>(head.end);
  const auto queries = static_cast<double>(head.size());
  const double share = static_cast<double>(offer.wanted) / static_cast<double>(item_cost);
  const double area = share * queries * (2 * keys - queries);
  const double moved = keys - std::sqrt(std::max(0.0, keys * keys - area));
  const double context = static_cast<double>(shard.span() - 1) - (keys - moved);
  const double elements = moved * query_elements_ + std::max(context, moved) * key_elements_;
  return static_cast<double>(offer.wanted) / elements;
}

// The estimate of DistCA's code: half of the moved queries, and all keys of the document.
double Score::public_code(const DocumentShard& shard, const Offer& offer) const {
  const auto span = static_cast<double>(shard.span());
  const double wanted = static_cast<double>(offer.wanted) / static_cast<double>(shard.mask.unit());
  return 1.0 / (query_elements_ / span + key_elements_ * span / wanted);
}

Items::Items(const Workload& workload, const std::vector<DocumentShard>& shards, const Score& score,
             Loads& loads, Residency& residency, bool offer_nothing)
    : shards_(shards),
      score_(score),
      loads_(loads),
      residency_(residency),
      offer_nothing_(offer_nothing),
      last_of_document_(workload.lengths.size(), -1),
      by_rank_(static_cast<std::size_t>(workload.ranks)),
      shared_(static_cast<std::size_t>(workload.ranks)),
      best_(static_cast<std::size_t>(workload.ranks)) {
  items_.reserve(shards.size() + 4 * by_rank_.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    add(static_cast<int>(i), {0, shards[i].pairs()}, shards[i].home);
  }
  // Ranks that share a document have rows of it, so moves between them cost less.
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const bool alone = (i == 0 || shards[i - 1].document != shards[i].document) &&
                       (i + 1 == shards.size() || shards[i + 1].document != shards[i].document);
    std::vector<int>& shared = shared_[at(shards[i].home)];
    if (!alone && (shared.empty() || shared.back() != shards[i].document)) {
      shared.push_back(shards[i].document);
    }
  }
  for (Rank rank = 0; rank < loads_.ranks(); ++rank) refresh(rank);
}

void Items::add(int shard, Range pairs, Rank server) {
  const int id = static_cast<int>(items_.size());
  const DocumentShard& shape = shards_[at(shard)];
  int& last = last_of_document_[at(shape.document)];
  items_.push_back({shard, last, pairs, server, shape.cost(pairs), 0});
  last = id;
  by_rank_[at(server)].fresh.push_back(id);
  loads_.add(server, items_.back().cost);
}

// Bounds the gain of every part of the item, because search() stops at the first item whose bound
// does not beat the best. With a causal mask, smaller inner parts gain less; the exception is pair
// 0, whose short last block may lower the gain of the whole, so the item without it counts too.
// With other masks a part may gain more than the bound: then a move is missed in a valid plan.
void Items::enlist(int id) {
  Item& of = item(id);
  const DocumentShard& shape = shard(of);
  of.bound = score_.gain(shape, of.pairs, of.cost, {of.pairs, of.cost, of.cost});
  if (of.pairs.begin == 0 && of.pairs.end > 1) {
    const Range rest{1, of.pairs.end};
    const Weight cost = shape.cost(rest);
    of.bound = std::max(of.bound, score_.gain(shape, of.pairs, of.cost, {rest, cost, cost}));
  }
  by_rank_[at(of.server)].listed.insert({-of.bound, id});
}

void Items::delist(int id) {
  by_rank_[at(item(id).server)].listed.erase({-item(id).bound, id});
}

/// Updates the entries of a rank in sources_ and best_. Must be called after every change of its
/// load or its items: search() relies on both lists without looking at the items.
void Items::refresh(Rank rank) {
  const auto before = [](const Source& a, const Source& b) {
    return std::tuple(-a.bound, a.rank) < std::tuple(-b.bound, b.rank);
  };
  Candidate& best = best_[at(rank)];
  if (best.item >= 0) {
    const Source old{best.gain, rank};
    sources_.erase(std::lower_bound(sources_.begin(), sources_.end(), old, before));
  }
  best = {};
  const std::int64_t surplus = loads_.surplus(rank);
  if (surplus <= 0) return;
  for (const int id : std::exchange(by_rank_[at(rank)].fresh, {})) enlist(id);
  for (const auto& [bound, id] : by_rank_[at(rank)].listed) {
    if (best.item >= 0 && -bound <= best.gain) break;
    consider(id, surplus, 0, best);
  }
  if (best.item < 0) return;
  const Source now{best.gain, rank};
  sources_.insert(std::upper_bound(sources_.begin(), sources_.end(), now, before), now);
}

bool Items::gives(Rank rank, Sources which) const {
  switch (which) {
    case Sources::must:
      return loads_.over(rank);
    case Sources::above_mean:
      return loads_.surplus(rank) > 0;
    case Sources::outside:
      break;
  }
  return !loads_.serves(rank) && loads_.load(rank) > 0;
}

/// What a receiver may take: from who must give as much as the tolerance allows, since a few
/// receivers of much get fewer copies of keys than many of little. The published rules fill
/// receivers up to the mean.
Weight Items::room(Rank to, Sources which) const {
  const bool to_bound = which == Sources::must && score_.sees_residents();
  return to_bound ? loads_.room(to) : loads_.deficit(to);
}

Candidate Items::search(Rank to, Sources which, std::int64_t at_least) const {
  Candidate best;
  // These come first as they may beat every bound: a good one lets the loop below end early.
  if (score_.sees_residents()) consider_shared(to, which, at_least, best);
  const Weight deficit = room(to, which);
  for (const Source& source : sources_) {
    if (best.item >= 0 && source.bound <= best.gain) break;
    if (source.rank == to || !gives(source.rank, which)) continue;
    const Weight surplus = loads_.surplus(source.rank);
    const Candidate& all = best_[at(source.rank)];
    // If the receiver can take all that the source can spare, best_ is the answer. Otherwise the
    // limit is smaller than the one of best_, so the source's items are searched again.
    if (surplus <= deficit && all.offer.pairs.size() >= at_least) {
      take_if_better(all, best);
      continue;
    }
    const Weight limit = std::min(surplus, deficit);
    for (const auto& [bound, id] : by_rank_[at(source.rank)].listed) {
      if (best.item >= 0 && -bound <= best.gain) break;
      const Item& of = item(id);
      if (at_least == 0 && best.item >= 0 &&
          score_.most(shard(of), of.pairs, std::min(limit, of.cost)) < best.gain)
        continue;
      consider(id, limit, at_least, best);
    }
  }
  return best;
}

/// Considers items of documents that are partly present at `to`: they may beat their bounds.
void Items::consider_shared(Rank to, Sources which, std::int64_t at_least, Candidate& best) const {
  const Weight deficit = room(to, which);
  for (int document : shared_[at(to)]) {
    for (int id = last_of_document_[at(document)]; id >= 0; id = item(id).next_of_document) {
      const Rank server = item(id).server;
      if (server == to || !gives(server, which)) continue;
      Candidate candidate = offer(id, std::min(loads_.surplus(server), deficit), at_least);
      if (candidate.offer.pairs.empty()) continue;
      candidate.gain = score_.gain_at(to, shard(item(id)), candidate.offer);
      take_if_better(candidate, best);
    }
  }
}

/// Offers the inner pairs of an item, as the source keeps the outer ones: so fewer keys travel.
Candidate Items::offer(int id, Weight limit, std::int64_t at_least) const {
  const Item& from = item(id);
  const DocumentShard& shape = shard(from);
  const std::int64_t count = std::max(at_least, shape.fitting(from.pairs, from.cost, limit));
  const Range pairs{from.pairs.end - count, from.pairs.end};
  const Weight cost = count == 0 ? 0 : shape.cost(pairs);
  return {id, {pairs, cost, std::max(cost, std::min(limit, from.cost))}, 0};
}

void Items::consider(int id, Weight limit, std::int64_t at_least, Candidate& best) const {
  Candidate candidate = offer(id, limit, at_least);
  if (candidate.offer.pairs.empty() && !(offer_nothing_ && limit > 0)) return;
  const Item& from = item(id);
  candidate.gain = score_.gain(shard(from), from.pairs, from.cost, candidate.offer);
  take_if_better(candidate, best);
}

/// Breaks ties by document and pairs, never by the order of the search, so that every rank makes
/// the same plan without a message.
void Items::take_if_better(const Candidate& candidate, Candidate& best) const {
  if (best.item >= 0) {
    if (candidate.gain < best.gain) return;
    if (candidate.gain == best.gain) {
      const auto key = [&](const Candidate& c) {
        const Item& from = item(c.item);
        return std::tuple(shard(from).document, c.offer.pairs.begin, from.server, c.item);
      };
      if (key(best) <= key(candidate)) return;
    }
  }
  best = candidate;
}

void Items::share(Rank rank, int document) {
  std::vector<int>& shared = shared_[at(rank)];
  if (std::find(shared.begin(), shared.end(), document) == shared.end()) {
    shared.push_back(document);
  }
}

/// Moves the offered part of an item to `to`. delist() finds an item by its bound and server, so it
/// runs before either changes; refresh() runs last, when loads, residency and items agree again.
void Items::apply(const Candidate& move, Rank to) {
  const Item before = item(move.item);
  const DocumentShard& shape = shard(before);
  const Range pairs = move.offer.pairs;
  if (pairs != Range{0, shape.pairs()}) {
    share(before.server, shape.document);
    share(to, shape.document);
  }
  residency_.bring(to, shape.document, {shape.head_of(pairs), shape.tail_of(pairs)});
  loads_.add(before.server, -move.offer.cost);
  delist(move.item);
  if (pairs == before.pairs) {
    item(move.item).server = to;
    by_rank_[at(to)].fresh.push_back(move.item);
    loads_.add(to, before.cost);
  } else {
    item(move.item).pairs.end = pairs.begin;
    item(move.item).cost -= move.offer.cost;
    enlist(move.item);
    add(before.shard, pairs, to);
  }
  refresh(before.server);
  refresh(to);
}

std::vector<Assignment> Items::assignments() const {
  std::vector<Assignment> list;
  list.reserve(2 * items_.size());
  for (const Item& from : items_) {
    const DocumentShard& shape = shard(from);
    list.push_back({shape.document, shape.head_of(from.pairs), from.server});
    list.push_back({shape.document, shape.tail_of(from.pairs), from.server});
  }
  return list;
}

}  // namespace cadenza::plan
