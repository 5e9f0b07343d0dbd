// SPDX-License-Identifier: Apache-2.0
// Forward of dynamic sparse attention: a unit owns tiles of queries of one head and walks over the
// blocks of keys that some of its rows of blocks see, then over the columns.
//
// The keys that a row of blocks sees are split so that no step needs a mask of its own: the keys of
// active blocks before it without the columns, all columns before it, and its own block, which is
// causal.
#include <atomic>

#include "forward_tiles.hpp"
#include "gathered_rows.hpp"
#include "progress.hpp"
#include "thread_state.hpp"

namespace cadenza::kernels::cpu {
namespace {

constexpr std::int64_t kFarAway = Band::kNoEdge;

template <typename Real>
class SparseForward {
 public:
  SparseForward(const TileKernels& kernels, const AttentionShape& shape,
                const RotaryTable<float>& rotary, const TaskList<Real>& list, const UnitList& units)
      : tiles_(kernels, shape, rotary, list),
        list_(list),
        units_(units),
        progress_(list.progress),
        queue_(units) {}

  struct Plan {
    ForwardScratch tiles;
    float* keys;    ///< [kKeyTile, D] of Real
    float* values;  ///< [kKeyTile, D] of Real
  };
  Plan plan(Scratch& scratch) const {
    const std::int64_t words = std::int64_t{kKeyTile} * tiles_.dim();
    Plan plan{plan_forward(scratch, tiles_.kernels(), tiles_.dim()), nullptr, nullptr};
    plan.keys = scratch.take(words);
    plan.values = scratch.take(words);
    return plan;
  }

  void run(Scratch scratch) {
    const ThreadState state(tiles_.kernels());
    const Plan room = plan(scratch);
    while (const Unit* unit = queue_.next()) run_unit(*unit, room);
  }

 private:
  /// Queries of one row of blocks in one tile.
  struct Part {
    const ForwardHead* state;
    std::int64_t tile;  ///< first token of the tile
    Strip strip;
    bool sees = false;  ///< whether it sees the current block of keys
  };

  /// State of a task in a unit.
  struct Work {
    const TaskRows& entry;
    const SparsePattern& pattern;
    const KeyRows<Real>& keys;
    int kv_head;
    const Plan& room;
    std::vector<Part> parts;
    std::vector<std::int64_t> tokens;  ///< keys that wait for the next step
    std::int64_t pairs = 0;
  };

  void run_unit(const Unit& unit, const Plan& room) {
    tiles_.begin(unit, room.tiles);
    tiles_.load(unit, {}, room.tiles);
    for (int entry = unit.first_entry; entry < unit.last_entry; ++entry) {
      const int task = units_.entries[static_cast<std::size_t>(entry)];
      attend(unit, list_.tasks[static_cast<std::size_t>(task)], room);
    }
    tiles_.end(unit, room.tiles);
  }

  void attend(const Unit& unit, const TaskRows& entry, const Plan& room) {
    const int head = unit.head_begin;
    const SparsePattern* pattern = list_.index->of(entry.task.document, head);
    Work work{
        entry, *pattern, list_.keys[static_cast<std::size_t>(entry.key_rows)], unit.kv_head, room,
        {},    {}};
    tiles_.for_each(unit, room.tiles, [&](Range tile, int, const ForwardHead& state) {
      for_each_strip(tiles_.queries_of(unit), intersect(tile, entry.task.q), pattern->block(),
                     [&](Strip strip) {
                       work.parts.push_back({&state, tile.begin, strip});
                     });
    });
    if (work.parts.empty() || entry.task.k.empty()) return;
    add_blocks(work);
    add_columns(work);
    if (list_.pairs == nullptr) return;
    std::atomic_ref(list_.pairs[list_.index->place(entry.task.document, head)])
        .fetch_add(work.pairs, std::memory_order_relaxed);
  }

  /// Adds blocks of keys; blocks that the same parts see share a step.
  void add_blocks(Work& work) {
    const std::int64_t block = work.pattern.block();
    const Range text = position_range(work.keys, work.entry.task.k);
    const std::int64_t last = std::min((text.end - 1) / block, work.parts.back().strip.row);
    for (std::int64_t column = text.begin / block; column <= last; ++column) {
      const Range keys =
          tokens_in(work.keys, work.entry.task.k, {column * block, (column + 1) * block});
      if (keys.empty()) continue;
      if (!same_parts(work, column)) {
        step(work);
        for (Part& part : work.parts) part.sees = is_seen_before(work, part, column);
      }
      if (std::ranges::any_of(work.parts, &Part::sees)) {
        if (std::ssize(work.tokens) + keys.size() > kKeyTile) step(work);
        for (std::int64_t begin = keys.begin; begin < keys.end; begin += kKeyTile) {
          add_keys_without_columns(work.keys, {begin, std::min(keys.end, begin + kKeyTile)},
                                   work.pattern, work.tokens);
          if (keys.size() > kKeyTile) step(work);
        }
      }
      for (const Part& part : work.parts) {
        if (part.strip.row == column) add_own_block(work, part, keys);
      }
    }
    step(work);
  }

