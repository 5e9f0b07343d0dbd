// SPDX-License-Identifier: Apache-2.0
// Binds a plan to one rank: which rows of which buffer its tasks and messages use. Computed once
// per plan and used for all layers of its class.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cadenza/base/task_rows.hpp"
#include "cadenza/plan/plan.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::exec {

/// Rows of a buffer that hold tokens of one document. A "head row" is one head of one row: the unit
/// in which buffers of any number of heads are measured.
struct RowPiece {
  int document = 0;
  Range tokens;
  Range heads;           ///< query heads or key-value heads that its rows hold
  bool home = false;     ///< in the model's rows; otherwise in the server's workspace
  std::int64_t row = 0;  ///< first head row
  int arrives = -1;      ///< stage in which it arrives; -1: at home
};

/// Places of a rank's tokens among the rows of its microbatch: in the order of its homes, the
/// second half of ping-pong after the first, each half padded to a multiple of `align` rows.
struct HomeRows {
  std::vector<RowPiece> pieces;  ///< `row` counts rows of the microbatch, not head rows
  std::array<Range, 2> halves;   ///< rows of each; the second is empty without ping-pong
  std::int64_t rows() const { return std::max(halves[0].end, halves[1].end); }
};
HomeRows home_rows(const program::TickPlans& plans, Rank rank, int align);

/// Rows of one tensor inside a message.
struct Segment {
  plan::Tensor what = plan::Tensor::q;
  bool home = false;
  std::int64_t row = 0;  ///< first head row of the first row
  std::int64_t rows = 0;
  std::int64_t row_heads = 0;  ///< heads of a row where it lies
  Range heads;                 ///< the heads that travel
  std::int64_t offset = 0;     ///< first byte in the direction's buffer
};

/// A contiguous part of a peer's message: rows that were copied into the direction's buffer, or
/// rows where they lie.
struct MessagePart {
  Rank peer = 0;
  std::int64_t offset = 0;  ///< first byte in the direction's buffer
  std::int64_t bytes = 0;
  int in_place = -1;  ///< index of its rows in MessageSet::in_place; -1: in the buffer
};

/// The inputs or the results of a stage that this rank sends, or those that it receives.
struct MessageSet {
  std::vector<Segment> segments;   ///< that are copied
  std::vector<Segment> in_place;   ///< that are not
  std::vector<MessagePart> parts;  ///< peer by peer, in the order of their posts
  std::int64_t bytes = 0;          ///< of the buffer
  std::int64_t copied = 0;         ///< bytes of `segments`
  std::int64_t buffer = 0;         ///< first byte in the exchange's message memory
};

struct Direction {
  MessageSet sends;
  MessageSet receives;
};

struct StageBinding {
  Direction inputs;
  Direction results;
  Direction& of(bool is_results) { return is_results ? results : inputs; }
  std::vector<RowPiece> queries;  ///< buffers that the tasks read
  std::vector<RowPiece> keys;
  std::vector<Positions> positions;      ///< of `queries`
  std::vector<Positions> key_positions;  ///< of `keys`
  std::vector<TaskRows> tasks;
  double flops = 0;
};

struct Binding {
  HomeRows home;
  int half = 0;
  bool keeps_inputs = false;
  std::int64_t query_rows = 0;  ///< head rows of the workspace
  std::int64_t key_rows = 0;
  std::int64_t message_bytes = 0;
  std::vector<StageBinding> forward;
  std::vector<StageBinding> backward;
  const std::vector<StageBinding>& of(program::Pass pass) const {
    return pass == program::Pass::forward ? forward : backward;
  }
};

/// Elements of one head row of a tensor.
std::int64_t head_elements(const AttentionShape& shape, plan::Tensor what);

/// Heads of a row at home.
int home_heads(const AttentionShape& shape, plan::Tensor what);

/// Whether kernels only read the tensor (Q, K, V, dO). In an activation buffer, workspace or
/// message such a tensor has elements of the experiment's type; all others are sums in its
/// accumulator type.
bool is_input(plan::Tensor what);

/// Bytes of a server's workspace: Q, K and V `copies` times (where the server keeps them), all
/// other tensors once.
std::int64_t workspace_bytes(const AttentionShape& shape, std::int64_t query_rows,
                             std::int64_t key_rows, std::int64_t copies);

/// Memory that an exchange needs for all ticks of a step.
struct ExchangeNeeds {
  std::int64_t query_rows = 0;
  std::int64_t key_rows = 0;
  std::int64_t message_bytes = 0;
  std::size_t stages = 0;
  bool keeps_inputs = false;
  void add(const Binding& binding);
  /// Copies of Q, K and V in the workspace.
  /// @param kept  layers x activation buffers
  std::int64_t copies(std::int64_t kept) const { return keeps_inputs ? kept : 1; }
};

/// Binds the plans of one tick to one rank.
/// @param rank   as the plan counts ranks
/// @param align  a half has a multiple of so many rows: the size of the tensor group
Binding bind(const program::TickPlans& plans, Rank rank, int align);

}  // namespace cadenza::exec
