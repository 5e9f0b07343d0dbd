// SPDX-License-Identifier: Apache-2.0
// Seconds of an attention task: tiles at the rate that was measured for tasks of that shape.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cadenza/base/pass.hpp"
#include "cadenza/base/task.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/cost/product_time.hpp"

namespace cadenza::cost {

class AttentionTime {
 public:
  AttentionTime(const config::AttentionTimes& times, std::int64_t head_dim);

  double seconds(const Task& task, Pass pass);

  /// Of a pair of one head in sparse blocks of that side.
  double sparse_pair(std::int64_t block, Pass pass) const;

  /// What of the tasks so far the tables do not cover.
  std::vector<std::string> extrapolations() const;

 private:
  /// Seconds of a tile of one head, by keys, for each number of queries.
  using Table = std::map<double, Curve>;
  struct Shape {
    double queries = 0;
    double keys = 0;
  };
  static std::size_t index(Pass pass) { return pass == Pass::forward ? 0 : 1; }
  Table make_table(const std::vector<config::Row<3>>& rows) const;
  double tile_seconds(Shape shape, Pass pass);
  double largest_tile_seconds(Pass pass) const;
  void note(Shape shape, Pass pass);

  config::AttentionTimes times_;
  std::int64_t head_dim_;
  Table tables_[2];
  Curve sparse_pairs_[2];
  Shape measured_[2];  ///< the largest of the table
  Shape beyond_[2];    ///< the largest task that is larger; 0: none
};

}  // namespace cadenza::cost
