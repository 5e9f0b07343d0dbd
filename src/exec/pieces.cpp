// SPDX-License-Identifier: Apache-2.0
#include "pieces.hpp"

#include <tuple>

#include "arena.hpp"

namespace cadenza::exec {

using plan::Move;
using plan::Tensor;
using program::Pass;

Pieces::Pieces(const program::TickPlans& plans, Rank rank, const HomeRows& home, bool keys) {
  add_home(plans.forward.workload, home, keys);
  add_arriving(plans.forward, rank, keys ? Tensor::k : Tensor::q);
  std::ranges::sort(pieces_, [](const Held& a, const Held& b) {
    return std::tie(a.document, a.tokens.begin, a.heads.begin) <
           std::tie(b.document, b.tokens.begin, b.heads.begin);
  });
  note_uses(plans, Pass::forward, rank, keys);
  note_uses(plans, Pass::backward, rank, keys);
  place(plans.forward.keeps_inputs,
        static_cast<int>(std::max(plans.forward.stages.size(), plans.backward.stages.size())));
}

/// Queries are rotated by their positions, which rise evenly inside a run of a stripe only.
void Pieces::add_home(const plan::Workload& workload, const HomeRows& home, bool keys) {
  const int heads = keys ? workload.shape.kv_heads : workload.shape.heads;
  const plan::TokenOrder& order = workload.order;
  const bool in_runs = !keys && !order.natural() && order.run > 1;
  for (const RowPiece& at : home.pieces) {
    const std::int64_t length = workload.lengths[static_cast<std::size_t>(at.document)];
    std::int64_t begin = at.tokens.begin;
    while (begin < at.tokens.end) {
      std::int64_t end = at.tokens.end;
      if (in_runs) {
        const std::int64_t within = plan::position_of(order, length, begin) % order.run;
        end = std::min(end, begin + order.run - within);
      }
      Held held;
      held.document = at.document;
      held.tokens = {begin, end};
      held.heads = {0, heads};
      held.home = true;
      held.row = (at.row + begin - at.tokens.begin) * heads;
      pieces_.push_back(held);
      begin = end;
    }
  }
}

/// What a stage brings of a document is one piece where it touches.
void Pieces::add_arriving(const plan::Plan& forward, Rank rank, Tensor what) {
  for (std::size_t s = 0; s < forward.stages.size(); ++s) {
    std::vector<const Move*> moves;
    for (const Move& move : forward.stages[s].moves) {
      if (move.to == rank && move.what == what) moves.push_back(&move);
    }
    std::ranges::sort(moves, [](const Move* a, const Move* b) {
      return std::tie(a->document, a->heads.begin, a->tokens.begin) <
             std::tie(b->document, b->heads.begin, b->tokens.begin);
    });
    const std::size_t first = pieces_.size();
    for (const Move* move : moves) {
      if (pieces_.size() > first && pieces_.back().document == move->document &&
          pieces_.back().heads == move->heads && pieces_.back().tokens.end >= move->tokens.begin) {
        pieces_.back().tokens.end = std::max(pieces_.back().tokens.end, move->tokens.end);
        continue;
      }
      Held held;
      held.document = move->document;
      held.tokens = move->tokens;
      held.heads = move->heads;
      held.arrives = static_cast<int>(s);
      held.last = held.arrives;
      pieces_.push_back(held);
    }
  }
}

void Pieces::note_uses(const program::TickPlans& plans, Pass pass, Rank rank, bool keys) {
  const auto use = [&](int document, Range tokens, int stage) {
    for (Held& held : pieces_) {
      if (held.document == document && held.tokens.overlaps(tokens)) {
        held.last = std::max(held.last, stage);
      }
    }
  };
  const auto& stages = plans.of(pass).stages;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const int stage = static_cast<int>(s);
    for (const plan::PlacedTask& placed : stages[s].tasks) {
      if (placed.server == rank) {
        use(placed.task.document, keys ? placed.task.k : placed.task.q, stage);
      }
    }
    // Messages of a stage are packed while the stage before it runs.
    for (const Move& move : stages[s].moves) {
      if (move.from == rank && plan::is_key_side(move.what) == keys) {
        use(move.document, move.tokens, std::max(0, stage - 1));
      }
    }
  }
}

void Pieces::place(bool forever, int stages) {
  Arena arena;
  for (Held& held : pieces_) {
    if (held.home) continue;
    const std::int64_t size = held.tokens.size() * held.heads.size();
    held.row =
        arena.place(forever ? Lifetime{0, stages, size} : Lifetime{held.arrives, held.last, size});
  }
  workspace_rows_ = arena.size();
}

}  // namespace cadenza::exec
