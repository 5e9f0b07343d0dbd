// SPDX-License-Identifier: Apache-2.0
// Backward of dynamic sparse attention, in two passes. In the first, a unit owns a tile of keys and
// visits the queries that see blocks of it; in the second, it owns a longer range of keys and
// visits the queries that see its columns. Pairs are split as in sparse_forward.cpp.
//
// A unit works on one gathered tile of keys after another: the keys of a head's active blocks
// without its columns, the keys of the tile with the causal mask, or columns. dK and dV are summed
// in scratch and added to the gathered rows; dQ is added in the order of the units
// (ordered_accumulation.hpp).
#include <atomic>
#include <cmath>
#include <mutex>
#include <numeric>
#include <span>

#include "../tasks/work_units.hpp"
#include "attention.hpp"
#include "backward_tiles.hpp"
#include "gathered_rows.hpp"
#include "ordered_accumulation.hpp"
#include "progress.hpp"
#include "thread_state.hpp"

namespace cadenza::kernels::cpu {
namespace {

/// Keys that are contiguous in a tile of scratch.
struct KeySet {
  int head;                          ///< head of the queries that see them
  std::vector<std::int64_t> tokens;  ///< ascending
};

/// Queries of one row of blocks in one tile, and the keys of a set that they see.
struct SparseVisit {
  int set;  ///< index of the unit's set
  const TaskRows* entry;
  Range tile;     ///< tokens
  Range queries;  ///< tokens
  Range keys;     ///< rows of the set
  bool causal;    ///< masked by the task's band; otherwise all keys are seen
  std::size_t slot;
  std::uint32_t ticket;
};

struct UnitWork {
  std::vector<KeySet> sets;
  std::vector<SparseVisit> visits;
};

enum class Keys { blocks, columns };

template <typename Real>
class SparseBackward {
 public:
  SparseBackward(Keys what, const TileKernels& kernels, const AttentionShape& shape,
                 const RotaryTable<float>& rotary, const TaskList<Real>& list,
                 const UnitList& units)
      : what_(what),
        kernels_(kernels),
        rows_(shape, rotary),
        dim_(shape.head_dim),
        scale_(static_cast<float>(1.0 / std::sqrt(double(shape.head_dim)))),
        list_(list),
        units_(units),
        tile_(kernels.gradient_queries),
        most_keys_(kernels.gradient_keys),
        slots_(buffer_tokens(list, Side::queries), kernels.gradient_queries, shape.heads),
        turns_(slots_.size()),
        progress_(list.progress) {}

  struct Plan {
    BackwardScratch tiles;
    float* keys;    ///< [K, D] of Real
    float* values;  ///< [K, D] of Real
    float* dk;      ///< [K, D]
    float* dv;      ///< [K, D]
  };
  Plan plan(Scratch& scratch) const {
    Plan plan{plan_backward(scratch, kernels_, dim_), nullptr, nullptr, nullptr, nullptr};
    for (float** room : {&plan.keys, &plan.values, &plan.dk, &plan.dv}) {
      *room = scratch.take(most_keys_ * dim_);
    }
    return plan;
  }

  void run(Scratch scratch) {
    const ThreadState state(kernels_);
    const Plan room = plan(scratch);
    UnitWork work;
    for (;;) {
      const Unit* unit = claim(work);
      if (unit == nullptr) return;
      run_unit(*unit, work, room);
    }
  }

 private:
  const Unit* claim(UnitWork& work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (next_ >= units_.units.size()) return nullptr;
    const Unit& unit = units_.units[next_++];
    work.sets.clear();
    work.visits.clear();
    for (int head = unit.head_begin; head < unit.head_end; ++head) {
      for (int at = unit.first_entry; at < unit.last_entry; ++at) {
        const int task = units_.entries[static_cast<std::size_t>(at)];
        const TaskRows& entry = list_.tasks[static_cast<std::size_t>(task)];
        if (head < entry.task.heads.begin || head >= entry.task.heads.end) continue;
        what_ == Keys::blocks ? add_blocks(unit, entry, head, work)
                              : add_columns(unit, entry, head, work);
      }
    }
    return &unit;
  }

