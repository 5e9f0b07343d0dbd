// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/traffic.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "cadenza/base/at.hpp"

namespace cadenza::program {
namespace {

/// Indices of `items`, sorted by rank_of(item), in their order for each rank.
/// @param begins  out, by rank and one more: the begin of a rank's indices
template <typename Items, typename RankOf>
std::vector<std::uint32_t> by_rank(const Items& items, std::size_t ranks, RankOf rank_of,
                                   std::vector<std::uint32_t>& begins) {
  begins.assign(ranks + 1, 0);
  for (const auto& item : items) ++begins[at(rank_of(item)) + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<std::uint32_t> next = begins;
  std::vector<std::uint32_t> order(items.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    order[next[at(rank_of(items[i]))]++] = i;
  }
  return order;
}

std::size_t count_ranks(const plan::Plan& plan) {
  Rank ranks = plan.workload.ranks;
  for (const plan::Stage& stage : plan.stages) {
    for (const plan::Move& move : stage.moves)
      ranks = std::max({ranks, move.from + 1, move.to + 1});
    for (const plan::PlacedTask& placed : stage.tasks) ranks = std::max(ranks, placed.server + 1);
  }
  return static_cast<std::size_t>(ranks);
}

}  // namespace

Traffic::Traffic(const plan::Plan& plan, Pass pass) {
  const std::size_t ranks = count_ranks(plan);
  homes_ = by_rank(
      plan.workload.homes, ranks, [](const plan::Home& home) { return home.rank; }, homes_begin_);
  for (const plan::Stage& stage : plan.stages) {
    stages_.push_back(make_stage(stage, plan.workload, pass, ranks));
  }
  add_places(plan, pass);
}

Traffic::Stage Traffic::make_stage(const plan::Stage& planned, const plan::Workload& workload,
                                   Pass pass, std::size_t ranks) const {
  const AttentionShape& shape = workload.shape;
  Stage stage;
  const auto key = [&](std::uint32_t i) {
    const plan::Move& move = planned.moves[i];
    return std::tuple(move.from, move.to, is_result(move.what, pass));
  };
  stage.moves.resize(planned.moves.size());
  std::iota(stage.moves.begin(), stage.moves.end(), 0U);
  if (!std::ranges::is_sorted(stage.moves, {}, key)) std::ranges::stable_sort(stage.moves, {}, key);
  for (std::uint32_t i = 0; i < stage.moves.size(); ++i) {
    if (i == 0 || key(stage.moves[i]) != key(stage.moves[i - 1])) {
      const auto [from, to, results] = key(stage.moves[i]);
      PlannedMessage& message = stage.messages.emplace_back();
      message = {.from = from, .to = to, .results = results, .moves = {i, i}};
    }
    const plan::Move& move = planned.moves[stage.moves[i]];
    const int heads = plan::is_key_side(move.what) ? shape.kv_heads : shape.heads;
    PlannedMessage& message = stage.messages.back();
    message.bytes += move.bytes;
    message.slices |= move.heads.size() < heads;
    ++message.moves.end;
    if (!plan::travels_in_place(move)) message.copied_in += move.bytes;
    if (!plan::travels_in_place(move) || !lies_together(workload, move)) {
      message.copied_out += move.bytes;
    }
  }
  std::vector<std::uint32_t> sends, receives, tasks;
  by_rank(
      stage.messages, ranks, [](const PlannedMessage& message) { return message.from; }, sends);
  stage.receives = by_rank(
      stage.messages, ranks, [](const PlannedMessage& message) { return message.to; }, receives);
  stage.tasks = by_rank(
      planned.tasks, ranks, [](const plan::PlacedTask& placed) { return placed.server; }, tasks);
  for (std::size_t rank = 0; rank <= ranks; ++rank) {
    stage.ranks.push_back({sends[rank], receives[rank], tasks[rank]});
  }
  return stage;
}

/// Whether the rows of a move are adjacent where they come from, and nothing lies between them.
bool Traffic::lies_together(const plan::Workload& workload, const plan::Move& move) const {
  const bool keys = plan::is_key_side(move.what);
  const int heads = keys ? workload.shape.kv_heads : workload.shape.heads;
  const bool in_runs = !keys && !workload.order.natural() && workload.order.run > 1;
  for (const std::uint32_t i : homes(move.from)) {
    const plan::Home& home = workload.homes[i];
    if (home.document != move.document || !home.tokens.overlaps(move.tokens)) continue;
    return !in_runs && move.heads.size() == heads && home.tokens.contains(move.tokens);
  }
  return true;  // it arrived together
}

Traffic Traffic::of_index(const plan::Plan& plan, Pass pass) {
  Traffic traffic;
  const std::size_t ranks = count_ranks(plan);
  for (const plan::Stage& round : plan.index) {
    traffic.stages_.push_back(traffic.make_stage(round, plan.workload, pass, ranks));
  }
  return traffic;
}

void Traffic::add_places(const plan::Plan& plan, Pass pass) {
  const auto at_home = [&](const plan::Move& move) {
    return std::ranges::any_of(homes(move.from), [&](std::uint32_t i) {
      const plan::Home& home = plan.workload.homes[i];
      return home.document == move.document && home.tokens.overlaps(move.tokens);
    });
  };
  for (int s = 0; s < stages(); ++s) {
    Stage& stage = stages_[at(s)];
    if (plan.paced && s > 2) stage.ready = s - 2;
    for (const PlannedMessage& message : stage.messages) {
      if (message.results) continue;
      for (const std::uint32_t i : moves(s, message)) {
        const plan::Move& move = plan.stages[at(s)].moves[i];
        if (stage.ready + 1 < s && !at_home(move)) {
          stage.ready = brought_by(plan, move, stage.ready, s);
        }
      }
    }
    stage.complete = plan::last_tasks_of_results(plan, at(s), pass);
  }
}

/// The last stage between `after` and `before` that brings rows of the move to its sender; `after`
/// where there is none.
int Traffic::brought_by(const plan::Plan& plan, const plan::Move& move, int after,
                        int before) const {
  const auto brings = [&](int stage, const PlannedMessage& message) {
    const auto& planned = plan.stages[at(stage)].moves;
    return std::ranges::any_of(moves(stage, message), [&](std::uint32_t i) {
      const plan::Move& m = planned[i];
      return m.what == move.what && m.document == move.document && m.tokens.overlaps(move.tokens) &&
             m.heads.overlaps(move.heads);
    });
  };
  for (int stage = before - 1; stage > after; --stage) {
    for (const std::uint32_t message : of(move.from, stage).receives) {
      if (brings(stage, messages(stage)[message])) return stage;
    }
  }
  return after;
}

Indices Traffic::moves(int stage, const PlannedMessage& message) const {
  return Indices(planned(stage).moves)
      .subspan(static_cast<std::size_t>(message.moves.begin),
               static_cast<std::size_t>(message.moves.size()));
}

Part Traffic::of(Rank rank, int stage) const {
  const Stage& in = planned(stage);
  const auto r = static_cast<std::size_t>(rank);
  Part part;
  if (r + 1 >= in.ranks.size()) return part;
  const Begins& begin = in.ranks[r];
  const Begins& end = in.ranks[r + 1];
  part.sends = {begin.sends, end.sends};
  part.receives = Indices(in.receives).subspan(begin.receives, end.receives - begin.receives);
  part.tasks = Indices(in.tasks).subspan(begin.tasks, end.tasks - begin.tasks);
  part.ready = in.ready;
  part.complete = in.complete;
  for (std::uint32_t i = begin.sends; i < end.sends; ++i) {
    (in.messages[i].results ? part.results : part.inputs) = true;
  }
  for (const std::uint32_t i : part.receives) {
    (in.messages[i].results ? part.results : part.inputs) = true;
    (in.messages[i].results ? part.results_arrive : part.inputs_arrive) = true;
  }
  return part;
}

int Traffic::end_of_tasks(Rank rank) const {
  for (int end = stages(); end > 0; --end) {
    const Part part = of(rank, end - 1);
    if (!part.tasks.empty() || part.inputs) return end;
  }
  return 0;
}

Indices Traffic::homes(Rank rank) const {
  const auto r = static_cast<std::size_t>(rank);
  if (r + 1 >= homes_begin_.size()) return {};
  return Indices(homes_).subspan(homes_begin_[r], homes_begin_[r + 1] - homes_begin_[r]);
}

}  // namespace cadenza::program
