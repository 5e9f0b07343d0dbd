// SPDX-License-Identifier: Apache-2.0
#include "cadenza/plan/predict.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "cadenza/base/at.hpp"
#include "plan/workload/sharding.hpp"

namespace cadenza::plan {
namespace {

/// Seconds at the busiest rank; it sends and receives at the same time.
double largest_transfer(const Stage& stage, int ranks, const cost::Pool& pool) {
  std::vector<double> sent(static_cast<std::size_t>(ranks), 0.0);
  std::vector<double> received(static_cast<std::size_t>(ranks), 0.0);
  for (const Move& move : stage.moves) {
    const cost::Way way = pool.rates.way(pool.world_rank(move.from), pool.world_rank(move.to));
    const double seconds = static_cast<double>(move.bytes) / way.bytes_per_second;
    sent[at(move.from)] += seconds;
    received[at(move.to)] += seconds;
  }
  return std::max(std::ranges::max(sent), std::ranges::max(received));
}

}  // namespace

double placed_seconds(const PlacedTask& placed, Pass pass, const cost::Rates& rates) {
  if (placed.block == 0) return rates.task_seconds(placed.task, pass);
  const double pairs = forward_flops(placed.task, 1) / 4;  // of all heads
  return pairs * placed.kept * rates.sparse_pair(placed.block, placed.adjoining, pass);
}

double with_task(double seconds, const PlacedTask& placed, Pass pass, const cost::Rates& rates) {
  if (seconds == 0) seconds = rates.launch_seconds();
  return seconds + placed_seconds(placed, pass, rates);
}

std::vector<double> task_seconds(const Stage& stage, int ranks, Pass pass,
                                 const cost::Rates& rates) {
  std::vector<double> seconds(static_cast<std::size_t>(ranks), 0.0);
  for (const PlacedTask& placed : stage.tasks) {
    double& server = seconds[at(placed.server)];
    server = with_task(server, placed, pass, rates);
  }
  return seconds;
}

Prediction predict(const Plan& plan, const cost::Pool& pool) {
  std::vector<double> servers(static_cast<std::size_t>(plan.workload.ranks), 0.0);
  Prediction prediction;
  for (const Stage& stage : plan.stages) {
    const std::vector<double> tasks =
        task_seconds(stage, plan.workload.ranks, Pass::forward, pool.rates);
    for (std::size_t rank = 0; rank < servers.size(); ++rank) servers[rank] += tasks[rank];
    prediction.predicted_seconds += largest_transfer(stage, plan.workload.ranks, pool);
  }
  const double all = std::accumulate(servers.begin(), servers.end(), 0.0);
  prediction.lower_bound_seconds = all / usual_ranks(plan.workload.pool_capacity());
  for (std::size_t rank = 0; rank < servers.size(); ++rank) {
    servers[rank] /= usual_ranks(plan.workload.capacity(static_cast<Rank>(rank)));
  }
  prediction.predicted_seconds += std::ranges::max(servers);
  return prediction;
}

std::vector<double> cost_at_home(const Workload& workload) {
  const AttentionShape& shape = workload.shape;
  const double flops_per_pair = 4.0 * shape.head_dim * shape.heads;
  std::vector<double> cost(static_cast<std::size_t>(workload.ranks), 0.0);
  for (const Home& home : workload.homes) {
    const auto document = static_cast<std::size_t>(home.document);
    const Range q = intersect(home.tokens, workload.queries_of(document));
    if (q.empty()) continue;
    const std::int64_t pairs = mask_pairs(workload, home.document, q);
    cost[at(home.rank)] += flops_per_pair * static_cast<double>(pairs) *
                           kept_share(workload, {home.document, q, {0, q.end}, {0, 1}});
  }
  return cost;
}

double imbalance_at_home(const Workload& workload, const std::vector<double>& cost_per_rank) {
  std::vector<char> counts(cost_per_rank.size(), 0);
  for (Rank server : workload.servers) counts[at(server)] = 1;
  const bool trainers_serve = std::all_of(workload.homes.begin(), workload.homes.end(),
                                          [&](const Home& home) { return counts[at(home.rank)]; });
  double largest = 0;  // for a usual rank
  double total = 0;
  std::int64_t capacity = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    if ((counts[rank] != 0) != trainers_serve) continue;
    const std::int64_t mine = workload.capacity(static_cast<Rank>(rank));
    largest = std::max(largest, cost_per_rank[rank] / usual_ranks(mine));
    total += cost_per_rank[rank];
    capacity += mine;
  }
  return total > 0 ? largest * usual_ranks(capacity) / total : 1.0;
}

// What attention.tolerance: auto compares.

