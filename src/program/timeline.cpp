// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/timeline.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "cadenza/base/error.hpp"
#include "cadenza/config/flops.hpp"
#include "messages.hpp"

namespace cadenza::program {
namespace {

/// Bytes between this rank and each peer in a stage, one way.
using Traffic = std::vector<std::pair<Rank, std::int64_t>>;

/// What a rank's tasks and messages of a stage amount to: equal in all layers.
struct StageWork {
  double flops = 0;
  Traffic in[2];  ///< inputs, results: from whom
};

class Clock {
 public:
  Clock(const config::Experiment& experiment, const Outline& outline,
        std::span<const Program> programs, std::span<const TickPlans> ticks,
        const plan::CostModel& model)
      : e_(experiment),
        outline_(outline),
        layout_(outline.layout),
        programs_(programs),
        model_(model),
        next_(programs.size(), 0),
        now_(programs.size(), 0.0),
        busy_(programs.size(), 0.0),
        sent_(programs.size()) {
    for (const TickPlans& tick : ticks) {
      work_[0].push_back(stage_work(tick.forward, Pass::forward));
      work_[1].push_back(stage_work(tick.backward, Pass::backward));
      rows_.push_back(rows_of(tick));
    }
    const auto bytes = static_cast<double>(config::element_bytes(e_.run.dtype).accumulator);
    stream_bytes_ = bytes * static_cast<double>(e_.model.d_model);
    gradient_bytes_ = bytes * rest_of_parameters();
  }

