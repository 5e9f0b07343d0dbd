// SPDX-License-Identifier: Apache-2.0
// What attention.tolerance: auto compares.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "cadenza/plan/predict.hpp"

namespace cadenza::plan {
namespace {

using Seconds = std::vector<double>;  // by rank

double& at(Seconds& seconds, Rank rank) {
  return seconds[static_cast<std::size_t>(rank)];
}

/// The backward pass reads what the forward pass made of lse.
bool is_result_of(Tensor what, Pass pass) {
  return is_result(what) && (pass == Pass::forward || what != Tensor::lse);
}

/// What the ports of the ranks are busy for with some moves of a stage, and their processors with
/// the copies.
struct Transfers {
  explicit Transfers(int ranks)
      : sent(static_cast<std::size_t>(ranks), 0.0),
        received(sent),
        packing(sent),
        unpacking(sent) {}

  double busiest_port() const {
    return std::max(std::ranges::max(sent), std::ranges::max(received)) + latency;
  }

  Seconds sent, received, packing, unpacking;
  std::vector<std::pair<Rank, Rank>> ways;  ///< from, to
  double latency = 0;                       ///< of the slowest message
};

/// One plan, one pass, on the ranks of a pool.
class PassTime {
 public:
  PassTime(const Plan& plan, Pass pass, const cost::Pool& pool)
      : plan_(plan), pass_(pass), pool_(pool), ranks_(plan.workload.ranks) {
    count_sharers();
  }

  /// Every message is waited for, stage by stage. Inputs leave their home as soon as they are
  /// there, results when the tasks before are done.
  double exposed() const {
    const Seconds home = rest_of_layer();
    Seconds done = home;
    for (const Stage& stage : plan_.stages) {
      arrive(transfers(stage, false), home, done);
      const Seconds tasks = tasks_of(stage);
      const Seconds computed = done;
      arrive(transfers(stage, true), computed, done);
      for (std::size_t rank = 0; rank < done.size(); ++rank) done[rank] += tasks[rank];
    }
    return std::ranges::max(done);
  }

  /// Of the slowest rank without its messages' time under way, and of the busiest ports.
  struct Hidden {
    double computing = 0;
    double moving = 0;
  };
  Hidden hidden() const {
    Seconds computing = rest_of_layer();
    Hidden time;
    for (const Stage& stage : plan_.stages) {
      const Seconds tasks = tasks_of(stage);
      for (const bool results : {false, true}) {
        const Transfers moved = transfers(stage, results);
        if (moved.ways.empty()) continue;
        time.moving += moved.busiest_port();
        for (std::size_t rank = 0; rank < computing.size(); ++rank) {
          computing[rank] += moved.packing[rank] + moved.unpacking[rank];
        }
      }
      for (std::size_t rank = 0; rank < computing.size(); ++rank) computing[rank] += tasks[rank];
    }
    time.computing = std::ranges::max(computing);
    return time;
  }

 private:
  /// Ranks of the pool and of its neighbours in the tensor group send at the same time: how many
  /// of them share the adapter of each rank.
  void count_sharers() {
    std::map<int, int> users;
    const auto adapter = [&](Rank rank, int tensor) {
      return pool_.rates.adapter_of(pool_.world_rank(rank) + tensor);
    };
    for (Rank rank = 0; rank < ranks_; ++rank) {
      for (int tensor = 0; tensor < pool_.tensor; ++tensor) ++users[adapter(rank, tensor)];
    }
    for (Rank rank = 0; rank < ranks_; ++rank) sharers_.push_back(users[adapter(rank, 0)]);
  }

  Seconds rest_of_layer() const {
    Seconds seconds(static_cast<std::size_t>(ranks_), 0.0);
    const double token = pass_ == Pass::forward ? pool_.forward_seconds : pool_.backward_seconds;
    for (const Home& home : plan_.workload.homes) {
      const Range rows = intersect(
          home.tokens, plan_.workload.queries_of(static_cast<std::size_t>(home.document)));
      if (!rows.empty()) at(seconds, home.rank) += token * static_cast<double>(rows.size());
    }
    return seconds;
  }

  Seconds tasks_of(const Stage& stage) const {
    Seconds seconds = task_seconds(stage, ranks_, pass_, pool_.rates);
    for (Rank rank = 0; rank < ranks_; ++rank) {
      at(seconds, rank) /= usual_ranks(plan_.workload.capacity(rank));
    }
    return seconds;
  }

  Transfers transfers(const Stage& stage, bool results) const {
    Transfers moved(ranks_);
    for (const Move& move : stage.moves) {
      if (is_result_of(move.what, pass_) != results) continue;
      const cost::Way way = pool_.rates.way(pool_.world_rank(move.from), pool_.world_rank(move.to));
      const double seconds = static_cast<double>(move.bytes) / way.bytes_per_second;
      const auto share = [&](Rank rank) {
        return way.between_nodes ? sharers_[static_cast<std::size_t>(rank)] : 1;
      };
      at(moved.sent, move.from) += seconds * share(move.from);
      at(moved.received, move.to) += seconds * share(move.to);
      at(moved.packing, move.from) += pool_.rates.pack(move.bytes);
      at(moved.unpacking, move.to) += pool_.rates.unpack(move.bytes);
      moved.latency = std::max(moved.latency, way.latency_seconds);
      const std::pair ends{move.from, move.to};
      if (moved.ways.empty() || moved.ways.back() != ends) moved.ways.push_back(ends);
    }
    return moved;
  }

  /// Ranks send from `ready` on; at `done` they go on when what they receive is there.
  static void arrive(const Transfers& moved, const Seconds& ready, Seconds& done) {
    if (moved.ways.empty()) return;
    Seconds there(done.size(), 0.0);
    for (const auto& [from, to] : moved.ways) {
      const auto sender = static_cast<std::size_t>(from);
      const double left = ready[sender] + moved.packing[sender] + moved.sent[sender];
      at(there, to) = std::max(at(there, to), left + moved.latency);
    }
    for (std::size_t rank = 0; rank < done.size(); ++rank) {
      done[rank] += moved.packing[rank];
      if (moved.received[rank] == 0) continue;
      const double port = ready[rank] + moved.received[rank] + moved.latency;
      done[rank] = std::max({done[rank], there[rank], port}) + moved.unpacking[rank];
    }
  }

  const Plan& plan_;
  Pass pass_;
  const cost::Pool& pool_;
  int ranks_;
  std::vector<int> sharers_;  ///< by rank
};

double pass_seconds(std::span<const Plan> parts, Pass pass, const cost::Pool& pool) {
  if (parts.size() == 1) return PassTime(parts[0], pass, pool).exposed();
  const auto first = PassTime(parts[0], pass, pool).hidden();
  const auto second = PassTime(parts[1], pass, pool).hidden();
  return std::max(first.computing, second.moving) + std::max(second.computing, first.moving);
}

}  // namespace

double layer_seconds(std::span<const Plan> parts, const cost::Pool& pool) {
  std::vector<Plan> backward;
  for (const Plan& part : parts) backward.push_back(mirror(part));
  return pass_seconds(parts, Pass::forward, pool) + pass_seconds(backward, Pass::backward, pool);
}

}  // namespace cadenza::plan
