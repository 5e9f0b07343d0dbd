// SPDX-License-Identifier: Apache-2.0
// Placements that share a sequence inside a context group: rings that pass keys around, splits of
// the heads, and both combined.
#include "cadenza/plan/plan.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"
#include "plan/assemble.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan {

/// Divides a context group into ring positions of `head_parallel` ranks each: rank = position x
/// head_parallel + slice. Every `inner_ring` positions form a node.
struct RingShape {
  int head_parallel = 1;     ///< divides the group and the heads
  int inner_ring = 1;        ///< divides the number of positions; 1, or all of them: one flat ring
  bool by_document = false;  ///< a document's ring has only the positions that hold a part of it
};

/// Makes a plan in which every rank computes one slice of the heads for all queries of its
/// position.
///
/// Head slices (stage 1, where there are several): Q, K and V of a position move to the ranks of
/// the position that compute their heads; in the last stage O and LSE return. Ring: with P =
/// inner_ring, at ring step t a rank has the keys of the position that is t mod P places and t / P
/// nodes before its own. They come from the previous position of the node or, where t is a multiple
/// of P, from the same place on the previous node, which had them one step (P steps) earlier. A key
/// moves on only as far as the last position that reads it. Steps in which nothing moves and
/// nothing runs have no stage. Rings by document run at the same time; where inner_ring does not
/// divide one, it is flat.
Plan ring_plan(const Workload& workload, const RingShape& shape);

namespace {

/// Rows of one ring position.
struct Position {
  Rank first = 0;                 ///< rank of its first slice
  std::vector<Home> queries;      ///< by rank
  std::vector<Home> keys;         ///< by rank
  std::vector<Home> all_queries;  ///< united over ranks, with rank 0
  std::vector<Home> all_keys;     ///< united over ranks, with rank 0
};

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

/// The positions of a ring in order, with the rows of the documents that go round it.
using Ring = std::vector<Position>;

class RingBuilder {
 public:
  RingBuilder(const Workload& workload, const RingShape& shape)
      : workload_(workload), shape_(shape), slices_(shape.head_parallel), first_(slices_ > 1) {
    stages_.resize(index(first_ + workload.context / slices_ + 1));
  }

  std::vector<Stage> stages() {
    for (Ring& ring : shape_.by_document ? rings_of_documents() : rings_of_groups()) add(ring);
    // With narrow masks nothing moves and nothing runs in some steps.
    std::erase_if(stages_, [](const Stage& s) { return s.moves.empty() && s.tasks.empty(); });
    if (stages_.empty()) stages_.emplace_back();
    for (Stage& stage : stages_) sort_stage(stage);
    return std::move(stages_);
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  /// One ring for every context group.
  std::vector<Ring> rings_of_groups() const {
    const int positions = workload_.context / slices_;
    std::vector<Ring> rings(index(workload_.ranks / workload_.context));
    for (std::size_t group = 0; group < rings.size(); ++group) {
      for (int i = 0; i < positions; ++i) {
        rings[group].emplace_back().first =
            static_cast<int>(group) * workload_.context + i * slices_;
      }
    }
    for (const Home& home : workload_.homes) {
      const int in_group = home.rank % workload_.context;
      add_home(rings[index(home.rank / workload_.context)][index(in_group / slices_)], home);
    }
    return rings;
  }

  /// One ring for all documents on the same positions.
  std::vector<Ring> rings_of_documents() const {
    std::vector<std::vector<Home>> homes(workload_.lengths.size());
    for (const Home& home : workload_.homes) homes[index(home.document)].push_back(home);
    std::map<std::vector<Rank>, Ring> rings;
    for (const std::vector<Home>& of_document : homes) {
      std::set<Rank> firsts;
      for (const Home& home : of_document) firsts.insert(home.rank / slices_ * slices_);
      const std::vector<Rank> members(firsts.begin(), firsts.end());
      Ring& ring = rings[members];
      ring.resize(members.size());
      for (std::size_t i = 0; i < members.size(); ++i) ring[i].first = members[i];
      for (const Home& home : of_document) {
        const auto member = std::ranges::upper_bound(members, home.rank) - members.begin() - 1;
        add_home(ring[static_cast<std::size_t>(member)], home);
      }
    }
    std::vector<Ring> all;
    for (auto& [members, ring] : rings) all.push_back(std::move(ring));
    return all;
  }

  void add_home(Position& position, const Home& home) const {
    const Range own = intersect(home.tokens, workload_.queries_of(index(home.document)));
    if (!own.empty()) position.queries.push_back({home.rank, home.document, own});
    position.keys.push_back(home);
  }

  static std::vector<Home> joined(std::vector<Home> rows) {
    for (Home& row : rows) row.rank = 0;
    unite(rows);
    return rows;
  }

  void add(Ring& positions) {
    for (Position& position : positions) {
      position.all_queries = joined(position.queries);
      position.all_keys = joined(position.keys);
    }
    positions_ = static_cast<int>(positions.size());
    inner_ring_ = positions_ % shape_.inner_ring == 0 ? shape_.inner_ring : 1;
    const auto rank = [&](int position, int slice) {
      return positions[index(position)].first + slice;
    };
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

  /// Adds to the keys that a position reads at each step those that later positions get from it.
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

  // Positions as (node, place in the node): see ring_plan().
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

  /// Moves Q, K and V of a position to the rank of a head slice, and O and LSE back.
  /// @param keys  those of the position that some position reads
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

  /// Adds the tasks of a ring step for all slices of a position.
  /// @param first  the rank of the first slice
  /// @return the keys that the tasks read
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
                                    is_key_side(what) ? shape.key_heads(all) : all));
  }