  static bool same_parts(const Work& work, std::int64_t column) {
    return std::ranges::all_of(work.parts, [&](const Part& part) {
      return part.sees == is_seen_before(work, part, column);
    });
  }

  /// Whether a column of blocks is active and lies before the part's own block.
  static bool is_seen_before(const Work& work, const Part& part, std::int64_t column) {
    return column < part.strip.row && work.pattern.active(part.strip.row, column);
  }

  /// Processes the waiting keys for the parts that see them, without a mask.
  void step(Work& work) {
    if (work.tokens.empty()) return;
    load(work, work.tokens);
    const int keys = static_cast<int>(work.tokens.size());
    for (const Part& part : work.parts) {
      if (part.sees) attend_all(work, part, keys);
    }
    work.tokens.clear();
    progress_.step();
  }

  void add_own_block(Work& work, const Part& part, Range block) {
    const Task& task = work.entry.task;
    for (std::int64_t begin = block.begin; begin < block.end; begin += kKeyTile) {
      const Range keys{begin, std::min(block.end, begin + kKeyTile)};
      const Range seen = seen_keys(part.strip.tokens, keys, task.band);
      if (seen.empty()) continue;
      step(work);  // waiting tokens go first: there is one tile of keys
      const HeadRows& rows = tiles_.rows();
      tiles_.kernels().forward_load(work.room.tiles.keys, tiles_.dim(),
                                    rows.of_head(work.keys, work.keys.k, keys, work.kv_head),
                                    rows.of_head(work.keys, work.keys.v, keys, work.kv_head));
      tiles_.kernels().forward_step(*part.state, work.room.tiles.keys, tiles_.dim(), tiles_.scale(),
                                    visible_keys_of(task, part.strip.tokens, part.tile, keys), {});
      work.pairs += allowed_pairs(part.strip.tokens, keys, task.band);
    }
  }

  void add_columns(Work& work) {
    const std::vector<std::int64_t> columns =
        column_tokens(work.keys, work.entry.task.k, work.pattern);
    for (std::size_t first = 0; first < columns.size(); first += kKeyTile) {
      const auto from = columns.begin() + static_cast<std::ptrdiff_t>(first);
      const auto count = std::min<std::ptrdiff_t>(kKeyTile, columns.end() - from);
      work.tokens.assign(from, from + count);
      if (before(work, work.parts.back()) == 0) break;
      load(work, work.tokens);
      for (const Part& part : work.parts) {
        if (const int keys = before(work, part); keys > 0) attend_all(work, part, keys);
      }
      progress_.step();
    }
    work.tokens.clear();
  }

  /// Number of the current columns that lie before the part's row of blocks.
  static int before(const Work& work, const Part& part) {
    const std::int64_t own = part.strip.row * work.pattern.block();
    const auto later = std::ranges::partition_point(
        work.tokens, [&](std::int64_t token) { return position_of(work.keys, token) < own; });
    return static_cast<int>(later - work.tokens.begin());
  }

  void load(const Work& work, const std::vector<std::int64_t>& tokens) const {
    const auto gathered = [&](const Real* data, float* room) {
      return gather(tiles_.rows(), work.keys, data, tokens, work.kv_head, tiles_.dim(), room);
    };
    tiles_.kernels().forward_load(work.room.tiles.keys, tiles_.dim(),
                                  gathered(work.keys.k, work.room.keys),
                                  gathered(work.keys.v, work.room.values));
  }

  void attend_all(Work& work, const Part& part, int keys) const {
    Visible visible;
    visible.first = static_cast<int>(part.strip.tokens.begin - part.tile);
    visible.last = static_cast<int>(part.strip.tokens.end - part.tile);
    visible.keys = keys;
    visible.low = -kFarAway;
    visible.high = kFarAway;
    tiles_.kernels().forward_step(*part.state, work.room.tiles.keys, tiles_.dim(), tiles_.scale(),
                                  visible, {});
    work.pairs += part.strip.tokens.size() * keys;
  }

  ForwardTiles<Real> tiles_;
  const TaskList<Real>& list_;
  const UnitList& units_;
  Progress progress_;
  UnitQueue queue_;
};

}  // namespace

template <typename Real>
void sparse_forward(const TileKernels& kernels, const AttentionShape& shape,
                    const RotaryTable<float>& rotary, const TaskList<Real>& list,
                    int most_threads) {
  // The tiles of a unit determine which keys a step takes together, and so the bits of sums: their
  // number must not depend on the number of threads.
  constexpr int kThreads = 8;
  const int tiles = tiles_per_unit(list, 1, shape.heads, kThreads);
  const UnitList units = make_units(shape, list, {Side::queries, tiles * kQueryTile, 1});
  SparseForward<Real> forward(kernels, shape, rotary, list, units);
  run_pass("sparse_forward", forward, units.units.size(), most_threads);
}

template void sparse_forward<float>(const TileKernels&, const AttentionShape&,
                                    const RotaryTable<float>&, const TaskList<float>&, int);
template void sparse_forward<bfloat16>(const TileKernels&, const AttentionShape&,
                                       const RotaryTable<float>&, const TaskList<bfloat16>&, int);

}  // namespace cadenza::kernels::cpu
