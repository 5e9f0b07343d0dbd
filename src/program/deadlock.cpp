// SPDX-License-Identifier: Apache-2.0
// Abstract execution of all programs: each rank advances as far as it can until nobody moves any
// more.
#include <fmt/format.h>

#include <set>
#include <tuple>

#include "cadenza/program/program.hpp"

namespace cadenza::program {
namespace {

/// A stage of one layer of one tick in one pass: what posts and waits refer to.
using Exchange = std::tuple<Pass, int, int, int>;

class Machine {
 public:
  Machine(std::span<const Program> programs, int trainers, std::span<const TickPlans> ticks)
      : programs_(programs),
        trainers_(trainers),
        ticks_(ticks),
        next_(programs.size(), 0),
        posted_(programs.size()),
        collectives_(programs.size(), 0) {}

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
    switch (step.operation) {
      case Operation::post:
        posted_[rank].insert(exchange(step));
        return true;
      case Operation::wait:
        return peers_posted(rank, step);
      case Operation::reduce_gradients:
        return collective(rank);
      default:
        return true;
    }
  }

  static Exchange exchange(const Step& step) {
    return {step.pass, step.tick, step.layer, step.stage};
  }

  bool peers_posted(std::size_t rank, const Step& step) const {
    if (!posted_[rank].contains(exchange(step))) return false;
    const auto& stages = ticks_[static_cast<std::size_t>(step.tick)].of(step.pass).stages;
    for (const plan::Move& move : stages[static_cast<std::size_t>(step.stage)].moves) {
      const auto self = static_cast<Rank>(rank);
      if (move.from != self && move.to != self) continue;
      const auto peer = static_cast<std::size_t>(move.from == self ? move.to : move.from);
      if (peer >= posted_.size() || !posted_[peer].contains(exchange(step))) return false;
    }
    return true;
  }

  /// A rank arrives at its n-th collective once and leaves when all trainers have arrived there.
  bool collective(std::size_t rank) {
    if (!waiting_.contains(rank)) {
      waiting_.insert(rank);
      ++collectives_[rank];
    }
    for (int trainer = 0; trainer < trainers_; ++trainer) {
      if (collectives_[static_cast<std::size_t>(trainer)] < collectives_[rank]) return false;
    }
    waiting_.erase(rank);
    return true;
  }

  std::span<const Program> programs_;
  int trainers_;
  std::span<const TickPlans> ticks_;
  std::vector<std::size_t> next_;
  std::vector<std::set<Exchange>> posted_;
  std::vector<int> collectives_;
  std::set<std::size_t> waiting_;
};

}  // namespace

std::vector<std::string> deadlocks(std::span<const Program> programs, int trainers,
                                   std::span<const TickPlans> ticks) {
  Machine machine(programs, trainers, ticks);
  machine.run();
  return machine.stuck();
}

}  // namespace cadenza::program
