// SPDX-License-Identifier: Apache-2.0
#include "cadenza/program/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace cadenza::program {
namespace {

constexpr std::array<std::string_view, 11> kNames = {
    "embed",          "attention_inputs", "begin_attention",   "post",
    "wait",           "attend",           "attention_outputs", "loss",
    "embed_gradient", "reduce_gradients", "optimize"};

bool takes_part(const plan::Stage& stage, Rank rank) {
  return std::ranges::any_of(
      stage.moves, [rank](const plan::Move& move) { return move.from == rank || move.to == rank; });
}

bool has_tasks(const plan::Stage& stage, Rank rank) {
  return std::ranges::any_of(stage.tasks,
                             [rank](const plan::PlacedTask& task) { return task.server == rank; });
}

/// Inputs lie ready when attention begins; results exist only after tasks.
bool moves_inputs_only(const plan::Stage& stage, Pass pass) {
  return std::ranges::none_of(
      stage.moves, [pass](const plan::Move& move) { return is_result(move.what, pass); });
}

/// Appends one rank's operations to a program.
class Builder {
 public:
  Builder(Rank rank, int trainers, int layers)
      : program_{rank, {}}, trainer_(rank < trainers), layers_(layers) {}

  void add_tick(int tick, const TickPlans& plans) {
    if (trainer_) add(Operation::embed, Pass::forward, tick);
    for (int layer = 0; layer < layers_; ++layer) {
      if (trainer_) add(Operation::attention_inputs, Pass::forward, tick, layer);
      add_attention(tick, layer, Pass::forward, plans.forward);
      if (trainer_) add(Operation::attention_outputs, Pass::forward, tick, layer);
    }
    if (trainer_) add(Operation::loss, Pass::forward, tick);
    for (int layer = layers_ - 1; layer >= 0; --layer) {
      if (trainer_) add(Operation::attention_outputs, Pass::backward, tick, layer);
      add_attention(tick, layer, Pass::backward, plans.backward);
      if (trainer_) add(Operation::attention_inputs, Pass::backward, tick, layer);
    }
    if (trainer_) add(Operation::embed_gradient, Pass::backward, tick);
  }

  Program finish() {
    if (trainer_) {
      add(Operation::reduce_gradients, Pass::backward);
      add(Operation::optimize, Pass::backward);
    }
    return std::move(program_);
  }

 private:
  void add(Operation operation, Pass pass, int tick = -1, int layer = -1, int stage = -1) {
    program_.steps.push_back({operation, pass, tick, layer, stage});
  }

  /// Messages of inputs are under way while the tasks that need none of them run; those of results
  /// start when every earlier task is done.
  void add_attention(int tick, int layer, Pass pass, const plan::Plan& plan) {
    const Rank rank = program_.rank;
    const int stages = static_cast<int>(plan.stages.size());
    const bool idle = std::ranges::none_of(plan.stages, [rank](const plan::Stage& stage) {
      return takes_part(stage, rank) || has_tasks(stage, rank);
    });
    if (idle && !trainer_) return;
    add(Operation::begin_attention, pass, tick, layer);
    for (int stage = 0; stage < stages; ++stage) {
      if (takes_part(plan.stages[stage], rank) && moves_inputs_only(plan.stages[stage], pass)) {
        add(Operation::post, pass, tick, layer, stage);
      }
    }
    for (int stage = 0; stage < stages; ++stage) {
      if (takes_part(plan.stages[stage], rank)) {
        if (!moves_inputs_only(plan.stages[stage], pass)) {
          add(Operation::post, pass, tick, layer, stage);
        }
        add(Operation::wait, pass, tick, layer, stage);
      }
      if (has_tasks(plan.stages[stage], rank)) add(Operation::attend, pass, tick, layer, stage);
    }
  }

  Program program_;
  bool trainer_;
  int layers_;
};

}  // namespace

bool is_result(plan::Tensor what, Pass pass) {
  return plan::is_result(what) && !(pass == Pass::backward && what == plan::Tensor::lse);
}

std::string_view name(Operation operation) {
  return kNames[static_cast<std::size_t>(operation)];
}

Program make_program(Rank rank, int trainers, int layers, std::span<const TickPlans> ticks) {
  Builder builder(rank, trainers, layers);
  for (std::size_t tick = 0; tick < ticks.size(); ++tick) {
    builder.add_tick(static_cast<int>(tick), ticks[tick]);
  }
  return builder.finish();
}

std::string to_string(const Step& step) {
  std::string text;
  if (step.tick >= 0) text += fmt::format("tick {} ", step.tick);
  if (step.layer >= 0) text += fmt::format("layer {} ", step.layer);
  text += fmt::format("{} {}", step.pass == Pass::forward ? "forward" : "backward",
                      name(step.operation));
  if (step.stage >= 0) text += fmt::format(" stage {}", step.stage);
  return text;
}

}  // namespace cadenza::program
