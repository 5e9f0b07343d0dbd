// SPDX-License-Identifier: Apache-2.0
// What it costs to compute queries somewhere else, given what is already there. Counting resident
// keys once is where CAD leaves the published planner, which charges a whole document's K and V to
// every move.
#pragma once

#include <initializer_list>
#include <vector>

#include "cadenza/plan/plan.hpp"
#include "plan/workload/homes.hpp"
#include "plan/cad/ranges.hpp"

namespace cadenza::plan {

class Residency {
 public:
  Residency(const Workload& workload, const Homes& homes);

  /// Bytes of Q, O and LSE per query row that is not at home.
  std::int64_t query_bytes() const { return query_bytes_ + result_bytes_; }
  /// Bytes of O and LSE of them.
  std::int64_t result_bytes() const { return result_bytes_; }
  /// Bytes of K and V per key row that is not there.
  std::int64_t key_bytes() const { return key_bytes_; }

  /// Bytes that computing these queries, with all the keys they see, on `to` adds.
  /// @param queries  ascending
  std::int64_t bytes(Rank to, int document, std::initializer_list<Range> queries) const;

  /// The keys that these queries see are on `to` from now on.
  void bring(Rank to, int document, std::initializer_list<Range> queries);

  /// Whether rows of the document are at home on the rank or were brought there.
  bool present(Rank rank, int document) const { return find(rank, document) != nullptr; }

 private:
  struct Brought {
    int document = 0;
    Ranges keys;
  };
  const Brought* find(Rank rank, int document) const;
  Brought& at(Rank rank, int document);
  /// Keys of a range that neither were brought there nor live there.
  std::int64_t missing(Rank to, const Brought& there, Range keys) const;

  const Workload& workload_;
  const Homes& homes_;
  std::int64_t query_bytes_;
  std::int64_t result_bytes_;
  std::int64_t key_bytes_;
  std::vector<std::vector<Brought>> present_;  // by rank, ascending by document
};

}  // namespace cadenza::plan
