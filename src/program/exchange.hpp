// SPDX-License-Identifier: Apache-2.0
// The attention of a layer on one rank, as operations: when the messages of a plan's stages start,
// when they are waited for, and the tasks between. Layers of a class have the
// same plan.
//
// A rank waits for what arrives. Where it only sends, nobody's work depends on the end of the
// message: the executor completes it before it uses the memory again.
#pragma once

#include <vector>

#include "cadenza/program/program.hpp"

namespace cadenza::program {

class AttentionOperations {
 public:
  /// @param self  this rank, as the plan calls it
  AttentionOperations(const TickPlans& plans, Pass pass, Rank self);

  // `place` has tick, layer, part, ... of the operations that are added.

  /// The observed queries leave.
  void add_index_start(const Step& place, std::vector<Step>& steps) const;
  /// The index of sparse documents, up to the patterns that this rank needs. A pass that has been
  /// run before only gets those, from their owners.
  void add_index(const Step& place, std::vector<Step>& steps) const;

  /// Messages of inputs that lie ready at home (or are only received here), up to the first stage
  /// whose do not: they are under way while tasks run that need none of them.
  void add_start(const Step& place, std::vector<Step>& steps) const;
  /// All tasks, stage by stage. Inputs that this rank passes on leave as soon as they are here,
  /// before the tasks that use them; results leave as soon as their tasks are done.
  void add_tasks(const Step& place, std::vector<Step>& steps) const;
  /// The results that arrive after the last task.
  void add_end(const Step& place, std::vector<Step>& steps) const;

 private:
  std::size_t end_of_tasks() const;

  /// A rank's part in an index round.
  struct Round {
    Part messages;
    bool works = false;
  };

  std::vector<Part> stages_;
  std::vector<Round> rounds_;
};

// What a rank runs in a step, one pass of a microbatch after the other.

/// A pass of a microbatch through a chunk on a rank; microbatch -1: only its attention tasks.
struct MicrobatchPass {
  Pass pass = Pass::forward;
  int tick = 0;
  int microbatch = -1;
  int chunk = 0;
};

/// Of a trainer of a stage, or of a dedicated server.
std::vector<MicrobatchPass> microbatch_passes(const StepShape& step_shape, bool trainer, int stage);

}  // namespace cadenza::program
