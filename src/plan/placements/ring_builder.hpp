// SPDX-License-Identifier: Apache-2.0
// The stages of plans in which keys go round rings of ranks: placements that pass keys on, splits
// of the heads, both combined, and CAD for documents that live on several ranks.
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "cadenza/plan/plan.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan {

/// Divides a context group into ring positions of `head_parallel` ranks each: rank = position x
/// head_parallel + slice. Every `inner_ring` positions form a node.
struct RingShape {
  int head_parallel = 1;  ///< divides the group and the heads
  int inner_ring = 1;     ///< divides the number of positions; 1, or all of them: one flat ring
  /// By rank: its node. Where it is given, every ring has the largest inner rings of which each
  /// lies on one node.
  std::vector<int> nodes = {};
  bool gathers = false;      ///< keys go to all ranks of a node at once, a stage for every node
  bool by_document = false;  ///< a document's ring has only the positions that hold a part of it
  bool skips = false;  ///< keys may go from reader to reader, past positions that do not read them
  int direct = 0;      ///< in flat rings of at most so many positions, keys come from their homes
};

/// Queries that a ring position computes.
struct Queries {
  int document = 0;
  Range tokens;
  Range keys;          ///< that they are computed with, of those that they see
  bool guest = false;  ///< not at home there: they come while the keys of step 0 are attended
};

/// Rows of one ring position.
struct Position {
  Rank first = 0;              ///< rank of its first slice
  std::vector<Home> queries;   ///< that it computes, by the rank on which they live
  std::vector<Home> keys;      ///< by rank
  std::vector<Queries> work;   ///< `queries`, united over ranks
  std::vector<Home> all_keys;  ///< `keys`, united over ranks, with rank 0
};

/// The positions of a ring in order, with the rows of the documents that go round it.
using Ring = std::vector<Position>;

/// Adds rings to the stages of a plan, in which every rank computes one slice of the heads for the
/// queries of its position.
///
/// Head slices (stage 1, where there are several): Q, K and V of a position move to the ranks of
/// the position that compute their heads; in the last stage O and LSE return. Ring: with P =
/// inner_ring, at ring step t a rank has the keys of the position that is t mod P places and t / P
/// nodes before its own. They come from the previous position of the node or, where t is a multiple
/// of P, from the same place on the previous node, which had them one step (P steps) earlier. Where
/// nodes gather, a stage has all of a node's keys: steps n P + 1 ... n P + P - 1 are one stage,
/// with keys that come from the positions which had them at step n P, one stage earlier. A key
/// moves on only as far as the last position that reads it. Where keys may skip positions, they do
/// in rings in which that saves much (narrow masks); elsewhere every position sends as much as
/// others. Rings by document run at the same time; where inner_ring does not divide one, it is
/// flat. Where keys of a flat ring come from their homes, no more rows travel, and no position
/// waits for one that is late with other tasks.
class RingBuilder {
 public:
  /// The stage in which rows come that go to other ranks of their position, and guests.
  static constexpr std::size_t kArrival = 1;

  RingBuilder(const Workload& workload, const RingShape& shape);

  /// The rings of the shape, with all queries at home.
  std::vector<Ring> rings() const;
  /// One ring for all documents on the same positions, without work, by the first ranks of these.
  std::map<std::vector<Rank>, Ring> rings_of_documents() const;
  /// The first ranks of the positions that hold a document, ascending.
  std::vector<Rank> members_of(std::span<const Home> of_document) const;

  void add(Ring& ring);
  /// Of the last ring: the stage after its last tasks, in which results return.
  int last_stage() const;
  /// Of the last ring: whether all keys come from their homes.
  bool direct() const {
    return positions_ <= shape_.direct && (inner_ring_ == 1 || inner_ring_ == positions_);
  }

  /// The stages, some perhaps empty.
  std::vector<Stage> take() { return std::move(stages_); }

 private:
  std::vector<Ring> rings_of_groups() const;
  void add_queries(Position& position) const;
  /// A position's keys by ring step: `keys[step * positions + position]`.
  using Steps = std::vector<std::vector<Home>>;
  double tokens_of(const Steps& keys) const;
  int inner_ring_of(const Ring& ring) const;
  void pass_on(Steps& keys) const;
  void move_keys(const Ring& ring, const Steps& keys);
  void move_past(const Ring& ring, const Steps& keys);
  int before(int position, int nodes, int places) const;
  int source_of(int position, int step) const;
  int neighbour_of(int position, int step) const;
  int step_before(int step) const;
  Range heads(int slice) const;
  bool gathers() const { return shape_.gathers && inner_ring_ > 1 && inner_ring_ < positions_; }
  int stage_of(int step) const;
  void gather_slice(const Position& position, const std::vector<Home>& keys, Rank to, int slice);
  std::vector<Home> add_tasks(const Position& own, const Position& source, Rank first, int step);
  void add_keys(Stage& stage, Rank from, Rank to, const Home& row, int slice) const;
  void add_move(Stage& stage, Rank from, Rank to, Tensor what, const Home& row, int slice) const;

  const Workload& workload_;
  RingShape shape_;
  int slices_;          // slices of the heads
  int first_;           // stage of ring step 0
  int positions_ = 1;   // positions of the ring that is added
  int inner_ring_ = 1;  // its positions per node
  std::vector<Stage> stages_;
};

}  // namespace cadenza::plan
