// SPDX-License-Identifier: Apache-2.0
// The placements that share a sequence inside a context group and pass keys around: rings, head
// splits and both.
#include "cadenza/plan/plan.hpp"

#include <algorithm>
#include <tuple>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"
#include "plan/assemble.hpp"
#include "plan/workload/sharding.hpp"
#include "plan/workload/token_order.hpp"

namespace cadenza::plan {

/// A context group as ring positions of `head_parallel` ranks each: rank = position x head_parallel
/// + slice. Every `inner_ring` positions are a node.
struct RingShape {
  int head_parallel = 1;  ///< divides the group and the heads
  int inner_ring = 1;     ///< divides the group's positions; all of them: one plain ring
};

/// Every rank computes one slice of the heads for all queries of its position.
///
/// Head slices (stage 1, where there are several): Q, K and V of a position go to the ranks of the
/// position that have their heads; in the last stage O and LSE go home. Ring: with P = inner_ring,
/// at ring step t a rank has the keys of the position (t mod P) before its own on the node that is
/// t / P before its own. It got them from the position before its own, or, where t is a multiple of
/// P, from the same place on the node before; both held them a step (P steps) ago. A key leaves a
/// position only if some later one on its way reads it, and ends at the last that does. The last
/// stage has O and LSE; steps in which nothing moves and nothing runs have no stage.
Plan ring_plan(const Workload& workload, const RingShape& shape);

namespace {

/// Rows of one ring position.
struct Position {
  std::vector<Home> queries;      ///< as they live on its ranks
  std::vector<Home> keys;         ///< all of its tokens
  std::vector<Home> all_queries;  ///< over its ranks: rank is 0 in both
  std::vector<Home> all_keys;
};

/// The tokens of `row` that are in a set of tokens, ascending by document and token.
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

class RingBuilder {
 public:
  RingBuilder(const Workload& workload, const RingShape& shape)
      : workload_(workload),
        slices_(shape.head_parallel),
        inner_ring_(shape.inner_ring),
        positions_(workload.context / shape.head_parallel),
        first_(slices_ > 1 ? 1 : 0) {
    stages_.resize(index(first_ + positions_ + 1));
  }

