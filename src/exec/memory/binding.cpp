// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/memory/binding.hpp"

#include <algorithm>
#include <optional>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "exec/memory/arena.hpp"
#include "exec/memory/pieces.hpp"

namespace cadenza::exec {
namespace {

using plan::Move;
using plan::Tensor;
using program::Pass;

constexpr std::int64_t kBufferAlignment = 64;

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

class Binder {
 public:
  Binder(const program::TickPlans& plans, Rank rank, int align)
      : plans_(plans), rank_(rank), shape_(plans.forward.workload.shape) {
    binding_.home = home_rows(plans, rank, align);
    binding_.half = plans.half;
    binding_.keeps_inputs = plans.forward.keeps_inputs;
    queries_ = Pieces(plans, rank, binding_.home, false);
    keys_ = Pieces(plans, rank, binding_.home, true);
    binding_.query_rows = queries_.workspace_rows();
    binding_.key_rows = keys_.workspace_rows();
  }

  Binding finish() {
    binding_.forward = bind_pass(Pass::forward);
    binding_.backward = bind_pass(Pass::backward);
    return std::move(binding_);
  }

 private:
  const Pieces& side(Tensor what) const { return plan::is_key_side(what) ? keys_ : queries_; }

  /// Binds the stages of a pass. Both ends of a message list the moves of the same message in plan
  /// order; this alone makes sender and receiver agree on the layout: messages have no headers.
  std::vector<StageBinding> bind_pass(Pass pass) {
    const plan::Plan& plan = plans_.of(pass);
    const program::Traffic& traffic = plans_.traffic(pass);
    std::vector<StageBinding> stages;
    for (int s = 0; s < traffic.stages(); ++s) {
      StageBinding& bound = stages.emplace_back();
      const plan::Stage& planned = plan.stages[at(s)];
      const program::Part mine = traffic.of(rank_, s);
      for (std::int64_t i = mine.sends.begin; i < mine.sends.end; ++i) {
        const program::PlannedMessage& message = traffic.messages(s)[at(i)];
        add_message(planned, traffic.moves(s, message), message.to,
                    bound.of(message.results).sends);
      }
      for (const std::uint32_t i : mine.receives) {
        const program::PlannedMessage& message = traffic.messages(s)[i];
        add_message(planned, traffic.moves(s, message), message.from,
                    bound.of(message.results).receives);
      }
      for (const std::uint32_t i : mine.tasks) add_task(planned.tasks[i], s, bound);
    }
    place_messages(traffic, stages);
    return stages;
  }

  /// Adds a task as one part for every pair of buffers whose rows it reads.
  void add_task(const plan::PlacedTask& placed, int stage, StageBinding& bound) {
    const Task& task = placed.task;
    const Range kv_heads = shape_.key_heads(task.heads);
    bound.flops += placed.cost;
    std::int64_t pairs = 0;
    queries_.for_each(task.document, task.q, task.heads, stage, [&](const RowPiece& query) {
      keys_.for_each(task.document, task.k, kv_heads, stage, [&](const RowPiece& key) {
        Task part = task;
        part.q = intersect(task.q, query.tokens);
        part.k = intersect(task.k, key.tokens);
        const auto seen = allowed_pairs(part);
        if (seen == 0) return;
        pairs += seen;
        bound.tasks.push_back({part, query_index(query, bound), key_index(key, bound)});
      });
    });
    // Every pair must be found once. Fewer mean that some rows do not arrive in time, more that two
    // pieces hold the same rows.
    if (pairs != allowed_pairs(task)) {
      fail(ExitCode::communication,
           "rank {} does not hold all rows of its task of document {} q [{}, {}) k [{}, {})", rank_,
           task.document, task.q.begin, task.q.end, task.k.begin, task.k.end);
    }
  }