namespace {

using Seconds = std::vector<double>;  // by rank

/// Seconds for which some moves of a stage occupy the ranks' ports, and their copies the
/// processors.
struct Transfers {
  explicit Transfers(int ranks)
      : sent(static_cast<std::size_t>(ranks), 0.0),
        received(sent),
        packing(sent),
        unpacking(sent) {}

  double busiest_port() const {
    return std::max(std::ranges::max(sent), std::ranges::max(received)) + latency;
  }

  /// All that one rank sends to another.
  struct Message {
    Rank from = 0, to = 0;
    double seconds = 0, latency = 0;
  };

  Seconds sent, received, packing, unpacking;
  std::vector<Message> messages;
  double latency = 0;  ///< of the slowest message
};

/// Until when the ranks' ports are in use.
struct Ports {
  Seconds sending, receiving;

  /// When what a rank receives is there, 0 where it receives nothing; copies delay what is `done`.
  /// @param ready  from when on a rank can send
  Seconds arrivals(const Transfers& moved, const Seconds& ready, Seconds& done) {
    Seconds there(done.size(), 0.0);
    if (moved.messages.empty()) return there;
    for (std::size_t rank = 0; rank < done.size(); ++rank) done[rank] += moved.packing[rank];
    for (const Transfers::Message& message : moved.messages) {
      double& out = sending[at(message.from)];
      double& in = receiving[at(message.to)];
      const double packed = ready[at(message.from)] + moved.packing[at(message.from)];
      const double leaves = std::max(out, packed);
      out = leaves + message.seconds;
      in = std::max(leaves + message.latency, in) + message.seconds;
      there[at(message.to)] = std::max(there[at(message.to)], in);
    }
    for (std::size_t rank = 0; rank < done.size(); ++rank) {
      if (moved.received[rank] > 0) there[rank] += moved.unpacking[rank];
    }
    return there;
  }
};

/// What is sent: inputs that live at their sender, inputs that it has received, or results.
enum class Sent { from_home, handed_on, results };

/// One plan, one pass, on the ranks of a pool.
class PassTime {
 public:
  PassTime(const Plan& plan, Pass pass, const cost::Pool& pool)
      : plan_(plan), pass_(pass), pool_(pool), ranks_(plan.workload.ranks), homes_(plan.workload) {
    count_sharers();
    join_ranks();
  }

  /// Every message is waited for, stage by stage. Inputs leave their home as soon as it has
  /// computed them, or two stages ahead (Plan::paced), what is handed on when it has come, results
  /// when the tasks before are done; a rank's messages leave and come one after another.
  double exposed() const {
    Seconds done = rest_of_layer();
    Ports ports{done, done};
    const Seconds home = done;
    std::vector<Seconds> came;      // when what a stage brought was there
    std::vector<Seconds> computed;  // when the tasks of a stage were done
    Seconds results = home;         // when those of the stage before are there
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const Stage& stage = plan_.stages[s];
      const Seconds& leave = plan_.paced && s > 2 ? came[s - 2] : home;
      const Seconds& brought = s > 0 ? came.back() : home;
      const Seconds inputs = ports.arrivals(transfers(stage, Sent::from_home, s), leave, done);
      const Seconds passed = ports.arrivals(transfers(stage, Sent::handed_on, s), brought, done);
      const int complete = last_tasks_of_results(plan_, s, pass_);
      const Seconds& ended = complete < 0 ? home : computed[at(complete)];
      const Seconds next = ports.arrivals(transfers(stage, Sent::results, s), ended, done);
      const Seconds tasks = tasks_of(stage);
      for (std::size_t rank = 0; rank < done.size(); ++rank) {
        done[rank] = std::max({done[rank], inputs[rank], passed[rank]});
      }
      came.push_back(done);
      for (std::size_t rank = 0; rank < done.size(); ++rank) done[rank] += tasks[rank];
      computed.push_back(done);
      for (std::size_t rank = 0; rank < done.size(); ++rank) {
        done[rank] = std::max(done[rank], results[rank]);
      }
      results = next;
    }
    for (std::size_t rank = 0; rank < done.size(); ++rank) {
      done[rank] = std::max(done[rank], results[rank]);
    }
    return together(done);
  }

  /// `computing`: the slowest rank's tasks, layer and copies; `moving`: the busiest ports, summed
  /// over stages.
  struct Hidden {
    double computing = 0;
    double moving = 0;
  };
  Hidden hidden() const {
    Seconds computing = rest_of_layer();
    Hidden time;
    for (const Stage& stage : plan_.stages) {
      const Seconds tasks = tasks_of(stage);
      for (const Sent sent : {Sent::from_home, Sent::results}) {
        const Transfers moved = transfers(stage, sent);
        if (moved.messages.empty()) continue;
        time.moving += moved.busiest_port();
        for (std::size_t rank = 0; rank < computing.size(); ++rank) {
          computing[rank] += moved.packing[rank] + moved.unpacking[rank];
        }
      }
      for (std::size_t rank = 0; rank < computing.size(); ++rank) computing[rank] += tasks[rank];
    }
    time.computing = together(computing);
    return time;
  }

