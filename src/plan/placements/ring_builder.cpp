// SPDX-License-Identifier: Apache-2.0
#include "plan/placements/ring_builder.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "cadenza/base/at.hpp"

namespace cadenza::plan {
namespace {

/// Of what passes all positions. Causal rings in zigzag move 0.75 to 0.86 of it when they skip, but
/// some position sends half as much again as in a ring, and steps take up to a tenth longer.
constexpr double kWorthSkipping = 0.7;

std::size_t index(int i) {
  return static_cast<std::size_t>(i);
}

/// Calls visit(Home) for the parts of `row` that lie in `set`, which is ascending by document and
/// token.
template <typename Visit>
void for_each_common(const Home& row, const std::vector<Home>& set, Visit&& visit) {
  auto other = std::partition_point(set.begin(), set.end(), [&](const Home& o) {
    return std::tie(o.document, o.tokens.end) <= std::tie(row.document, row.tokens.begin);
  });
  for (; other != set.end() && other->document == row.document; ++other) {
    if (other->tokens.begin >= row.tokens.end) return;
    visit(Home{row.rank, row.document, intersect(row.tokens, other->tokens)});
  }
}

/// The same, and returns the parts of all rows that do not lie in `set`.
template <typename Visit>
std::vector<Home> rest_after(const std::vector<Home>& rows, const std::vector<Home>& set,
                             Visit&& visit) {
  std::vector<Home> rest;
  for (Home row : rows) {
    for_each_common(row, set, [&](const Home& part) {
      visit(part);
      if (row.tokens.begin < part.tokens.begin) {
        rest.push_back({row.rank, row.document, {row.tokens.begin, part.tokens.begin}});
      }
      row.tokens.begin = part.tokens.end;
    });
    if (!row.tokens.empty()) rest.push_back(row);
  }
  return rest;
}

std::vector<Home> joined(std::vector<Home> rows) {
  for (Home& row : rows) row.rank = 0;
  unite(rows);
  return rows;
}

}  // namespace

RingBuilder::RingBuilder(const Workload& workload, const RingShape& shape)
    : workload_(workload), shape_(shape), slices_(shape.head_parallel), first_(slices_ > 1) {
  stages_.resize(index(first_ + workload.context / slices_ + 1));
}

std::vector<Ring> RingBuilder::rings() const {
  std::vector<Ring> all;
  if (shape_.by_document) {
    for (auto& [members, ring] : rings_of_documents()) all.push_back(std::move(ring));
  } else {
    all = rings_of_groups();
  }
  for (Ring& ring : all) {
    for (Position& position : ring) add_queries(position);
  }
  return all;
}

/// One ring for every context group.
std::vector<Ring> RingBuilder::rings_of_groups() const {
  const int positions = workload_.context / slices_;
  std::vector<Ring> rings(index(workload_.ranks / workload_.context));
  for (std::size_t group = 0; group < rings.size(); ++group) {
    for (int i = 0; i < positions; ++i) {
      rings[group].emplace_back().first = static_cast<int>(group) * workload_.context + i * slices_;
    }
  }
  for (const Home& home : workload_.homes) {
    const int in_group = home.rank % workload_.context;
    rings[index(home.rank / workload_.context)][index(in_group / slices_)].keys.push_back(home);
  }
  return rings;
}

std::vector<Rank> RingBuilder::members_of(std::span<const Home> of_document) const {
  std::set<Rank> firsts;
  for (const Home& home : of_document) firsts.insert(home.rank / slices_ * slices_);
  return {firsts.begin(), firsts.end()};
}

std::map<std::vector<Rank>, Ring> RingBuilder::rings_of_documents() const {
  std::vector<std::vector<Home>> homes(workload_.lengths.size());
  for (const Home& home : workload_.homes) homes[index(home.document)].push_back(home);
  std::map<std::vector<Rank>, Ring> rings;
  for (const std::vector<Home>& of_document : homes) {
    const std::vector<Rank> members = members_of(of_document);
    Ring& ring = rings[members];
    ring.resize(members.size());
    for (std::size_t i = 0; i < members.size(); ++i) ring[i].first = members[i];
    for (const Home& home : of_document) {
      const auto member = std::ranges::upper_bound(members, home.rank) - members.begin() - 1;
      ring[static_cast<std::size_t>(member)].keys.push_back(home);
    }
  }
  return rings;
}

/// All queries of its rows.
void RingBuilder::add_queries(Position& position) const {
  for (const Home& home : position.keys) {
    const Range own = intersect(home.tokens, workload_.queries_of(index(home.document)));
    if (!own.empty()) position.queries.push_back({home.rank, home.document, own});
  }
  for (const Home& row : joined(position.queries)) {
    const std::int64_t length = workload_.lengths[index(row.document)];
    position.work.push_back({row.document, row.tokens, {0, length}, false});
  }
}

/// Of those that come in a step after the first.
double RingBuilder::tokens_of(const Steps& keys) const {
  double tokens = 0;
  for (std::size_t i = index(positions_); i < keys.size(); ++i) {
    for (const Home& row : keys[i]) tokens += static_cast<double>(row.tokens.size());
  }
  return tokens;
}

int RingBuilder::inner_ring_of(const Ring& ring) const {
  if (shape_.nodes.empty())
    return std::ssize(ring) % shape_.inner_ring == 0 ? shape_.inner_ring : 1;
  int inner = 0, neighbours = 0;
  for (std::size_t i = 0; i < ring.size(); ++i) {
    ++neighbours;
    const bool last = i + 1 == ring.size() ||
                      shape_.nodes[at(ring[i].first)] != shape_.nodes[at(ring[i + 1].first)];
    if (!last) continue;
    inner = std::gcd(inner, neighbours);
    neighbours = 0;
  }
  return inner;
}

void RingBuilder::add(Ring& ring) {
  for (Position& position : ring) position.all_keys = joined(position.keys);
  positions_ = static_cast<int>(ring.size());
  inner_ring_ = inner_ring_of(ring);
  stages_.resize(std::max(stages_.size(), index(last_stage() + 1)));
  Steps keys(index(positions_ * positions_));
  for (int own = 0; own < positions_; ++own) {
    for (int step = 0; step < positions_; ++step) {
      std::vector<Home>& mine = keys[index(step * positions_ + own)];
      mine = add_tasks(ring[index(own)], ring[index(source_of(own, step))], ring[index(own)].first,
                       step);
    }
  }
  Steps read;
  if (shape_.skips || direct()) {
    read = keys;
    for (std::vector<Home>& rows : read) unite(rows);
  }
  if (!direct()) pass_on(keys);
  const bool skips =
      direct() || (shape_.skips && tokens_of(read) < kWorthSkipping * tokens_of(keys));
  if (skips) keys = std::move(read);
  for (int own = 0; own < positions_; ++own) {
    for (int slice = 0; slice < slices_; ++slice) {
      gather_slice(ring[index(own)], keys[index(own)], ring[index(own)].first + slice, slice);
    }
  }
  skips && !direct() ? move_past(ring, keys) : move_keys(ring, keys);
}

/// Adds to the keys that a position reads at each step those that later positions get from it.
void RingBuilder::pass_on(Steps& keys) const {
  for (int step = positions_ - 1; step >= 0; --step) {
    for (int own = 0; own < positions_; ++own) {
      std::vector<Home>& got = keys[index(step * positions_ + own)];
      unite(got);
      if (step == 0) continue;
      std::vector<Home>& held =
          keys[index(step_before(step) * positions_ + neighbour_of(own, step))];
      held.insert(held.end(), got.begin(), got.end());
    }
  }
}

/// Every position gets its keys from its neighbour, or all from their homes.
void RingBuilder::move_keys(const Ring& ring, const Steps& keys) {
  for (int own = 0; own < positions_; ++own) {
    for (int slice = 0; slice < slices_; ++slice) {
      for (int step = 1; step < positions_; ++step) {
        const int sender = direct() ? source_of(own, step) : neighbour_of(own, step);
        const Rank from = ring[index(sender)].first + slice;
        for (const Home& row : ring[index(source_of(own, step))].keys) {
          for_each_common(row, keys[index(step * positions_ + own)], [&](const Home& part) {
            add_keys(stages_[index(stage_of(step))], from, ring[index(own)].first + slice, part,
                     slice);
          });
        }
      }
    }
  }
}

/// Every position gets its keys from the last one before it that reads them, or from their home.
void RingBuilder::move_past(const Ring& ring, const Steps& keys) {
  for (int own = 0; own < positions_; ++own) {
    for (int step = 1; step < positions_; ++step) {
      std::vector<Home> rest = keys[index(step * positions_ + own)];
      for (int before = step - 1; before >= 0 && !rest.empty(); --before) {
        if (stage_of(before) == stage_of(step)) continue;  // it comes at the same time
        const int from =
            this->before(source_of(own, step), -(before / inner_ring_), -(before % inner_ring_));
        const std::vector<Home>& held =
            before == 0 ? ring[index(from)].all_keys : keys[index(before * positions_ + from)];
        rest = rest_after(rest, held, [&](const Home& part) {
          add_keys(stages_[index(stage_of(step))], ring[index(from)].first, ring[index(own)].first,
                   part, 0);
        });
      }
    }
  }
}

// Positions as (node, place in the node): see RingBuilder.
int RingBuilder::before(int position, int nodes, int places) const {
  const int count = positions_ / inner_ring_;
  const int node = (position / inner_ring_ - nodes % count + count) % count;
  const int place = (position % inner_ring_ - places % inner_ring_ + inner_ring_) % inner_ring_;
  return node * inner_ring_ + place;
}
int RingBuilder::source_of(int position, int step) const {
  return before(position, step / inner_ring_, step % inner_ring_);
}
int RingBuilder::neighbour_of(int position, int step) const {
  if (step % inner_ring_ == 0) return before(position, 1, 0);
  return before(position, 0, gathers() ? step % inner_ring_ : 1);
}
/// The step at which that neighbour has the keys.
int RingBuilder::step_before(int step) const {
  if (step % inner_ring_ == 0) return step - inner_ring_;
  return gathers() ? step - step % inner_ring_ : step - 1;
}

Range RingBuilder::heads(int slice) const {
  const std::int64_t each = workload_.shape.heads / slices_;
  return {slice * each, (slice + 1) * each};
}
int RingBuilder::stage_of(int step) const {
  if (!gathers()) return first_ + step;
  return first_ + step / inner_ring_ + (step % inner_ring_ == 0 ? 0 : 1);
}
int RingBuilder::last_stage() const {
  return stage_of(positions_ - 1) + 1;
}

/// Moves Q, K and V of a position to the rank of a head slice, or Q of guests to their server,
/// and O and LSE back.
/// @param keys  those of the position that some position reads
void RingBuilder::gather_slice(const Position& position, const std::vector<Home>& keys, Rank to,
                               int slice) {
  Stage& results = slices_ > 1 ? stages_.back() : stages_[index(last_stage())];
  for (const Home& row : position.queries) {
    if (row.rank == to) continue;
    add_move(stages_[kArrival], row.rank, to, Tensor::q, row, slice);
    add_move(results, to, row.rank, Tensor::o, row, slice);
    add_move(results, to, row.rank, Tensor::lse, row, slice);
  }
  for (const Home& row : position.keys) {
    if (row.rank == to) continue;
    for_each_common(row, keys, [&](const Home& part) {
      add_keys(stages_[kArrival], row.rank, to, part, slice);
    });
  }
}

/// Adds the tasks of a ring step for all slices of a position.
/// @param first  the rank of the first slice
/// @return the keys that the tasks read
std::vector<Home> RingBuilder::add_tasks(const Position& own, const Position& source, Rank first,
                                         int step) {
  std::vector<Home> keys;
  for (const Queries& q : own.work) {
    Stage& stage = stages_[index(std::max(stage_of(step), q.guest ? first_ + 1 : 0))];
    auto k = std::partition_point(source.all_keys.begin(), source.all_keys.end(),
                                  [&](const Home& row) { return row.document < q.document; });
    for (; k != source.all_keys.end() && k->document == q.document; ++k) {
      const Range both = intersect(k->tokens, q.keys);
      if (both.empty()) continue;
      for (Task task : masked_tasks(workload_, {q.document, q.tokens, both, {}})) {
        keys.push_back({0, task.document, task.k});
        for (int slice = 0; slice < slices_; ++slice) {
          task.heads = heads(slice);
          stage.tasks.push_back(place_task(workload_, first + slice, task));
        }
      }
    }
  }
  return keys;
}

void RingBuilder::add_keys(Stage& stage, Rank from, Rank to, const Home& row, int slice) const {
  add_move(stage, from, to, Tensor::k, row, slice);
  add_move(stage, from, to, Tensor::v, row, slice);
}
void RingBuilder::add_move(Stage& stage, Rank from, Rank to, Tensor what, const Home& row,
                           int slice) const {
  const AttentionShape& shape = workload_.shape;
  const Range all = heads(slice);
  stage.moves.push_back(make_move(shape, from, to, what, row.document, row.tokens,
                                  is_key_side(what) ? shape.key_heads(all) : all));
}

}  // namespace cadenza::plan