  static bool same(const RowPiece& a, const RowPiece& b) {
    return a.home == b.home && a.row == b.row && a.document == b.document && a.tokens == b.tokens;
  }
  /// Returns the index of a piece that is listed already. Tasks come document by document, so only
  /// the last pieces can match.
  static std::optional<int> listed(const std::vector<RowPiece>& pieces, const RowPiece& piece) {
    for (std::size_t i = pieces.size(); i > 0 && pieces[i - 1].document == piece.document; --i) {
      if (same(pieces[i - 1], piece)) return static_cast<int>(i - 1);
    }
    return std::nullopt;
  }
  int query_index(const RowPiece& piece, StageBinding& bound) const {
    if (const auto index = listed(bound.queries, piece)) return *index;
    bound.queries.push_back(piece);
    bound.positions.push_back(positions_of(piece));
    return static_cast<int>(bound.queries.size()) - 1;
  }
  int key_index(const RowPiece& piece, StageBinding& bound) const {
    if (const auto index = listed(bound.keys, piece)) return *index;
    bound.keys.push_back(piece);
    bound.key_positions.push_back(positions_of(piece));
    return static_cast<int>(bound.keys.size()) - 1;
  }

  /// Positions of the rows of one stripe.
  Positions positions_of(const RowPiece& piece) const {
    const plan::TokenOrder& order = plans_.forward.workload.order;
    const std::int64_t length = plans_.forward.workload.lengths[at(piece.document)];
    Positions positions;
    positions.first = plan::position_of(order, length, piece.tokens.begin);
    if (order.natural()) return positions;
    if (order.run == 1) {
      positions.step = order.stripes;
    } else {
      positions.run = order.run;
      positions.gap = (order.stripes - 1) * order.run;
    }
    return positions;
  }

  /// Adds the message with the moves of inputs or results to or from a peer, in plan order and
  /// token by token, which is the same on both ends: one part for all moves that share it, and one
  /// for each that travels in place, though one of its ends may have to copy it.
  void add_message(const plan::Stage& stage, program::Indices moves, Rank peer,
                   MessageSet& result) const {
    const std::int64_t offset = result.bytes;
    for (const std::uint32_t i : moves) {
      if (!plan::travels_in_place(stage.moves[i])) add_segments(stage.moves[i], result);
    }
    if (result.bytes > offset) result.parts.push_back({peer, offset, result.bytes - offset});
    for (const std::uint32_t i : moves) {
      if (plan::travels_in_place(stage.moves[i])) add_alone(stage.moves[i], peer, result);
    }
  }

  /// Adds a move as a part of its own, without a copy if its rows lie together.
  void add_alone(const Move& move, Rank peer, MessageSet& result) const {
    const std::int64_t offset = result.bytes;
    const std::size_t first = result.segments.size();
    add_segments(move, result);
    MessagePart part{peer, offset, result.bytes - offset};
    const Segment& segment = result.segments[first];
    if (result.segments.size() == first + 1 && segment.heads.size() == segment.row_heads) {
      part.in_place = static_cast<int>(result.in_place.size());
      part.offset = 0;
      result.in_place.push_back(segment);
      result.segments.pop_back();
      result.copied -= part.bytes;
      result.bytes = offset;
    }
    result.parts.push_back(part);
  }

  void add_segments(const Move& move, MessageSet& result) const {
    std::int64_t tokens = 0;
    side(move.what).for_each(
        move.document, move.tokens, move.heads, Pieces::kAnyStage, [&](const RowPiece& piece) {
          const Range part = intersect(move.tokens, piece.tokens);
          const std::int64_t row_heads = piece.heads.size();
          const Range heads{move.heads.begin - piece.heads.begin,
                            move.heads.end - piece.heads.begin};
          result.segments.push_back({move.what, piece.home,
                                     piece.row + (part.begin - piece.tokens.begin) * row_heads,
                                     part.size(), row_heads, heads, result.bytes});
          const std::int64_t bytes = plan::move_bytes(shape_, move.what, part, move.heads);
          result.bytes += bytes;
          result.copied += bytes;
          tokens += part.size();
        });
    if (tokens != move.tokens.size()) {
      fail(ExitCode::communication, "rank {} has no rows [{}, {}) of document {} for {}", rank_,
           move.tokens.begin, move.tokens.end, move.document, plan::name(move.what));
    }
  }