  const Workload& workload_;
  RingShape shape_;
  int slices_;          // slices of the heads
  int first_;           // stage of ring step 0
  int positions_ = 1;   // positions of the ring that is added
  int inner_ring_ = 1;  // its positions per node
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

// Placements `ring`, `zigzag`, `striped`, `block_striped`, `double_ring` and `dynamic`: queries
// stay, keys and values go round the context group, or the ranks of it that have a part of their
// document. They differ only in the homes of tokens and workload.order
// (Ring Attention, arXiv 2310.01889; Striped Attention, arXiv 2311.09431). With inner rings, a rank
// sends as many keys as in one flat ring, but crosses nodes only in every inner_ring-th step
// (LoongTrain, arXiv 2406.18485; over stripes of blocks it is the ring of MTraining, arXiv
// 2510.18830).

Plan ring(const Workload& workload, std::int64_t inner_ring, bool by_document) {
  if (inner_ring < 1 || workload.context % inner_ring != 0) {
    fail(ExitCode::usage,
         "attention.inner_ring: found {}; valid: a divisor of parallel.context = {}", inner_ring,
         workload.context);
  }
  return ring_plan(workload, {1, static_cast<int>(inner_ring), by_document});
}

// Placement `ulysses` (DeepSpeed-Ulysses, arXiv 2309.14509): every rank of the context group
// computes its share of the heads for the whole sequence. Each rank gets the key-value heads that
// it reads, so some move to several ranks.

Plan ulysses(const Workload& workload) {
  if (workload.shape.heads % workload.context != 0) {
    fail(ExitCode::usage,
         "parallel.context: found {} with placement ulysses; valid: a divisor of the {} heads, or "
         "placement ulysses_ring",
         workload.context, workload.shape.heads);
  }
  return ring_plan(workload, {workload.context, 1});
}

// Placement `ulysses_ring`: splits the heads over `head_parallel` neighbouring ranks, with a ring
// of such groups (USP, arXiv 2405.07719; the 2-D attention of LoongTrain, arXiv 2406.18485).

Plan ulysses_ring(const Workload& workload, std::int64_t head_parallel, bool by_document) {
  if (head_parallel < 1 || workload.context % head_parallel != 0 ||
      workload.shape.heads % head_parallel != 0) {
    fail(ExitCode::usage,
         "attention.head_parallel: found {}; valid: a divisor of parallel.context = {} and of the "
         "{} heads",
         head_parallel, workload.context, workload.shape.heads);
  }
  const int slices = static_cast<int>(head_parallel);
  return ring_plan(workload, {slices, workload.context / slices, by_document});
}

}  // namespace cadenza::plan
