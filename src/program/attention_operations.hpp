// SPDX-License-Identifier: Apache-2.0
// The attention of a layer on one rank as operations: posts of the messages of a plan's stages,
// waits for them, and tasks. Layers of a class have the same plan.
//
// A rank waits only for messages that it receives. As no work depends on the end of a send, the
// executor completes it before it uses the memory again.
#pragma once

#include <vector>

#include "cadenza/program/program.hpp"

namespace cadenza::program {

class AttentionOperations {
 public:
  /// @param self  this rank's number in the plan
  AttentionOperations(const TickPlans& plans, Pass pass, Rank self);

  // `place` has the tick, layer, half, ... of the operations that are added.

  /// Adds the post of the first index round.
  void add_index_start(const Instruction& place, std::vector<Instruction>& instructions) const;
  /// Adds the rounds of the index of sparse documents, up to the patterns that this rank needs. A
  /// recomputed pass only gets the patterns, from their owners.
  void add_index(const Instruction& place, std::vector<Instruction>& instructions) const;

  /// Adds the posts of stages whose inputs are at home (or are only received here): they are under
  /// way while tasks run that do not need them.
  void add_start(const Instruction& place, std::vector<Instruction>& instructions) const;
  /// Adds all tasks, stage by stage. Inputs that this rank sends on leave as soon as they arrive,
  /// before the tasks that use them; results leave as soon as their tasks are done, and are awaited
  /// a stage after that in which they arrive: ranks that compute are seldom in step.
  void add_tasks(const Instruction& place, std::vector<Instruction>& instructions) const;
  /// Adds the waits for results that arrive in the last stage with tasks or after it.
  void add_end(const Instruction& place, std::vector<Instruction>& instructions) const;

 private:
  /// A rank's part in an index round.
  struct Round {
    Part messages;
    bool works = false;
  };

  std::size_t end_of_tasks_ = 0;  ///< Traffic::end_of_tasks
  std::vector<Part> stages_;
  std::vector<Round> rounds_;
};

}  // namespace cadenza::program