  std::vector<Stage> stages() {
    std::vector<Position> positions(static_cast<std::size_t>(workload_.ranks / slices_ + 1));
    for (const Home& home : workload_.homes) add_home(positions, home);
    for (Position& position : positions) {
      position.all_queries = joined(position.queries);
      position.all_keys = joined(position.keys);
    }
    const int groups = workload_.ranks / workload_.context;
    for (int group = 0; group < groups; ++group) {
      add_group(std::span(positions).subspan(index(group * positions_), index(positions_)),
                group * workload_.context);
    }
    // Where masks are narrow, nothing moves and nothing runs in some steps.
    std::erase_if(stages_, [](const Stage& s) { return s.moves.empty() && s.tasks.empty(); });
    if (stages_.empty()) stages_.emplace_back();
    for (Stage& stage : stages_) sort_stage(stage);
    return std::move(stages_);
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  void add_home(std::vector<Position>& positions, const Home& home) const {
    Position& position = positions[index(home.rank / slices_)];
    const Range own = intersect(home.tokens, workload_.queries_of(index(home.document)));
    if (!own.empty()) position.queries.push_back({home.rank, home.document, own});
    position.keys.push_back(home);
  }

  static std::vector<Home> joined(std::vector<Home> rows) {
    for (Home& row : rows) row.rank = 0;
    unite(rows);
    return rows;
  }

  void add_group(std::span<const Position> positions, Rank base) {
    const auto rank = [&](int position, int slice) { return base + position * slices_ + slice; };
    std::vector<std::vector<Home>> keys(index(positions_ * positions_));  // by step and position
    for (int own = 0; own < positions_; ++own) {
      for (int step = 0; step < positions_; ++step) {
        const Position& source = positions[index(source_of(own, step))];
        keys[index(step * positions_ + own)] =
            add_tasks(positions[index(own)], source, rank(own, 0), step);
      }
    }
    hand_on(keys);
    for (int own = 0; own < positions_; ++own) {
      for (int slice = 0; slice < slices_; ++slice) {
        const Rank to = rank(own, slice);
        gather_slice(positions[index(own)], keys[index(own)], to, slice);
        for (int step = 1; step < positions_; ++step) {
          const Rank from = rank(neighbour_of(own, step), slice);
          for (const Home& row : positions[index(source_of(own, step))].keys) {
            for_each_common(row, keys[index(step * positions_ + own)], [&](const Home& part) {
              add_keys(stage_of(step), from, to, part, slice);
            });
          }
        }
      }
    }
  }

  /// From the keys that positions read at every step to those that they get: those that a later
  /// position gets from them as well.
  void hand_on(std::vector<std::vector<Home>>& keys) const {
    for (int step = positions_ - 1; step >= 0; --step) {
      for (int own = 0; own < positions_; ++own) {
        std::vector<Home>& got = keys[index(step * positions_ + own)];
        unite(got);
        if (step == 0) continue;
        const int before = step % inner_ring_ == 0 ? step - inner_ring_ : step - 1;
        std::vector<Home>& held = keys[index(before * positions_ + neighbour_of(own, step))];
        held.insert(held.end(), got.begin(), got.end());
      }
    }
  }

  // Positions as (node, place): see the header.
  int before(int position, int nodes, int places) const {
    const int count = positions_ / inner_ring_;
    const int node = (position / inner_ring_ - nodes % count + count) % count;
    const int place = (position % inner_ring_ - places % inner_ring_ + inner_ring_) % inner_ring_;
    return node * inner_ring_ + place;
  }
  int source_of(int position, int step) const {
    return before(position, step / inner_ring_, step % inner_ring_);
  }
  int neighbour_of(int position, int step) const {
    return step % inner_ring_ == 0 ? before(position, 1, 0) : before(position, 0, 1);
  }

  Range heads(int slice) const {
    const std::int64_t each = workload_.shape.heads / slices_;
    return {slice * each, (slice + 1) * each};
  }
  Stage& stage_of(int step) { return stages_[index(first_ + step)]; }

  /// @param keys  of the position that any position gets
  void gather_slice(const Position& position, const std::vector<Home>& keys, Rank to, int slice) {
    for (const Home& row : position.queries) {
      if (row.rank == to) continue;
      add_move(stage_of(0), row.rank, to, Tensor::q, row, slice);
      add_move(stages_.back(), to, row.rank, Tensor::o, row, slice);
      add_move(stages_.back(), to, row.rank, Tensor::lse, row, slice);
    }
    for (const Home& row : position.keys) {
      if (row.rank == to) continue;
      for_each_common(row, keys,
                      [&](const Home& part) { add_keys(stage_of(0), row.rank, to, part, slice); });
    }
  }

  /// Of all slices.
  /// @param first  the rank that has the first slice
  /// @return the keys that they read
  std::vector<Home> add_tasks(const Position& own, const Position& source, Rank first, int step) {
    std::vector<Home> keys;
    for (const Home& q : own.all_queries) {
      auto k = std::partition_point(source.all_keys.begin(), source.all_keys.end(),
                                    [&](const Home& row) { return row.document < q.document; });
      for (; k != source.all_keys.end() && k->document == q.document; ++k) {
        for (Task task : masked_tasks(workload_, {q.document, q.tokens, k->tokens, {}})) {
          keys.push_back({0, task.document, task.k});
          for (int slice = 0; slice < slices_; ++slice) {
            task.heads = heads(slice);
            stage_of(step).tasks.push_back(place_task(workload_, first + slice, task));
          }
        }
      }
    }
    return keys;
  }

  void add_keys(Stage& stage, Rank from, Rank to, const Home& row, int slice) const {
    add_move(stage, from, to, Tensor::k, row, slice);
    add_move(stage, from, to, Tensor::v, row, slice);
  }
  void add_move(Stage& stage, Rank from, Rank to, Tensor what, const Home& row, int slice) const {
    const AttentionShape& shape = workload_.shape;
    const Range all = heads(slice);
    stage.moves.push_back(make_move(shape, from, to, what, row.document, row.tokens,
                                    is_key_side(what) ? key_heads(shape, all) : all));
  }

  const Workload& workload_;
  int slices_;      // of the heads
  int inner_ring_;  // positions of a node
  int positions_;   // of a group
  int first_;       // stage of ring step 0
  std::vector<Stage> stages_;
};

}  // namespace

Plan ring_plan(const Workload& workload, const RingShape& shape) {
  Plan plan;
  plan.workload = workload;
  plan.stages = RingBuilder(workload, shape).stages();
  plan.merges = make_merges(workload, Homes(workload), plan.stages);
  add_totals(plan);
  return plan;
}

// Placements `ring`, `zigzag`, `striped` and `block_striped`: queries stay, keys and values go
// round the context group. They differ in where tokens live and in what order they are counted
// alone, so homes and workload.order say which of them it is (Ring Attention, arXiv 2310.01889;
// Striped Attention, arXiv 2311.09431).

Plan ring(const Workload& workload) {
  return ring_plan(workload, {1, workload.context});
}

// Placement `double_ring`: rings of `inner_ring` ranks, a node each, inside a ring of nodes
// (LoongTrain, arXiv 2406.18485). A rank sends as many keys as in one flat ring, but only once per
// node to the next one.

Plan double_ring(const Workload& workload, std::int64_t inner_ring) {
  if (inner_ring < 1 || workload.context % inner_ring != 0) {
    fail(ExitCode::usage,
         "attention.inner_ring: found {}; valid: a divisor of parallel.context = {}", inner_ring,
         workload.context);
  }
  return ring_plan(workload, {1, static_cast<int>(inner_ring)});
}

// Placement `ulysses` (DeepSpeed-Ulysses, arXiv 2309.14509): every rank of the context group
// computes its share of the heads for the whole sequence. Key-value heads that several ranks read
// go to each of them.

Plan ulysses(const Workload& workload) {
  if (workload.shape.heads % workload.context != 0) {
    fail(ExitCode::usage,
         "parallel.context: found {} with placement ulysses; valid: a divisor of the {} heads, or "
         "placement ulysses_ring",
         workload.context, workload.shape.heads);
  }
  return ring_plan(workload, {workload.context, 1});
}

// Placement `ulysses_ring`: heads over `head_parallel` neighbouring ranks, a ring over such groups
// (USP, arXiv 2405.07719; the 2-D attention of LoongTrain, arXiv 2406.18485).

Plan ulysses_ring(const Workload& workload, std::int64_t head_parallel) {
  if (head_parallel < 1 || workload.context % head_parallel != 0 ||
      workload.shape.heads % head_parallel != 0) {
    fail(ExitCode::usage,
         "attention.head_parallel: found {}; valid: a divisor of parallel.context = {} and of the "
         "{} heads",
         head_parallel, workload.context, workload.shape.heads);
  }
  const int slices = static_cast<int>(head_parallel);
  return ring_plan(workload, {slices, workload.context / slices});
}

}  // namespace cadenza::plan
