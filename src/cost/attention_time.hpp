// SPDX-License-Identifier: Apache-2.0
// Seconds of an attention task: its tiles times the measured time of a tile in tasks of its shape.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cadenza/base/task.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/cost/product_time.hpp"

namespace cadenza::cost {

class AttentionTime {
 public:
  AttentionTime(const config::AttentionTimes& times, std::int64_t head_dim);

  double seconds(const Task& task, Pass pass);

  /// Seconds of a pair of one head in sparse blocks with sides of `block` tokens.
  /// @param adjoining  share of the blocks that adjoin others of their row
  double sparse_pair(std::int64_t block, double adjoining, Pass pass) const;

  /// Describes the tasks so far that the tables do not cover.
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
  Curve sparse_pairs_[2];     ///< by pass
  Curve adjoining_pairs_[2];  ///< the same where blocks adjoin
  Shape measured_[2];         ///< largest shape of the table, by pass
  Shape beyond_[2];           ///< largest task beyond it, by pass; 0: none
};

}  // namespace cadenza::cost