  const SparsePattern& pattern_of(const TaskRows& entry, int head) const {
    return *list_.index->of(entry.task.document, head);
  }
  const KeyRows<Real>& keys_of(const TaskRows& entry) const {
    return list_.keys[static_cast<std::size_t>(entry.key_rows)];
  }
  const QueryRows<Real>& queries_of(const TaskRows& entry) const {
    return list_.queries[static_cast<std::size_t>(entry.query_rows)];
  }

  QueryTile<Real> tile_of(const KeySet& set, const SparseVisit& visit) const {
    return {queries_of(*visit.entry), visit.tile, set.head, visit.entry->task.q_positions};
  }

  /// A block of keys in the set of keys without columns.
  struct BlockRows {
    std::int64_t column;  ///< column of blocks
    Range rows;
  };

  void add_blocks(const Unit& unit, const TaskRows& entry, int head, UnitWork& work) {
    const SparsePattern& pattern = pattern_of(entry, head);
    const KeyRows<Real>& buffer = keys_of(entry);
    const QueryRows<Real>& queries = queries_of(entry);
    const Range keys = intersect(entry.task.k, {unit.begin, unit.end});
    if (keys.empty() || entry.task.q.empty()) return;
    KeySet without_columns{head, {}};
    std::vector<BlockRows> blocks;
    const std::int64_t block = pattern.block();
    for_each_strip(buffer, keys, block, [&](Strip part) {
      const auto first = std::ssize(without_columns.tokens);
      add_keys_without_columns(buffer, part.tokens, pattern, without_columns.tokens);
      blocks.push_back({part.row, {first, std::ssize(without_columns.tokens)}});
    });
    const int set = static_cast<int>(work.sets.size());
    const bool no_columns = std::ssize(without_columns.tokens) == keys.size();
    work.sets.push_back(std::move(without_columns));
    for_each_strip(queries, entry.task.q, block, [&](Strip strip) {
      add_active(entry, head, set, strip, pattern, blocks, work);
    });
    // A row's own block includes its columns: without columns, the two sets are the same.
    if (!no_columns) {
      std::vector<std::int64_t> all(static_cast<std::size_t>(keys.size()));
      std::iota(all.begin(), all.end(), keys.begin);
      work.sets.push_back({head, std::move(all)});
    }
    for_each_strip(buffer, keys, block, [&](Strip part) {
      const Range row =
          tokens_in(queries, entry.task.q, {part.row * block, (part.row + 1) * block});
      const Range seeing = seeing_queries(row, part.tokens, entry.task.band);
      if (seeing.empty()) return;
      const Range rows{part.tokens.begin - keys.begin, part.tokens.end - keys.begin};
      add_visits(entry, head, no_columns ? set : set + 1, seeing, rows, true, work);
    });
  }

  /// Adds visits of the active blocks before a row's own, in as few ranges as possible.
  void add_active(const TaskRows& entry, int head, int set, Strip strip,
                  const SparsePattern& pattern, const std::vector<BlockRows>& blocks,
                  UnitWork& work) {
    Range rows;
    for (const BlockRows& part : blocks) {
      if (part.column >= strip.row) break;
      const bool in = pattern.active(strip.row, part.column);
      if (in) rows = {rows.empty() ? part.rows.begin : rows.begin, part.rows.end};
      if (in || rows.empty()) continue;
      add_visits(entry, head, set, strip.tokens, rows, false, work);
      rows = {};
    }
    if (!rows.empty()) add_visits(entry, head, set, strip.tokens, rows, false, work);
  }

  void add_columns(const Unit& unit, const TaskRows& entry, int head, UnitWork& work) {
    const SparsePattern& pattern = pattern_of(entry, head);
    const KeyRows<Real>& buffer = keys_of(entry);
    const Range keys = intersect(entry.task.k, {unit.begin, unit.end});
    const std::vector<std::int64_t> columns = column_tokens(buffer, keys, pattern);
    for (std::ptrdiff_t first = 0; first < std::ssize(columns); first += most_keys_) {
      const auto from = columns.begin() + first;
      const auto to = from + std::min<std::ptrdiff_t>(most_keys_, columns.end() - from);
      const int set = static_cast<int>(work.sets.size());
      work.sets.push_back({head, {from, to}});
      for_each_strip(queries_of(entry), entry.task.q, pattern.block(), [&](Strip strip) {
        const std::int64_t own = strip.row * pattern.block();
        const auto later = std::partition_point(
            from, to, [&](std::int64_t token) { return position_of(buffer, token) < own; });
        if (later > from) {
          add_visits(entry, head, set, strip.tokens, {0, later - from}, false, work);
        }
      });
    }
  }