 private:
  /// What a layer takes from what ranks take. Ranks that exchange messages wait for each other in
  /// it, the others at the end of the step: over n microbatches, what trainers differ by chance
  /// adds up as its square root.
  double together(const Seconds& ranks) const {
    std::vector<double> slowest(ranks.size(), 0.0);  // by the first rank of those that exchange
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      double& least = slowest[at(joined_[rank])];
      least = std::max(least, ranks[rank]);
    }
    double sum = 0, trainers = 0;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (!trains_[rank]) continue;
      sum += slowest[at(joined_[rank])];
      ++trainers;
    }
    const double most = std::ranges::max(slowest);
    const double mean = trainers > 0 ? sum / trainers : most;
    return mean + (most - mean) / std::sqrt(static_cast<double>(pool_.microbatches));
  }

  void join_ranks() {
    trains_.resize(static_cast<std::size_t>(ranks_));
    for (const Home& home : plan_.workload.homes) trains_[at(home.rank)] = true;
    joined_.resize(static_cast<std::size_t>(ranks_));
    std::iota(joined_.begin(), joined_.end(), 0);
    const auto first = [&](Rank rank) {
      while (joined_[at(rank)] != rank) rank = joined_[at(rank)] = joined_[at(joined_[at(rank)])];
      return rank;
    };
    for (const Stage& stage : plan_.stages) {
      for (const Move& move : stage.moves) {
        const Rank from = first(move.from), to = first(move.to);
        joined_[at(std::max(from, to))] = std::min(from, to);
      }
    }
    for (Rank rank = 0; rank < ranks_; ++rank) joined_[at(rank)] = first(rank);
  }

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
    const double token = pass_ == Pass::forward ? pool_.forward_seconds : pool_.backward_seconds;
    Seconds seconds;
    for (const std::int64_t tokens : tokens_of_ranks(plan_.workload)) {
      seconds.push_back(token * static_cast<double>(tokens));
    }
    return seconds;
  }

  Seconds tasks_of(const Stage& stage) const {
    Seconds seconds = task_seconds(stage, ranks_, pass_, pool_.rates);
    for (Rank rank = 0; rank < ranks_; ++rank) {
      seconds[at(rank)] /= usual_ranks(plan_.workload.capacity(rank));
    }
    return seconds;
  }

  /// @param s  number of the stage: inputs of the first two all come from their home
  Transfers transfers(const Stage& stage, Sent sent, std::size_t s = 0) const {
    Transfers moved(ranks_);
    if (s < 2 && sent == Sent::handed_on) return moved;
    for (const Move& move : stage.moves) {
      if (is_result(move.what, pass_) != (sent == Sent::results)) continue;
      if (s >= 2 && sent != Sent::results && is_at_home(move) != (sent == Sent::from_home))
        continue;
      const cost::Way way = pool_.rates.way(pool_.world_rank(move.from), pool_.world_rank(move.to));
      const double seconds = static_cast<double>(move.bytes) / way.bytes_per_second;
      const auto share = [&](Rank rank) { return way.between_nodes ? sharers_[at(rank)] : 1; };
      const double leaving = seconds * share(move.from), coming = seconds * share(move.to);
      moved.sent[at(move.from)] += leaving;
      moved.received[at(move.to)] += coming;
      if (pool_.rates.software().copies_rows || !travels_in_place(move)) {
        moved.packing[at(move.from)] += pool_.rates.pack(move.bytes);
        moved.unpacking[at(move.to)] += pool_.rates.unpack(move.bytes);
      }
      moved.latency = std::max(moved.latency, way.latency_seconds);
      std::vector<Transfers::Message>& all = moved.messages;
      if (all.empty() || all.back().from != move.from || all.back().to != move.to) {
        all.push_back({move.from, move.to, 0, way.latency_seconds});
      }
      all.back().seconds += std::max(leaving, coming);
    }
    return moved;
  }

  bool is_at_home(const Move& move) const {
    return !is_key_side(move.what) || homes_.held(move.from, move.document, move.tokens) > 0;
  }

  const Plan& plan_;
  Pass pass_;
  const cost::Pool& pool_;
  int ranks_;
  Homes homes_;
  std::vector<int> sharers_;  ///< by rank
  std::vector<Rank> joined_;  ///< by rank: the first of those that exchange messages with it
  std::vector<bool> trains_;  ///< by rank: has tokens
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
