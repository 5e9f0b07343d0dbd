// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/binding.hpp"

#include <algorithm>
#include <map>

#include "cadenza/base/error.hpp"

namespace cadenza::exec {
namespace {

using plan::Move;
using plan::Tensor;

/// Homes of `rank`, one after another in the rank's rows.
std::vector<RowPiece> home_pieces(const plan::Workload& workload, Rank rank) {
  std::vector<RowPiece> pieces;
  std::int64_t row = 0;
  for (const plan::Home& home : workload.homes) {
    if (home.rank != rank) continue;
    pieces.push_back({home.document, home.tokens, row});
    row += home.tokens.size();
  }
  return pieces;
}

/// Workspace rows for everything of `what` that arrives: ranges of a document that touch are one
/// piece.
std::vector<RowPiece> arriving_pieces(const plan::Plan& forward, Rank rank, Tensor what,
                                      std::int64_t& rows) {
  std::map<int, std::vector<Range>> ranges;
  for (const plan::Stage& stage : forward.stages) {
    for (const Move& move : stage.moves) {
      if (move.to == rank && move.what == what) ranges[move.document].push_back(move.tokens);
    }
  }
  std::vector<RowPiece> pieces;
  rows = 0;
  for (auto& [document, list] : ranges) {
    std::ranges::sort(list, {}, &Range::begin);
    const std::size_t first = pieces.size();
    for (const Range& range : list) {
      if (pieces.size() > first && pieces.back().tokens.end >= range.begin) {
        pieces.back().tokens.end = std::max(pieces.back().tokens.end, range.end);
      } else {
        pieces.push_back({document, range, 0});
      }
    }
  }
  for (RowPiece& piece : pieces) {
    piece.row = rows;
    rows += piece.tokens.size();
  }
  return pieces;
}

const RowPiece* find_piece(const std::vector<RowPiece>& pieces, int document, Range tokens) {
  const auto found = std::ranges::find_if(pieces, [&](const RowPiece& piece) {
    return piece.document == document && piece.tokens.contains(tokens);
  });
  return found == pieces.end() ? nullptr : &*found;
}

class Binder {
 public:
  Binder(const plan::Plan& forward, Rank rank) : rank_(rank), shape_(forward.workload.shape) {
    binding_.homes = home_pieces(forward.workload, rank);
    binding_.query_pieces = arriving_pieces(forward, rank, Tensor::q, binding_.query_rows);
    binding_.key_pieces = arriving_pieces(forward, rank, Tensor::k, binding_.key_rows);
  }

  std::vector<StageBinding> bind_stages(const plan::Plan& plan) const {
    std::vector<StageBinding> stages;
    for (const plan::Stage& stage : plan.stages) {
      StageBinding bound;
      bound.sends = traffic(stage, &Move::from, &Move::to);
      bound.receives = traffic(stage, &Move::to, &Move::from);
      for (const plan::PlacedTask& placed : stage.tasks) {
        if (placed.server != rank_) continue;
        bound.tasks.push_back(task_rows(placed.task));
        bound.flops += placed.cost;
      }
      stages.push_back(std::move(bound));
    }
    return stages;
  }

  Binding finish(const program::TickPlans& plans) {
    binding_.forward = bind_stages(plans.forward);
    binding_.backward = bind_stages(plans.backward);
    return std::move(binding_);
  }

 private:
  /// Index of the buffer (homes first, then pieces) that holds `tokens`.
  int buffer_index(const std::vector<RowPiece>& pieces, int document, Range tokens) const {
    if (const RowPiece* home = find_piece(binding_.homes, document, tokens)) {
      return static_cast<int>(home - binding_.homes.data());
    }
    if (const RowPiece* piece = find_piece(pieces, document, tokens)) {
      return static_cast<int>(binding_.homes.size() +
                              static_cast<std::size_t>(piece - pieces.data()));
    }
    fail(ExitCode::communication, "rank {} holds no rows [{}, {}) of document {} for its task",
         rank_, tokens.begin, tokens.end, document);
  }

  kernels::TaskRows task_rows(const Task& task) const {
    return {task, buffer_index(binding_.query_pieces, task.document, task.q),
            buffer_index(binding_.key_pieces, task.document, task.k)};
  }

  /// This rank's end of a move: at home where the tokens live here, otherwise in the workspace.
  Segment segment(const Move& move) const {
    const RowPiece* piece = find_piece(binding_.homes, move.document, move.tokens);
    const bool home = piece != nullptr;
    if (!home) {
      piece = find_piece(plan::is_key_side(move.what) ? binding_.key_pieces : binding_.query_pieces,
                         move.document, move.tokens);
    }
    if (piece == nullptr) {
      fail(ExitCode::communication, "rank {} has no rows [{}, {}) of document {} for {}", rank_,
           move.tokens.begin, move.tokens.end, move.document, plan::name(move.what));
    }
    return {move.what, home, piece->row + move.tokens.begin - piece->tokens.begin,
            move.tokens.size(), 0};
  }

  /// This rank's moves in one direction, grouped by peer in rank order; inside a peer in plan
  /// order, which is the same on both ends.
  Traffic traffic(const plan::Stage& stage, Rank Move::*self, Rank Move::*peer) const {
    std::map<Rank, std::vector<Segment>> by_peer;
    for (const Move& move : stage.moves) {
      if (move.*self == rank_) by_peer[move.*peer].push_back(segment(move));
    }
    Traffic result;
    for (auto& [rank, segments] : by_peer) {
      Message message{rank, result.bytes, 0};
      for (Segment& part : segments) {
        part.offset = result.bytes;
        const int heads = plan::is_key_side(part.what) ? shape_.kv_heads : shape_.heads;
        result.bytes += plan::move_bytes(shape_, part.what, {0, part.rows}, {0, heads});
        result.segments.push_back(part);
      }
      message.bytes = result.bytes - message.offset;
      result.messages.push_back(message);
    }
    return result;
  }

  Rank rank_;
  plan::AttentionShape shape_;
  Binding binding_;
};

}  // namespace

std::int64_t row_elements(const plan::AttentionShape& shape, Tensor what) {
  const int heads = plan::is_key_side(what) ? shape.kv_heads : shape.heads;
  const bool scalar = what == Tensor::lse || what == Tensor::delta;
  return static_cast<std::int64_t>(heads) * (scalar ? 1 : shape.head_dim);
}

bool is_input(Tensor what) {
  return what == Tensor::q || what == Tensor::k || what == Tensor::v || what == Tensor::dout;
}

std::int64_t row_bytes(const plan::AttentionShape& shape, Tensor what) {
  return row_elements(shape, what) *
         (is_input(what) ? shape.element_bytes : shape.accumulator_bytes);
}

std::int64_t arriving_elements(const plan::AttentionShape& shape, const Binding& binding) {
  std::int64_t rows = 0;
  for (const StageBinding& stage : binding.forward) {
    for (const Segment& part : stage.receives.segments) {
      if (part.what == Tensor::o) rows = std::max(rows, part.rows);
    }
  }
  return rows * (row_elements(shape, Tensor::o) + row_elements(shape, Tensor::lse));
}

Binding bind(const program::TickPlans& plans, Rank rank) {
  return Binder(plans.forward, rank).finish(plans);
}

}  // namespace cadenza::exec
