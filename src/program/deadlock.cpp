// SPDX-License-Identifier: Apache-2.0
// Abstract execution of all programs: each rank advances as far as it can until nobody moves any
// more.
#include <fmt/format.h>

#include <map>
#include <set>
#include <tuple>

#include "messages.hpp"

namespace cadenza::program {
namespace {

/// Residual streams from one rank to another, in one pass: they arrive in the order they are sent.
using Stream = std::tuple<Rank, Rank, Pass>;

class Machine {
 public:
  Machine(const Outline& outline, std::span<const Program> programs,
          std::span<const TickPlans> ticks)
      : layout_(outline.layout),
        programs_(programs),
        ticks_(ticks),
        next_(programs.size(), 0),
        posted_(programs.size()) {}

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < programs_.size(); ++rank) moved |= advance(rank);
    }
  }

  std::vector<std::string> stuck() const {
    std::vector<std::string> lines;
    for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
      if (ended(rank)) continue;
      lines.push_back(fmt::format("rank {} never gets past operation {}: {}", rank, next_[rank],
                                  to_string(programs_[rank].steps[next_[rank]])));
    }
    return lines;
  }

  /// Messages whose other end never posts them.
  std::vector<std::string> unmatched() const {
    std::vector<std::string> lines;
    for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
      for (const Messages& key : posted_[rank]) {
        for_each_peer(static_cast<Rank>(rank), key, [&](Rank peer) {
          if (has_posted(peer, key)) return;
          const auto& [tick, pass, again, layer, stage, results] = key;
          lines.push_back(fmt::format(
              "rank {}: rank {} never receives what it posts: tick {} layer {} {} stage {}{}", rank,
              peer, tick, layer, pass == Pass::forward ? "forward" : "backward", stage,
              results ? " results" : ""));
        });
      }
    }
    return lines;
  }

 private:
  bool ended(std::size_t rank) const { return next_[rank] == programs_[rank].steps.size(); }

  bool advance(std::size_t rank) {
    bool moved = false;
    while (!ended(rank) && can_run(rank, programs_[rank].steps[next_[rank]])) {
      ++next_[rank];
      moved = true;
    }
    return moved;
  }

  bool can_run(std::size_t rank, const Step& step) {
    const auto self = static_cast<Rank>(rank);
    switch (step.operation) {
      case Operation::post:
      case Operation::post_results:
        posted_[rank].insert(messages(step, step.operation == Operation::post_results));
        return true;
      case Operation::wait:
      case Operation::wait_results:
        return peers_posted(self, step);
      case Operation::send:
        ++streams_[{self, step.peer, step.pass}];
        return true;
      case Operation::receive:
        return take_stream(self, step);
      case Operation::reduce_gradients:
      case Operation::gather_parameters:
        return collective(self, step, layout_.coordinates(self).pipeline);
      case Operation::optimize:  // the norm is everybody's
        return collective(self, step, -1);
      default:
        return true;
    }
  }

  bool has_posted(Rank rank, const Messages& key) const {
    const auto index = static_cast<std::size_t>(rank);
    return index < posted_.size() && posted_[index].contains(key);
  }

  /// Visits the ranks with which `self` exchanges the messages, each once.
  template <typename Visit>
  void for_each_peer(Rank self, const Messages& key, Visit visit) const {
    const auto& [tick, pass, again, layer, stage, results] = key;
    const plan::Plan& plan = ticks_[static_cast<std::size_t>(tick)].of(pass);
    const Rank mine = layout_.in_pool(self);
    std::set<Rank> peers;
    for (const plan::Move& move : plan.stages[static_cast<std::size_t>(stage)].moves) {
      if (move.from != mine && move.to != mine) continue;
      if (is_result(move.what, pass) != results) continue;
      peers.insert(move.from == mine ? move.to : move.from);
    }
    for (const Rank peer : peers) visit(layout_.world_rank(layout_.pool_of(self), peer));
  }

  bool peers_posted(Rank self, const Step& step) const {
    const Messages key = messages(step, step.operation == Operation::wait_results);
    bool all = has_posted(self, key);
    for_each_peer(self, key, [&](Rank peer) { all = all && has_posted(peer, key); });
    return all;
  }

  bool take_stream(Rank self, const Step& step) {
    int& sent = streams_[{step.peer, self, step.pass}];
    if (sent == 0) return false;
    --sent;
    return true;
  }

  /// A rank arrives at its n-th such collective once and leaves when everybody has arrived there:
  /// all trainers, or those of its stage.
  bool collective(Rank self, const Step& step, int pipeline) {
    auto& arrivals = arrivals_[{step.operation, pipeline}];
    if (waiting_.insert(self).second) ++arrivals[self];
    for (const Program& program : programs_) {
      if (!layout_.trains(program.rank)) continue;
      if (pipeline >= 0 && layout_.coordinates(program.rank).pipeline != pipeline) continue;
      if (arrivals[program.rank] < arrivals[self]) return false;
    }
    waiting_.erase(self);
    return true;
  }

  const Layout& layout_;
  std::span<const Program> programs_;
  std::span<const TickPlans> ticks_;
  std::vector<std::size_t> next_;
  std::vector<std::set<Messages>> posted_;
  std::map<Stream, int> streams_;
  std::map<std::pair<Operation, int>, std::map<Rank, int>> arrivals_;
  std::set<Rank> waiting_;  ///< in a collective
};

}  // namespace

std::vector<std::string> deadlocks(const Outline& outline, std::span<const Program> programs,
                                   std::span<const TickPlans> ticks) {
  Machine machine(outline, programs, ticks);
  machine.run();
  std::vector<std::string> lines = machine.stuck();
  return lines.empty() ? machine.unmatched() : lines;  // who is stuck has posted in vain as well
}

}  // namespace cadenza::program
