// SPDX-License-Identifier: Apache-2.0
// Times of operations outside core attention: computation on one rank, then the collectives of its
// tensor group; sums of gradients.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "cadenza/config/experiment.hpp"
#include "cadenza/program/operation_work.hpp"
#include "cadenza/program/program.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::simulate {

using program::TimedCollective;

struct DenseTime {
  double compute = 0;  ///< seconds
  double flops = 0;
  std::vector<TimedCollective> collectives;  ///< in the model's order
  double collective_seconds() const;
};

class Dense {
 public:
  Dense(const config::Experiment& experiment, const program::StepShape& step_shape,
        const Costs& costs);

  /// Returns the time of an operation. @param rows  tokens of the rank in the operation
  const DenseTime& time(const program::Instruction& instruction, Rank rank, std::int64_t rows);

  const program::OperationShapes& shapes() const { return shapes_; }

  /// A collective of a layer over the ranks that hold the same part; for `layer` -1, of all that is
  /// outside layers.
  struct Moved {
    double seconds = 0;
    std::int64_t bytes = 0;
  };
  Moved gradient_sum(Rank rank, int layer) const;
  /// The parameters of a layer, from the ranks that have shards of them.
  Moved gather_layer(Rank rank, int layer) const;
  /// Seconds to gather updated parameters from the ranks that own them.
  double gather_parameters(Rank rank) const;

 private:
  std::vector<TimedCollective> tensor_collectives(const program::Instruction& instruction,
                                                  Rank rank, std::int64_t rows) const;
  std::vector<Rank> tensor_group(Rank rank) const;
  std::vector<Rank> replicas(Rank rank) const;
  double elements(Rank rank, int layer) const;

  const config::Experiment& e_;
  const program::StepShape& step_shape_;
  const program::Layout& layout_;
  const Costs& costs_;
  program::OperationShapes shapes_;
  config::ElementBytes bytes_;
  /// By tensor group (whose links may be slow), operation, pass, recompute, rows.
  std::map<std::tuple<int, program::Operation, program::Pass, bool, std::int64_t>, DenseTime>
      known_;
  DenseTime optimizer_;  ///< of the instruction and rank of the last call
};

}  // namespace cadenza::simulate
