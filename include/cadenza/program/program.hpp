// SPDX-License-Identifier: Apache-2.0
// The program of one rank for one step: its operations in order, derived from plans and layout.
// Data only: it is printed, counted and checked for deadlock as it is executed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cadenza/plan/plan.hpp"

namespace cadenza::program {

enum class Pass : std::uint8_t { forward, backward };

enum class Operation : std::uint8_t {
  embed,              ///< tokens -> first residual stream
  attention_inputs,   ///< norm, Q K V projections, rotation of K (backward: their gradients)
  begin_attention,    ///< empty outputs or gradients (backward: delta as well)
  post,               ///< packs and starts this rank's messages of a stage
  wait,               ///< completes them; places inputs, merges results
  attend,             ///< this rank's tasks of a stage
  attention_outputs,  ///< output projection, feed-forward (backward: their gradients)
  loss,               ///< final norm, logits, loss and its gradient
  embed_gradient,
  reduce_gradients,  ///< sum over data-parallel ranks
  optimize,          ///< clipping and parameter update
};
std::string_view name(Operation operation);

/// One operation. -1 where a field does not apply.
struct Step {
  Operation operation = Operation::embed;
  Pass pass = Pass::forward;
  int tick = -1;
  int layer = -1;
  int stage = -1;
  friend bool operator==(const Step&, const Step&) = default;
};

/// The plans of a tick: one serves all layers.
struct TickPlans {
  plan::Plan forward;
  plan::Plan backward;
  const plan::Plan& of(Pass pass) const { return pass == Pass::forward ? forward : backward; }
};

/// Whether tasks of this pass produce the tensor: O and LSE forward (LSE is an input of the
/// backward pass), dQ, dK, dV backward.
bool is_result(plan::Tensor what, Pass pass);

struct Program {
  Rank rank = 0;
  std::vector<Step> steps;
};

/// @param trainers  ranks [0, trainers) hold the model; the others are dedicated attention servers
Program make_program(Rank rank, int trainers, int layers, std::span<const TickPlans> ticks);

/// Runs all ranks' programs against each other, without data: one line for every rank that can
/// never go on (a wait whose peer never posts, a collective that not all trainers reach), none when
/// all of them end.
std::vector<std::string> deadlocks(std::span<const Program> programs, int trainers,
                                   std::span<const TickPlans> ticks);

/// "tick 0 layer 3 forward attend stage 1".
std::string to_string(const Step& step);

}  // namespace cadenza::program
