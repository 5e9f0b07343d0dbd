// SPDX-License-Identifier: Apache-2.0
// A plan bound to one rank: which rows of which buffer its tasks and messages use. Worked out once
// per tick and used for every layer.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cadenza/kernels/attention.hpp"
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
  int arrives = -1;      ///< stage that brings it; -1: at home
};

/// Where a rank's tokens are among the rows of its microbatch: in the order of its homes, the
/// second half of ping-pong after the first, each padded to a multiple of `align` rows.
struct HomeRows {
  std::vector<RowPiece> pieces;  ///< `row` counts rows here, not head rows
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
  Range heads;                 ///< those of them that travel
  std::int64_t offset = 0;     ///< first byte in the direction's buffer
};

/// One peer's part of a buffer: contiguous, one message.
struct Message {
  Rank peer = 0;
  std::int64_t offset = 0;  ///< first byte in the direction's buffer
  std::int64_t bytes = 0;
};

/// Inputs or results of a stage, in one direction on this rank.
struct MessageSet {
  std::vector<Segment> segments;
  std::vector<Message> messages;
  std::int64_t bytes = 0;
  std::int64_t buffer = 0;  ///< first byte in the exchange's message memory
};

struct Direction {
  MessageSet sends;
  MessageSet receives;
};

struct StageBinding {
  Direction inputs;
  Direction results;
  Direction& of(bool is_results) { return is_results ? results : inputs; }
  std::vector<RowPiece> queries;  ///< buffers that its tasks read
  std::vector<RowPiece> keys;
  std::vector<kernels::Positions> positions;      ///< of `queries`
  std::vector<kernels::Positions> key_positions;  ///< of `keys`
  std::vector<kernels::TaskRows> tasks;
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
std::int64_t head_elements(const plan::AttentionShape& shape, plan::Tensor what);

/// Heads of a row at home.
int home_heads(const plan::AttentionShape& shape, plan::Tensor what);

/// Q, K, V, dO: what kernels read and no one adds to. In an activation buffer, workspace or message
/// their elements are of the experiment's type, all others are sums of its accumulator's.
bool is_input(plan::Tensor what);

/// Bytes of a server's workspace: `copies` of Q, K and V where it keeps them, one of all else.
std::int64_t workspace_bytes(const plan::AttentionShape& shape, std::int64_t query_rows,
                             std::int64_t key_rows, std::int64_t copies);

/// What an exchange must make room for over the ticks of a step.
struct ExchangeNeeds {
  std::int64_t query_rows = 0;
  std::int64_t key_rows = 0;
  std::int64_t message_bytes = 0;
  std::int64_t copies = 1;  ///< of Q, K and V in the workspace
  std::size_t stages = 0;
  /// @param kept  layers x activation buffers whose inputs a server keeps, where the plan says so
  void add(const Binding& binding, std::int64_t kept);
};

/// @param rank   as the plan counts ranks
/// @param align  rows of a half are a multiple of it: the size of the tensor group
Binding bind(const program::TickPlans& plans, Rank rank, int align);

}  // namespace cadenza::exec
