// SPDX-License-Identifier: Apache-2.0
// A plan bound to one rank: which rows of which buffer its tasks and messages use. Worked out once
// per tick and used for every layer.
#pragma once

#include <cstdint>
#include <vector>

#include "cadenza/kernels/attention.hpp"
#include "cadenza/plan/plan.hpp"
#include "cadenza/program/program.hpp"

namespace cadenza::exec {

/// Rows of a buffer that hold tokens of one document.
struct RowPiece {
  int document = 0;
  Range tokens;
  std::int64_t row = 0;
};

/// Rows of one tensor inside a message. At home: in the model's rows; otherwise in the server's
/// workspace.
struct Segment {
  plan::Tensor what = plan::Tensor::q;
  bool home = false;
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t offset = 0;  ///< first byte in the stage's buffer
};

/// One peer's part of a stage's buffer: contiguous, one message.
struct Message {
  Rank peer = 0;
  std::int64_t offset = 0;  ///< first byte in the stage's buffer
  std::int64_t bytes = 0;
};

/// One direction of a stage on this rank.
struct Traffic {
  std::vector<Segment> segments;
  std::vector<Message> messages;
  std::int64_t bytes = 0;
};

struct StageBinding {
  Traffic sends;
  Traffic receives;
  std::vector<kernels::TaskRows> tasks;
  double flops = 0;
};

/// Buffers are numbered as kernels see them: first the homes, then the workspace pieces.
struct Binding {
  std::vector<RowPiece> homes;
  std::vector<RowPiece> query_pieces;
  std::vector<RowPiece> key_pieces;
  std::int64_t query_rows = 0;  ///< workspace rows
  std::int64_t key_rows = 0;
  std::vector<StageBinding> forward;
  std::vector<StageBinding> backward;
  const std::vector<StageBinding>& of(program::Pass pass) const {
    return pass == program::Pass::forward ? forward : backward;
  }
};

/// Elements of one row of a tensor, wherever it lies.
std::int64_t row_elements(const plan::AttentionShape& shape, plan::Tensor what);

/// Q, K, V, dO: what kernels read and no one adds to. In a slot or workspace their elements are of
/// the experiment's type, all others are sums of its accumulator's.
bool is_input(plan::Tensor what);

/// Bytes of one row of a tensor in a slot or workspace. In a message it has plan::move_bytes.
std::int64_t row_bytes(const plan::AttentionShape& shape, plan::Tensor what);

/// Elements of the longest O that arrives in one piece, with its LSE: what is widened at a time
/// where messages carry shorter elements than sums have.
std::int64_t arriving_elements(const plan::AttentionShape& shape, const Binding& binding);

Binding bind(const program::TickPlans& plans, Rank rank);

}  // namespace cadenza::exec