  /// Adds one visit for every tile that contains some of `queries`.
  void add_visits(const TaskRows& entry, int head, int set, Range queries, Range keys, bool causal,
                  UnitWork& work) {
    const Range buffer = queries_of(entry).tokens;
    const std::int64_t last = (queries.end - 1 - buffer.begin) / tile_;
    for (std::int64_t index = (queries.begin - buffer.begin) / tile_; index <= last; ++index) {
      const std::int64_t begin = buffer.begin + index * tile_;
      const Range tile{begin, std::min(buffer.end, begin + tile_)};
      const std::size_t slot = slots_.of(entry.query_rows, index, head);
      work.visits.push_back(
          {set, &entry, tile, intersect(queries, tile), keys, causal, slot, turns_.draw(slot)});
    }
  }

  void run_unit(const Unit& unit, const UnitWork& work, const Plan& room) {
    for (std::size_t first = 0, last = 0; first < work.visits.size(); first = last) {
      const int set = work.visits[first].set;
      while (last < work.visits.size() && work.visits[last].set == set) ++last;
      run_set(unit, work.sets[static_cast<std::size_t>(set)],
              std::span(work.visits).subspan(first, last - first), room);
    }
  }

  void run_set(const Unit& unit, const KeySet& set, std::span<const SparseVisit> visits,
               const Plan& room) {
    const KeyRows<Real>& buffer = list_.keys[static_cast<std::size_t>(unit.buffer)];
    const std::int64_t sums = most_keys_ * dim_;
    const auto gathered = [&](const Real* data, float* to) {
      return gather(rows_, buffer, data, set.tokens, unit.kv_head, dim_, to);
    };
    kernels_.backward_load_keys(room.tiles.keys, room.tiles.rows, dim_,
                                gathered(buffer.k, room.keys), gathered(buffer.v, room.values));
    for (std::size_t first = 0; first < visits.size(); first += kTilesPerSum) {
      std::fill_n(room.tiles.keys.dk, sums, 0.0f);
      std::fill_n(room.tiles.keys.dv, sums, 0.0f);
      const std::size_t last = std::min(visits.size(), first + kTilesPerSum);
      for (std::size_t i = first; i < last; ++i) {
        const SparseVisit& visit = visits[i];
        add_pair(set, visit, room);
        turns_.wait(visit.slot, visit.ticket);
        add_query_gradient(kernels_, rows_, dim_, scale_, tile_of(set, visit), visit.queries,
                           room.tiles.queries);
        turns_.finish(visit.slot, visit.ticket);
        progress_.step();
      }
      add_key_gradients(unit, set, room);
    }
  }

  void add_pair(const KeySet& set, const SparseVisit& visit, const Plan& room) const {
    load_queries(kernels_, rows_, dim_, tile_of(set, visit), room.tiles.queries);
    kernels_.backward_step(room.tiles.keys, room.tiles.queries, dim_, scale_,
                           visible_to(set, visit), {});
    if (list_.pairs == nullptr) return;
    const std::int64_t first = set.tokens.front();
    const Range keys{first + visit.keys.begin, first + visit.keys.end};
    const std::int64_t pairs = visit.causal
                                   ? allowed_pairs(visit.queries, keys, visit.entry->task.band)
                                   : visit.queries.size() * visit.keys.size();
    std::atomic_ref(list_.pairs[list_.index->place(visit.entry->task.document, set.head)])
        .fetch_add(pairs, std::memory_order_relaxed);
  }