  Timeline run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < programs_.size(); ++rank) moved |= advance(rank);
    }
    Timeline timeline;
    for (std::size_t rank = 0; rank < programs_.size(); ++rank) {
      if (next_[rank] < programs_[rank].steps.size()) {
        fail(ExitCode::communication, "programs deadlock: rank {} never gets past {}", rank,
             to_string(programs_[rank].steps[next_[rank]]));
      }
    }
    timeline.seconds = *std::ranges::max_element(now_);
    timeline.busy_seconds = busy_;
    timeline.lower_bound_seconds = std::accumulate(busy_.begin(), busy_.end(), 0.0) /
                                   static_cast<double>(std::max<std::size_t>(1, busy_.size()));
    return timeline;
  }

 private:
  // --- what the plans say, once per tick ---

  std::vector<std::map<Rank, StageWork>> stage_work(const plan::Plan& plan, Pass pass) const {
    std::vector<std::map<Rank, StageWork>> stages;
    for (const plan::Stage& stage : plan.stages) {
      std::map<Rank, StageWork>& work = stages.emplace_back();
      for (const plan::PlacedTask& placed : stage.tasks) work[placed.server].flops += placed.cost;
      std::map<std::tuple<Rank, Rank, bool>, std::int64_t> bytes;
      for (const plan::Move& move : stage.moves) {
        bytes[{move.to, move.from, is_result(move.what, pass)}] += move.bytes;
      }
      for (const auto& [key, count] : bytes) {
        const auto& [to, from, result] = key;
        work[to].in[result ? 1 : 0].emplace_back(from, count);
      }
    }
    return stages;
  }

  std::vector<std::int64_t> rows_of(const TickPlans& tick) const {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(layout_.pool_size()), 0);
    const plan::Workload& workload = tick.forward.workload;
    for (const plan::Home& home : workload.homes) {
      const Range queries = workload.queries_of(static_cast<std::size_t>(home.document));
      rows[static_cast<std::size_t>(home.rank)] +=
          std::max<std::int64_t>(0, intersect(home.tokens, queries).size());
    }
    return rows;
  }

  const StageWork* work_of(Rank rank, const Step& step) const {
    const auto& stages = work_[step.pass == Pass::forward ? 0 : 1];
    const auto& stage =
        stages[static_cast<std::size_t>(step.tick)][static_cast<std::size_t>(step.stage)];
    const auto found = stage.find(layout_.in_pool(rank));
    return found == stage.end() ? nullptr : &found->second;
  }

  // --- the clock ---

  bool advance(std::size_t rank) {
    bool moved = false;
    const auto& steps = programs_[rank].steps;
    while (next_[rank] < steps.size()) {
      const Step& step = steps[next_[rank]];
      const std::optional<double> start = start_of(static_cast<Rank>(rank), step);
      if (!start) break;
      const double seconds = seconds_of(static_cast<Rank>(rank), step);
      now_[rank] = *start + seconds;
      if (is_computation(step.operation)) busy_[rank] += seconds;
      note(static_cast<Rank>(rank), step);
      ++next_[rank];
      moved = true;
    }
    return moved;
  }

  /// When the operation can start; nothing: what it waits for is not on its way yet.
  std::optional<double> start_of(Rank rank, const Step& step) {
    const double now = now_[static_cast<std::size_t>(rank)];
    switch (step.operation) {
      case Operation::wait:
      case Operation::wait_results:
        return arrival(rank, step);
      case Operation::receive:
        return stream_arrival(rank, step);
      case Operation::reduce_gradients:
      case Operation::gather_parameters:
        return meet(rank, step, layout_.coordinates(rank).pipeline);
      case Operation::optimize:
        return meet(rank, step, -1);
      default:
        return now;
    }
  }

  std::optional<double> arrival(Rank rank, const Step& step) const {
    const bool results = step.operation == Operation::wait_results;
    double latest = now_[static_cast<std::size_t>(rank)];
    const StageWork* work = work_of(rank, step);
    if (work == nullptr) return latest;
    double received = 0;  // a rank takes what arrives one after the other
    for (const auto& [peer, bytes] : work->in[results ? 1 : 0]) {
      const Rank from = layout_.world_rank(layout_.pool_of(rank), peer);
      const auto& sent = sent_[static_cast<std::size_t>(from)];
      const auto posted = sent.find(messages(step, results));
      if (posted == sent.end()) return std::nullopt;
      received += seconds_for(static_cast<double>(bytes));
      latest = std::max(latest, posted->second + received);
    }
    return latest;
  }

  std::optional<double> stream_arrival(Rank rank, const Step& step) {
    auto& queue = streams_[{step.peer, rank, step.pass}];
    if (queue.empty()) return std::nullopt;
    const double there = queue.front();
    queue.erase(queue.begin());
    return std::max(now_[static_cast<std::size_t>(rank)], there);
  }

  /// A collective starts when the last of its ranks is there.
  std::optional<double> meet(Rank rank, const Step& step, int pipeline) {
    auto& arrived = arrived_[{step.operation, pipeline}];
    arrived[rank] = now_[static_cast<std::size_t>(rank)];
    const int expected =
        pipeline < 0 ? layout_.trainers() : layout_.trainers() / layout_.pipeline();
    if (static_cast<int>(arrived.size()) < expected) return std::nullopt;
    double latest = 0;
    for (const auto& [member, time] : arrived) latest = std::max(latest, time);
    return latest;
  }

  void note(Rank rank, const Step& step) {
    const double now = now_[static_cast<std::size_t>(rank)];
    const bool results = step.operation == Operation::post_results;
    if (step.operation == Operation::post || results) {
      sent_[static_cast<std::size_t>(rank)][messages(step, results)] = now;
    }
    if (step.operation == Operation::send) {
      const double bytes =
          stream_bytes_ * static_cast<double>(rows(rank, step, true)) / layout_.tensor();
      streams_[{rank, step.peer, step.pass}].push_back(now + seconds_for(bytes));
    }
  }

  // --- how long an operation takes ---

  static bool is_computation(Operation operation) {
    switch (operation) {
      case Operation::attention_inputs:
      case Operation::attention_outputs:
      case Operation::attend:
      case Operation::loss:
        return true;
      default:
        return false;
    }
  }

  double seconds_for(double bytes) const {
    return model_.latency_seconds + bytes / model_.bytes_per_second;
  }

  /// Rows of a part of a microbatch; of all parts where an operation is not split.
  std::int64_t rows(Rank rank, const Step& step, bool all) const {
    const auto in_pool = static_cast<std::size_t>(layout_.in_pool(rank));
    const auto tick = static_cast<std::size_t>(step.tick);
    if (!all) return rows_[tick][in_pool];
    std::int64_t sum = 0;
    const std::size_t first = tick - tick % static_cast<std::size_t>(outline_.parts);
    for (int part = 0; part < outline_.parts; ++part) {
      sum += rows_[first + static_cast<std::size_t>(part)][in_pool];
    }
    return sum;
  }

  double seconds_of(Rank rank, const Step& step) const {
    const double passes = step.pass == Pass::backward ? 2.0 : 1.0;
    const int tensor = layout_.tensor();
    switch (step.operation) {
      case Operation::attention_inputs:
        return passes * dense(config::attention_inputs_flops(e_.model, tensor,
                                                             rows(rank, step, false))) +
               tensor_seconds(rank, step, 1);
      case Operation::attention_outputs:
        return passes * dense(config::attention_outputs_flops(e_.model, tensor,
                                                              rows(rank, step, false))) +
               tensor_seconds(rank, step, 3);
      case Operation::loss:
        return 3.0 * dense(config::head_flops(e_.model, tensor, rows(rank, step, false))) +
               tensor_seconds(rank, step, 2);
      case Operation::attend: {
        const StageWork* work = work_of(rank, step);
        return work == nullptr ? 0 : work->flops / model_.attention_flops_per_second;
      }
      case Operation::reduce_gradients:
      case Operation::gather_parameters:
        return replicas() == 1 ? 0 : seconds_for(2.0 * gradient_bytes_);
      default:
        return 0;
    }
  }

  double dense(double flops) const { return flops / model_.dense_flops_per_second; }

  /// Gathers and scatters of rows over a tensor group.
  double tensor_seconds(Rank rank, const Step& step, int collectives) const {
    const int tensor = layout_.tensor();
    if (tensor == 1) return 0;
    const double bytes =
        stream_bytes_ * static_cast<double>(rows(rank, step, false)) * (tensor - 1) / tensor;
    return collectives * seconds_for(bytes);
  }

  int replicas() const { return layout_.data() * layout_.context(); }

  /// Elements whose sums are not hidden under the backward pass: embedding and head of a stage.
  double rest_of_parameters() const {
    const double tables = layout_.pipeline() > 1 || e_.model.tie_embeddings ? 1 : 2;
    return tables * static_cast<double>(e_.model.vocab) * static_cast<double>(e_.model.d_model) /
           layout_.tensor();
  }

  const config::Experiment& e_;
  const Outline& outline_;
  const Layout& layout_;
  std::span<const Program> programs_;
  plan::CostModel model_;
  std::vector<std::vector<std::map<Rank, StageWork>>> work_[2];  ///< by pass, tick, stage
  std::vector<std::vector<std::int64_t>> rows_;                  ///< by tick, rank of the pool
  std::vector<std::size_t> next_;
  std::vector<double> now_;
  std::vector<double> busy_;
  std::vector<std::map<Messages, double>> sent_;
  std::map<std::tuple<Rank, Rank, Pass>, std::vector<double>> streams_;
  std::map<std::pair<Operation, int>, std::map<Rank, double>> arrived_;
  double stream_bytes_ = 0;    ///< of a row of the residual stream
  double gradient_bytes_ = 0;  ///< summed after the backward pass
};

}  // namespace

Timeline predict_step(const config::Experiment& experiment, const Outline& outline,
                      std::span<const Program> programs, std::span<const TickPlans> ticks,
                      const plan::CostModel& model) {
  return Clock(experiment, outline, programs, ticks, model).run();
}

}  // namespace cadenza::program
