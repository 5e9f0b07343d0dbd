// SPDX-License-Identifier: Apache-2.0
// A sparse call as arrays that the kernels for tensor cores read. Patterns go to the device as they
// are: runs of active blocks and rows of columns, from which walks find the tiles of a unit. So
// the arrays grow with the patterns, never with the number of tiles.
#pragma once

#include <vector>

#include "call.hpp"
#include "sparse_problem.hpp"

namespace cadenza::kernels::device {

/// Columns of a document and head in a buffer of keys, and the tasks that compute them.
struct GatheredKeys {
  int keys = 0;  ///< index of the buffer
  int head = 0;
  int first_column = 0;
  int columns = 0;
  int column_bits = 0;
  std::vector<int> tasks;
};

struct SparseCall {
  Call call;
  std::vector<Pattern> patterns;
  std::vector<int> columns;
  std::vector<std::uint64_t> column_bits;
  std::vector<int> edges;
  std::vector<int> first_runs;
  std::vector<BlockRun> runs;
  std::vector<ColumnSum> sums;  ///< backward pass
  std::vector<int> summed;
  std::vector<GatheredKeys> gathered;  ///< in the order of the tasks, then heads

  /// Floats of the gradients of gathered keys.
  std::int64_t gradient_elements(int head_dim) const { return std::ssize(columns) * 2 * head_dim; }
};

/// @param list  tasks of documents with a pattern
SparseCall make_sparse_call(Pass pass, const AttentionShape& shape,
                            const RotaryTable<float>& rotary, const TaskList<bfloat16>& list);

/// Returns units of `rows` rows. Side::keys: units of gathered columns, of one query head each,
/// then of neighbouring keys.
UnitList sparse_units(const SparseCall& made, const AttentionShape& shape,
                      const TaskList<bfloat16>& list, Side side, int rows);

/// Adds the pairs that a pass computes to list.pairs.
void count_pairs(const SparseCall& made, const TaskList<bfloat16>& list);

/// The arrays in memory of the kernels (see KeptArray).
template <typename Memory>
class SparseArrays {
 public:
  /// @param made       with memory for its rotated queries
  /// @param gradients  memory for gradient_elements(), zeros; null in the forward pass
  SparseArrays(const Memory& memory, const SparseCall& made, float* gradients) : memory_(memory) {
    static_cast<Problem&>(problem_) = made.call.problem;
    place(queries_, made.call.queries, problem_.queries);
    place(keys_, made.call.keys, problem_.keys);
    place(rotations_, made.call.rotations, problem_.rotations);
    place(entries_, made.call.entries, problem_.entries);
    place(patterns_, made.patterns, problem_.patterns);
    place(columns_, made.columns, problem_.columns);
    place(column_bits_, made.column_bits, problem_.column_bits);
    place(edges_, made.edges, problem_.edges);
    place(first_runs_, made.first_runs, problem_.first_runs);
    place(runs_, made.runs, problem_.runs);
    place(sums_, made.sums, problem_.sums);
    place(summed_, made.summed, problem_.summed);
    problem_.column_gradients = gradients;
  }

  /// Returns the problem of units, until the next ones.
  const SparseProblem& problem(const UnitList& units) {
    place(units_, units.units, problem_.units);
    place(order_, units.entries, problem_.order);
    return problem_;
  }
  const SparseProblem& problem() const { return problem_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  template <typename T>
  using Array = typename Memory::template Array<T>;

  template <typename T>
  void place(Array<T>& array, const std::vector<T>& items, const T*& in_problem) {
    array = memory_.template allocate<T>(items.size());
    memory_.copy(array, items);
    in_problem = array.data();
    bytes_ += static_cast<std::int64_t>(items.size() * sizeof(T));
  }

  Memory memory_;
  SparseProblem problem_;
  std::int64_t bytes_ = 0;  ///< copied so far
  Array<Queries> queries_;
  Array<Keys> keys_;
  Array<Rotation> rotations_;
  Array<Entry> entries_;
  Array<Pattern> patterns_;
  Array<int> columns_, edges_, first_runs_, summed_, order_;
  Array<std::uint64_t> column_bits_;
  Array<BlockRun> runs_;
  Array<ColumnSum> sums_;
  Array<Unit> units_;
};

}  // namespace cadenza::kernels::device