  /// Assigns memory to messages. Buffers live from their post to their wait (see
  /// program/attention_operations.cpp):
  /// - Inputs of stage s are posted once the last row has arrived that some rank passes on in it
  ///   (`ready`; -1: before all tasks), and awaited before the tasks of s.
  /// - Results of stage s are posted after the tasks of an earlier one (`complete`). They are
  ///   awaited after the tasks of s + 1 or, where there are none, when attention ends: those live
  ///   to the end.
  /// Two buffers share memory only if these spans do not overlap.
  void place_messages(const program::Traffic& traffic, std::vector<StageBinding>& stages) {
    const int count = static_cast<int>(stages.size());
    const int end_of_tasks = traffic.end_of_tasks(rank_);
    Arena arena;
    for (int s = 0; s < count; ++s) {
      StageBinding& stage = stages[at(s)];
      const program::Part part = traffic.of(rank_, s);
      const int ended = s + 1 < end_of_tasks ? s + 1 : count;
      place_direction(stage.inputs, part.ready, s, count, arena);
      place_direction(stage.results, part.complete, ended, count, arena);
    }
    binding_.message_bytes = std::max(binding_.message_bytes, arena.size());
  }

  /// Places the buffers of one direction. Without receives nobody waits: the sends may last until
  /// the exchange ends, when AttentionExchange::finish completes them.
  static void place_direction(Direction& direction, int posted, int ended, int end, Arena& arena) {
    if (direction.receives.parts.empty()) ended = end;
    for (MessageSet* messages : {&direction.sends, &direction.receives}) {
      messages->buffer = arena.place({posted, ended, round_up(messages->bytes, kBufferAlignment)});
    }
  }

  const program::TickPlans& plans_;
  Rank rank_;
  AttentionShape shape_;
  Pieces queries_;
  Pieces keys_;
  Binding binding_;
};

}  // namespace

HomeRows home_rows(const program::TickPlans& plans, Rank rank, int align) {
  const plan::Workload& workload = plans.forward.workload;
  HomeRows home;
  std::array<std::int64_t, 2> rows{};
  std::array<std::vector<RowPiece>, 2> pieces;
  for (const std::uint32_t i : plans.forward_traffic.homes(rank)) {
    const plan::Home& at = workload.homes[i];
    const Range queries = workload.queries_of(static_cast<std::size_t>(at.document));
    const bool mine = workload.queries.empty() || queries.contains(at.tokens);
    // The plans of both halves list all homes. The rows must be the same whichever of the two is
    // bound: index 0 has the rows of the first half.
    const std::size_t part = mine == (plans.half == 0) ? 0 : 1;
    pieces[part].push_back({at.document, at.tokens, {}, true, rows[part], -1});
    rows[part] += at.tokens.size();
  }
  home.halves[0] = {0, round_up(rows[0], align)};
  home.halves[1] = {home.halves[0].end, home.halves[0].end + round_up(rows[1], align)};
  for (RowPiece& piece : pieces[1]) piece.row += home.halves[1].begin;
  home.pieces = std::move(pieces[0]);
  home.pieces.insert(home.pieces.end(), pieces[1].begin(), pieces[1].end());
  return home;
}

std::int64_t head_elements(const AttentionShape& shape, Tensor what) {
  return what == Tensor::lse || what == Tensor::delta ? 1 : shape.head_dim;
}

int home_heads(const AttentionShape& shape, Tensor what) {
  return plan::is_key_side(what) ? shape.kv_heads : shape.heads;
}

bool is_input(Tensor what) {
  return what == Tensor::q || what == Tensor::k || what == Tensor::v || what == Tensor::dout;
}

std::int64_t workspace_bytes(const AttentionShape& shape, std::int64_t query_rows,
                             std::int64_t key_rows, std::int64_t copies) {
  const std::int64_t dim = shape.head_dim;
  const std::int64_t queries = copies * dim * shape.element_bytes          // q
                               + dim * shape.element_bytes                 // dout
                               + (2 * dim + 2) * shape.accumulator_bytes;  // out, dq, lse, delta
  const std::int64_t keys =
      2 * dim * (copies * shape.element_bytes + shape.accumulator_bytes);  // k, v, dk, dv
  return query_rows * queries + key_rows * keys;
}

void ExchangeNeeds::add(const Binding& binding) {
  query_rows = std::max(query_rows, binding.query_rows);
  key_rows = std::max(key_rows, binding.key_rows);
  message_bytes = std::max(message_bytes, binding.message_bytes);
  keeps_inputs = keeps_inputs || binding.keeps_inputs;
  stages = std::max({stages, binding.forward.size(), binding.backward.size()});
}

Binding bind(const program::TickPlans& plans, Rank rank, int align) {
  return Binder(plans, rank, align).finish();
}

}  // namespace cadenza::exec
