// SPDX-License-Identifier: Apache-2.0
#include "exec/memory/pieces.hpp"

#include <tuple>

#include "cadenza/base/at.hpp"
#include "exec/memory/arena.hpp"

namespace cadenza::exec {

using plan::Move;
using plan::Tensor;
using program::Pass;

Pieces::Pieces(const program::TickPlans& plans, Rank rank, const HomeRows& home, bool keys) {
  add_home(plans.forward.workload, home, keys);
  add_arriving(plans, rank, keys ? Tensor::k : Tensor::q);
  sort();
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    note_arrival(plans, pass, rank, keys);
    note_uses(plans, pass, rank, keys);
  }
  place(plans.forward.keeps_inputs,
        static_cast<int>(std::max(plans.forward.stages.size(), plans.backward.stages.size())));
}

/// Adds the pieces at home. Queries are rotated by their positions, which ascend evenly only inside
/// a run of a stripe.
void Pieces::add_home(const plan::Workload& workload, const HomeRows& home, bool keys) {
  const int heads = keys ? workload.shape.kv_heads : workload.shape.heads;
  const plan::TokenOrder& order = workload.order;
  const bool in_runs = !keys && !order.natural() && order.run > 1;
  for (const RowPiece& piece : home.pieces) {
    const std::int64_t length = workload.lengths[at(piece.document)];
    std::int64_t begin = piece.tokens.begin;
    while (begin < piece.tokens.end) {
      std::int64_t end = piece.tokens.end;
      if (in_runs) {
        const std::int64_t within = plan::position_of(order, length, begin) % order.run;
        end = std::min(end, begin + order.run - within);
      }
      Held held;
      held.document = piece.document;
      held.tokens = {begin, end};
      held.heads = {0, heads};
      held.home = true;
      held.row = (piece.row + begin - piece.tokens.begin) * heads;
      pieces_.push_back(held);
      begin = end;
    }
  }
}

/// Adds the pieces that arrive. Adjacent rows of a document that arrive in one stage are one piece.
void Pieces::add_arriving(const program::TickPlans& plans, Rank rank, Tensor what) {
  const program::Traffic& traffic = plans.forward_traffic;
  for (int s = 0; s < traffic.stages(); ++s) {
    const auto& planned = plans.forward.stages[at(s)].moves;
    std::vector<const Move*> moves;
    for (const std::uint32_t message : traffic.of(rank, s).receives) {
      for (const std::uint32_t i : traffic.moves(s, traffic.messages(s)[message])) {
        if (planned[i].what == what) moves.push_back(&planned[i]);
      }
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
      held.arrives = s;
      held.first = held.last = held.arrives;
      pieces_.push_back(held);
    }
  }
}

void Pieces::sort() {
  std::ranges::sort(pieces_, [](const Held& a, const Held& b) {
    return std::tie(a.document, a.tokens.begin, a.heads.begin) <
           std::tie(b.document, b.tokens.begin, b.heads.begin);
  });
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    Held& held = pieces_[i];
    const bool same = i > 0 && pieces_[i - 1].document == held.document;
    held.reach = same ? std::max(pieces_[i - 1].reach, held.tokens.end) : held.tokens.end;
  }
}

/// Rows that are received in place need their memory once the receive is posted.
void Pieces::note_arrival(const program::TickPlans& plans, Pass pass, Rank rank, bool keys) {
  const program::Traffic& traffic = plans.traffic(pass);
  for (int s = 0; s < traffic.stages(); ++s) {
    const program::Part mine = traffic.of(rank, s);
    for (const std::uint32_t message : mine.receives) {
      for (const std::uint32_t i : traffic.moves(s, traffic.messages(s)[message])) {
        const Move& move = plans.of(pass).stages[at(s)].moves[i];
        if (plan::is_key_side(move.what) != keys || !plan::travels_in_place(move)) continue;
        for (Held& held : overlapping(pieces_, move.document, move.tokens)) {
          if (held.arrives != s || !held.tokens.overlaps(move.tokens)) continue;
          held.first = std::min(held.first, mine.ready);
        }
      }
    }
  }
}

void Pieces::note_uses(const program::TickPlans& plans, Pass pass, Rank rank, bool keys) {
  const auto use = [&](int document, Range tokens, int stage) {
    for (Held& held : overlapping(pieces_, document, tokens)) {
      if (held.tokens.overlaps(tokens)) held.last = std::max(held.last, stage);
    }
  };
  const program::Traffic& traffic = plans.traffic(pass);
  for (int s = 0; s < traffic.stages(); ++s) {
    const plan::Stage& stage = plans.of(pass).stages[at(s)];
    const program::Part mine = traffic.of(rank, s);
    for (const std::uint32_t i : mine.tasks) {
      const Task& task = stage.tasks[i].task;
      use(task.document, keys ? task.k : task.q, s);
    }
    // Messages of a stage are packed while the stage before it runs. Rows that are sent in place
    // are in use until the messages of the stage are awaited; where none arrive, until the end.
    for (std::int64_t message = mine.sends.begin; message < mine.sends.end; ++message) {
      for (const std::uint32_t i : traffic.moves(s, traffic.messages(s)[at(message)])) {
        const Move& move = stage.moves[i];
        if (plan::is_key_side(move.what) == keys) {
          const int awaited = mine.inputs_arrive ? s : traffic.stages();
          use(move.document, move.tokens,
              plan::travels_in_place(move) ? awaited : std::max(0, s - 1));
        }
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
        arena.place(forever ? Lifetime{-1, stages, size} : Lifetime{held.first, held.last, size});
  }
  workspace_rows_ = arena.size();
}

}  // namespace cadenza::exec
