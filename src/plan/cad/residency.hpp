// SPDX-License-Identifier: Apache-2.0
// Residency of keys while CAD balances. Sets of tokens are ascending ranges that do not touch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/range.hpp"
#include "cadenza/plan/plan.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan {

using Ranges = std::vector<Range>;

inline void add(Ranges& set, Range range) {
  if (range.empty()) return;
  const auto first = std::find_if(set.begin(), set.end(),
                                  [&](const Range& held) { return held.end >= range.begin; });
  auto last = first;
  for (; last != set.end() && last->begin <= range.end; ++last) {
    range = {std::min(range.begin, last->begin), std::max(range.end, last->end)};
  }
  if (first == last) {
    set.insert(first, range);
  } else {
    *first = range;
    set.erase(first + 1, last);
  }
}

inline std::int64_t size(const Ranges& set) {
  std::int64_t tokens = 0;
  for (const Range& range : set) tokens += range.size();
  return tokens;
}

/// Calls visit(Range) for the parts of `range` that are not in the set.
template <typename Visit>
void for_each_gap(const Ranges& set, Range range, Visit&& visit) {
  for (const Range& held : set) {
    if (held.end <= range.begin) continue;
    if (held.begin >= range.end) break;
    if (range.begin < held.begin) visit(Range{range.begin, held.begin});
    range.begin = held.end;
  }
  if (!range.empty()) visit(range);
}

// --- Residency: the bytes of computing queries on another rank, given the rows already there ---
// Resident keys are free here; the published planner charges a document's K and V to every move.

class Residency {
 public:
  /// @param rings  whether ranks that share a document get the keys that their own queries see
  Residency(const Workload& workload, const Homes& homes, bool rings = false);

  /// Bytes of Q per query row.
  std::int64_t query_bytes() const { return query_bytes_; }
  /// Bytes of O and LSE per query row.
  std::int64_t result_bytes() const { return result_bytes_; }
  /// Bytes of both: of a query row that is computed away from home.
  std::int64_t row_bytes() const { return query_bytes_ + result_bytes_; }
  /// Bytes of K and V per key row.
  std::int64_t key_bytes() const { return key_bytes_; }

  /// Bytes that must move to compute these queries, with all keys that they see, on `to`.
  /// @param queries  ascending
  std::int64_t bytes(Rank to, int document, std::initializer_list<Range> queries) const;

  /// Records that the keys that these queries see are now on `to`.
  void bring(Rank to, int document, std::initializer_list<Range> queries);

  /// Whether rows of the document are at home on the rank or were brought there.
  bool present(Rank rank, int document) const { return find(rank, document) != nullptr; }

 private:
  struct Brought {
    int document = 0;
    Ranges keys;
  };
  const Brought* find(Rank rank, int document) const;
  Brought& brought(Rank rank, int document);
  /// Number of keys of a range that neither live on `to` nor were brought there.
  std::int64_t missing(Rank to, const Brought& there, Range keys) const;

  const Workload& workload_;
  const Homes& homes_;
  std::int64_t query_bytes_;
  std::int64_t result_bytes_;
  std::int64_t key_bytes_;
  std::vector<std::vector<Brought>> present_;  // by rank, ascending by document
};

// --- Transfers: bytes of inputs and results through every rank while documents are tiled ---

/// Rows that travel between a document's home and a server.
struct TravellingRows {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
};

class Transfers {
 public:
  Transfers(const Residency& residency, int ranks)
      : residency_(residency), through_(static_cast<std::size_t>(ranks)) {}

  /// Adds (or, with sign -1, subtracts) the bytes of rows.
  void add(Rank home, Rank server, const TravellingRows& rows, std::int64_t sign = 1) {
    const std::int64_t in = sign * inputs(rows);
    const std::int64_t out = sign * rows.queries * residency_.result_bytes();
    of(home).inputs_sent += in;
    of(server).inputs_received += in;
    of(server).results_sent += out;
    of(home).results_received += out;
  }

  std::int64_t bytes(const TravellingRows& rows) const {
    return inputs(rows) + rows.queries * residency_.result_bytes();
  }

  /// Limits every rank to the bytes that go through the busiest rank now.
  void set_limits() {
    for (const Through& rank : through_) {
      inputs_limit_ = std::max({inputs_limit_, rank.inputs_sent, rank.inputs_received});
      results_limit_ = std::max({results_limit_, rank.results_sent, rank.results_received});
    }
  }
  bool within_limits(Rank rank) const {
    const Through& through = through_[at(rank)];
    return std::max(through.inputs_sent, through.inputs_received) <= inputs_limit_ &&
           std::max(through.results_sent, through.results_received) <= results_limit_;
  }

 private:
  struct Through {
    std::int64_t inputs_sent = 0, inputs_received = 0;
    std::int64_t results_sent = 0, results_received = 0;
  };
  Through& of(Rank rank) { return through_[at(rank)]; }
  std::int64_t inputs(const TravellingRows& rows) const {
    return rows.queries * residency_.query_bytes() + rows.keys * residency_.key_bytes();
  }

  const Residency& residency_;
  std::vector<Through> through_;
  std::int64_t inputs_limit_ = 0;
  std::int64_t results_limit_ = 0;
};

}  // namespace cadenza::plan
