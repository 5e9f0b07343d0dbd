// SPDX-License-Identifier: Apache-2.0
// Units own every (row, head) of their side once and contain exactly the tasks that touch it.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

#include "../../../kernels/tasks/work_units.hpp"

namespace cadenza::kernels {
namespace {

using Cell = std::tuple<int, std::int64_t, std::int64_t, int>;  // buffer, token, head, task

/// Pairs of `task` for one row of a side.
std::int64_t pairs_of_row(const Task& task, Side side, std::int64_t token) {
  const Range row{token, token + 1};
  return side == Side::queries ? allowed_pairs(row, task.k, task.band)
                               : allowed_pairs(task.q, row, task.band);
}

std::map<Cell, int> wanted(const std::vector<TaskRows>& tasks, Side side) {
  std::map<Cell, int> cells;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const Task& task = tasks[t].task;
    const Range span = side == Side::queries ? task.q : task.k;
    const int buffer = side == Side::queries ? tasks[t].query_rows : tasks[t].key_rows;
    for (std::int64_t token = span.begin; token < span.end; ++token) {
      if (pairs_of_row(task, side, token) == 0) continue;
      for (std::int64_t head = task.heads.begin; head < task.heads.end; ++head) {
        cells[{buffer, token, head, static_cast<int>(t)}] = 1;
      }
    }
  }
  return cells;
}

std::map<Cell, int> given(const UnitList& list, const std::vector<TaskRows>& tasks, Side side) {
  std::map<Cell, int> cells;
  for (const Unit& unit : list.units) {
    for (int e = unit.first_entry; e < unit.last_entry; ++e) {
      const int t = list.entries[static_cast<std::size_t>(e)];
      const Task& task = tasks[static_cast<std::size_t>(t)].task;
      const Range rows = intersect(side == Side::queries ? task.q : task.k, {unit.begin, unit.end});
      const Range heads = intersect(task.heads, {unit.head_begin, unit.head_end});
      for (std::int64_t token = rows.begin; token < rows.end; ++token) {
        if (pairs_of_row(task, side, token) == 0) continue;
        for (std::int64_t head = heads.begin; head < heads.end; ++head)
          ++cells[{unit.buffer, token, head, t}];
      }
    }
  }
  return cells;
}

std::int64_t cost(const Unit& unit, const UnitList& list, const std::vector<TaskRows>& tasks,
                  Side side) {
  std::int64_t total = 0;
  for (int e = unit.first_entry; e < unit.last_entry; ++e) {
    const Task& task =
        tasks[static_cast<std::size_t>(list.entries[static_cast<std::size_t>(e)])].task;
    const Range rows = intersect(side == Side::queries ? task.q : task.k, {unit.begin, unit.end});
    const Range heads = intersect(task.heads, {unit.head_begin, unit.head_end});
    total += heads.size() * (side == Side::queries ? allowed_pairs(rows, task.k, task.band)
                                                   : allowed_pairs(task.q, rows, task.band));
  }
  return total;
}

Range random_part(Range whole, std::mt19937& random) {
  std::uniform_int_distribution<std::int64_t> at(whole.begin, whole.end);
  const std::int64_t a = at(random), b = at(random);
  return {std::min(a, b), std::max(a, b)};
}

/// Any of all keys, those up to a diagonal at most `reach` away, and those between two.
Band random_band(std::int64_t reach, std::mt19937& random) {
  if (random() % 3 == 0) return Band::full();
  std::uniform_int_distribution<std::int64_t> at(-reach, reach);
  Band band = Band::causal(at(random));
  if (random() % 2 == 0) band.low = band.high - static_cast<std::int64_t>(random() % 60);
  return band;
}

TEST(WorkUnits, CoverEveryTaskOnceLongestFirst) {
  std::mt19937 random(1);
  const std::vector<Range> query_buffers = {{-17, 20}, {40, 41}, {100, 180}};
  const std::vector<Range> key_buffers = {{0, 50}, {90, 170}};
  for (int round = 0; round < 30; ++round) {
    const AttentionShape shape = round % 2 == 0 ? AttentionShape{6, 2, 8} : AttentionShape{5, 1, 8};
    std::vector<TaskRows> tasks;
    for (int t = 0; t < 12; ++t) {
      TaskRows entry;
      entry.query_rows = static_cast<int>(random() % query_buffers.size());
      entry.key_rows = static_cast<int>(random() % key_buffers.size());
      entry.task = {
          0, random_part(query_buffers[static_cast<std::size_t>(entry.query_rows)], random),
          random_part(key_buffers[static_cast<std::size_t>(entry.key_rows)], random),
          random_part({0, shape.heads}, random), random_band(round % 3 == 0 ? 0 : 100, random)};
      tasks.push_back(entry);
    }
    for (const Side side : {Side::queries, Side::keys}) {
      const UnitList list =
          make_units(shape, side == Side::queries ? query_buffers : key_buffers, tasks,
                     {side, 16, side == Side::queries ? 2 : shape.group()});
      EXPECT_EQ(given(list, tasks, side), wanted(tasks, side));
      std::map<std::tuple<int, std::int64_t, int>, int> owners;  // buffer, tile, head
      std::int64_t before = std::numeric_limits<std::int64_t>::max();
      for (const Unit& unit : list.units) {
        EXPECT_EQ(unit.head_begin / shape.group(), unit.kv_head);
        EXPECT_EQ((unit.head_end - 1) / shape.group(), unit.kv_head);
        for (int h = unit.head_begin; h < unit.head_end; ++h) {
          EXPECT_EQ(++owners[std::tuple(unit.buffer, unit.begin, h)], 1);
        }
        const std::int64_t now = cost(unit, list, tasks, side);
        EXPECT_LE(now, before);
        EXPECT_GT(now, 0);
        before = now;
      }
    }
  }
}

}  // namespace
}  // namespace cadenza::kernels
