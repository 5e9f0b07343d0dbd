// SPDX-License-Identifier: Apache-2.0
// The sequence of tiles that the loading warp brings for a unit.
#pragma once

#include "../device/units.hpp"
#include "problem.hpp"

namespace cadenza::kernels::sm90 {

/// Walks over the tiles of keys that some query of a unit sees, entry after entry.
class KeyWalk {
 public:
  CADENZA_DEVICE KeyWalk(const Problem& problem, const Unit& unit)
      : problem_(problem), unit_(unit), at_(unit.first_entry - 1) {
    next_entry();
  }

  CADENZA_DEVICE bool done() const { return at_ >= unit_.last_entry; }
  CADENZA_DEVICE int entry() const { return problem_.order[at_]; }
  /// First row of the tile among the entry's keys.
  CADENZA_DEVICE int row() const { return row_; }
  CADENZA_DEVICE void advance() {
    row_ += kKeys;
    if (row_ >= end_) next_entry();
  }

 private:
  CADENZA_DEVICE void next_entry() {
    for (++at_; at_ < unit_.last_entry; ++at_) {
      const Entry& of = problem_.entries[entry()];
      const Tokens met = keys_met(of, unit_);
      row_ = clamped(met.begin - of.k_begin);
      end_ = clamped(met.end - of.k_begin);
      if (!met.empty()) return;
    }
  }

  const Problem& problem_;
  const Unit& unit_;
  int at_;
  int row_ = 0;
  int end_ = 0;
};

/// Walks over the tiles of queries that see some key of a unit: entries, their tiles, the heads.
class QueryWalk {
 public:
  CADENZA_DEVICE QueryWalk(const Problem& problem, const Unit& unit)
      : problem_(problem), unit_(unit), at_(unit.first_entry - 1) {
    next_entry();
  }

  CADENZA_DEVICE bool done() const { return at_ >= unit_.last_entry; }
  CADENZA_DEVICE int entry() const { return problem_.order[at_]; }
  /// First row of the tile among the entry's queries.
  CADENZA_DEVICE int row() const { return row_; }
  CADENZA_DEVICE int head() const { return head_; }
  CADENZA_DEVICE void advance() {
    if (++head_ < last_head_) return;
    head_ = first_head_;
    row_ += kQueries;
    if (row_ >= end_) next_entry();
  }

 private:
  CADENZA_DEVICE void next_entry() {
    for (++at_; at_ < unit_.last_entry; ++at_) {
      const Entry& of = problem_.entries[entry()];
      const Tokens met = queries_met(of, unit_);
      const Heads heads = heads_met(of, unit_);
      row_ = clamped(met.begin - of.q_begin);
      end_ = clamped(met.end - of.q_begin);
      head_ = first_head_ = heads.first;
      last_head_ = heads.end;
      if (head_ < last_head_ && !met.empty()) return;
    }
  }

  const Problem& problem_;
  const Unit& unit_;
  int at_;
  int head_ = 0, first_head_ = 0, last_head_ = 0;
  int row_ = 0;
  int end_ = 0;
};

}  // namespace cadenza::kernels::sm90
