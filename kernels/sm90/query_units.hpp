// SPDX-License-Identifier: Apache-2.0
// Loads a segment (128 queries of one head under one rotation; in the backward pass also their dO),
// then tile after tile of the keys and values that they see.
#pragma once

#include "pipeline.hpp"

namespace cadenza::kernels::sm90 {

template <typename Layout, typename Thread>
class QueryUnitLoader : public Loader<Layout, Thread> {
  using Base = Loader<Layout, Thread>;
  using Base::problem_, Base::thread_;

 public:
  using Base::Base;

  CADENZA_DEVICE void run() {
    this->for_each_unit([this](int unit) { load_unit(unit); });
  }

 private:
  CADENZA_DEVICE void load_unit(int unit) {
    const Unit& of = problem_.units[unit];
    int last_entry = -1;
    int last_rotation = -1;
    for (KeyWalk walk(problem_, of); !walk.done();) {
      const int entry = walk.entry();
      const int row = walk.row();
      walk.advance();
      const int rotation = problem_.entries[entry].rotation;
      const bool begins = rotation != last_rotation;
      if (begins) load_queries(of, rotation);
      this->load_tile(
          [&](TileInfo& info) {
            const Entry& task = problem_.entries[entry];
            info.visible = visible_in(task, of.begin, task.k_begin + row);
            info.unit = unit;
            info.rotation = rotation;
            info.begins_segment = begins;
            info.ends_unit = walk.done();
            info.ends_segment = walk.done() || problem_.entries[walk.entry()].rotation != rotation;
          },
          [&](int array, int to, Barrier* full) {
            const TensorMap* map =
                problem_.entry_maps + entry * kEntryMaps + (array == 0 ? kEntryK : kEntryV);
            if (entry != last_entry) thread_.acquire(map);
            const Keys& buffer = problem_.keys[problem_.entries[entry].keys];
            this->template copy<kKeys>(to, map, full, of.kv_head - buffer.first_head, row);
          },
          [](int, Barrier*) {});
      last_entry = entry;
      last_rotation = rotation;
    }
  }

  CADENZA_DEVICE void load_queries(const Unit& of, int rotation) {
    this->load_segment([&](int array, int to, Barrier* full) {
      const Queries& buffer = problem_.queries[of.buffer];
      const TensorMap* map =
          array == 0 ? problem_.rotation_maps + rotation : problem_.dout_maps + of.buffer;
      const std::int64_t begin = array == 0 ? problem_.rotations[rotation].begin : 0;
      thread_.acquire(map);
      this->template copy<kUnitRows>(to, map, full, of.head_begin - buffer.first_head,
                                     static_cast<int>(of.begin - buffer.begin - begin));
    });
  }
};

}  // namespace cadenza::kernels::sm90