  static Visible visible_to(const KeySet& set, const SparseVisit& visit) {
    const std::int64_t first = set.tokens.front();
    Visible visible;
    if (visit.causal) {  // such a set has contiguous tokens
      visible = visible_keys_of(visit.entry->task, visit.queries, visit.tile.begin,
                                {first, first + visit.keys.end});
    } else {
      visible.first = static_cast<int>(visit.queries.begin - visit.tile.begin);
      visible.last = static_cast<int>(visit.queries.end - visit.tile.begin);
      visible.keys = static_cast<int>(visit.keys.end);
      visible.low = -Band::kNoEdge;
      visible.high = Band::kNoEdge;
    }
    visible.skipped = static_cast<int>(visit.keys.begin);
    return visible;
  }

  /// Adds dK and dV, through separate rows if the set's keys are not contiguous in memory.
  void add_key_gradients(const Unit& unit, const KeySet& set, const Plan& room) const {
    const KeyRows<Real>& buffer = list_.keys[static_cast<std::size_t>(unit.buffer)];
    const Range all{set.tokens.front(), set.tokens.back() + 1};
    const SumRows dk = rows_.sums_of_head(buffer, buffer.dk, all, unit.kv_head);
    const SumRows dv = rows_.sums_of_head(buffer, buffer.dv, all, unit.kv_head);
    const int count = static_cast<int>(set.tokens.size());
    if (count == all.size()) {
      kernels_.backward_end(room.tiles.keys, dim_, scale_, dk, dv);
      return;
    }
    std::fill_n(room.dk, count * dim_, 0.0f);
    std::fill_n(room.dv, count * dim_, 0.0f);
    kernels_.backward_end(room.tiles.keys, dim_, scale_, {room.dk, dim_, count},
                          {room.dv, dim_, count});
    for (int i = 0; i < count; ++i) {
      const std::int64_t row = set.tokens[static_cast<std::size_t>(i)] - all.begin;
      for (int d = 0; d < dim_; ++d) {
        dk.data[row * dk.stride + d] += room.dk[i * dim_ + d];
        dv.data[row * dv.stride + d] += room.dv[i * dim_ + d];
      }
    }
  }

  Keys what_;
  const TileKernels& kernels_;
  HeadRows rows_;
  int dim_;
  float scale_;
  const TaskList<Real>& list_;
  const UnitList& units_;
  std::int64_t tile_;       ///< queries in a tile
  std::int64_t most_keys_;  ///< keys in a set
  Slots slots_;
  OrderedAccumulation turns_;
  Progress progress_;
  std::mutex mutex_;
  std::size_t next_ = 0;
};

/// Number of keys of a unit of columns: enough that the columns fill tiles, few enough that many
/// threads have work. It does not depend on the number of threads, and so neither do the bits of
/// sums.
template <typename Real>
int column_range(const TaskList<Real>& list, int kv_heads, int tile) {
  std::int64_t keys = 0;
  for (const KeyRows<Real>& rows : list.keys) keys += rows.tokens.size() * kv_heads;
  constexpr std::int64_t kUnits = 16, kTiles = 32;
  return static_cast<int>(
      std::clamp<std::int64_t>(keys / kUnits / tile * tile, tile, kTiles * tile));
}

}  // namespace

template <typename Real>
void sparse_backward(const TileKernels& kernels, const AttentionShape& shape,
                     const RotaryTable<float>& rotary, const TaskList<Real>& list,
                     int most_threads) {
  const int columns = column_range(list, shape.kv_heads, kernels.gradient_keys);
  for (const Keys what : {Keys::blocks, Keys::columns}) {
    const int keys = what == Keys::blocks ? kernels.gradient_keys : columns;
    const UnitList units = make_units(shape, list, {Side::keys, keys, shape.group()});
    SparseBackward<Real> backward(what, kernels, shape, rotary, list, units);
    run_pass("sparse_backward", backward, units.units.size(), most_threads);
  }
}

template void sparse_backward<float>(const TileKernels&, const AttentionShape&,
                                     const RotaryTable<float>&, const TaskList<float>&, int);
template void sparse_backward<bfloat16>(const TileKernels&, const AttentionShape&,
                                        const RotaryTable<float>&, const TaskList<bfloat16>&, int);

}  // namespace cadenza::kernels::cpu
