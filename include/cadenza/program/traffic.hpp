// SPDX-License-Identifier: Apache-2.0
// Who does what in a plan, by rank: what each rank of the pool holds, and what it sends, receives
// and computes in each stage. Worked out once, so that nobody searches a whole plan for every rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/range.hpp"
#include "cadenza/plan/plan.hpp"
#include "cadenza/program/schedule.hpp"

namespace cadenza::program {

/// All that one rank sends to another in a stage: one message of inputs or one of results.
struct Flow {
  Rank from = 0;  ///< as the plan calls ranks
  Rank to = 0;
  bool results = false;
  std::int64_t bytes = 0;
  bool slices = false;  ///< has some heads only of rows that are whole at their home
  Range moves;          ///< for Traffic::moves
  friend bool operator==(const Flow&, const Flow&) = default;
};

/// Indices into a list of a plan or of a Traffic.
using Indices = std::span<const std::uint32_t>;

/// A rank's part in a stage. Valid as long as the Traffic that it is of lives and stays in place.
struct Part {
  Range sends;                  ///< of the stage's flows: ascending by (to, results)
  Indices receives;             ///< of the stage's flows: ascending by (from, results)
  Indices tasks;                ///< of the plan stage's tasks, ascending
  bool inputs = false;          ///< sends or receives inputs
  bool inputs_arrive = false;   ///< receives some
  bool results = false;         ///< sends or receives results
  bool results_arrive = false;  ///< receives some
  /// The stage that brings the last of the inputs which the rank sends in this one or in an earlier
  /// one: this stage is posted right after it, before its tasks run. -1: all are at home, and it is
  /// posted when attention begins.
  int ready = -1;
};

class Traffic {
 public:
  /// Of a plan without stages.
  Traffic() = default;
  /// @param pass  that the plan is for
  Traffic(const plan::Plan& plan, Pass pass);
  /// Of the plan's index rounds, each of which leaves when it is posted.
  static Traffic of_index(const plan::Plan& plan, Pass pass);

  int stages() const { return static_cast<int>(stages_.size()); }

  /// Ascending by (from, to, results), each of them once.
  std::span<const Flow> flows(int stage) const { return planned(stage).flows; }

  /// Of the plan stage's moves: those of a flow, ascending.
  Indices moves(int stage, const Flow& flow) const;

  /// Nothing, for a rank that has no part in the stage.
  Part of(Rank rank, int stage) const;

  /// Of the workload's homes: those of a rank, ascending.
  Indices homes(Rank rank) const;

 private:
  /// Where a rank's flows and tasks begin; they end where those of the next rank begin.
  struct Begins {
    std::uint32_t sends = 0;
    std::uint32_t receives = 0;
    std::uint32_t tasks = 0;
    std::int32_t ready = -1;
  };
  struct Stage {
    std::vector<Flow> flows;
    std::vector<std::uint32_t> moves;     ///< by flow
    std::vector<std::uint32_t> receives;  ///< flows by receiver
    std::vector<std::uint32_t> tasks;     ///< by server
    std::vector<Begins> ranks;            ///< and one more for the end
  };
  const Stage& planned(int stage) const { return stages_[at(stage)]; }
  static Stage make_stage(const plan::Stage& planned, const plan::AttentionShape& shape, Pass pass,
                          std::size_t ranks);
  void add_ready(const plan::Plan& plan);
  void post_in_order();
  int brought_by(const plan::Plan& plan, const plan::Move& move, int after, int before) const;

  std::vector<Stage> stages_;
  std::vector<std::uint32_t> homes_;        ///< by rank
  std::vector<std::uint32_t> homes_begin_;  ///< by rank, and one more for the end
};

}  // namespace cadenza::program
