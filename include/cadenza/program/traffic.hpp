// SPDX-License-Identifier: Apache-2.0
// A plan by rank: the homes of each rank of the pool, and its sends, receives and tasks in each
// stage. It is built once, so that nothing has to search the whole plan for every rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/range.hpp"
#include "cadenza/plan/plan.hpp"
#include "cadenza/program/schedule.hpp"

namespace cadenza::program {

/// One message: all inputs, or all results, that one rank sends to another in a stage.
struct PlannedMessage {
  Rank from = 0;  ///< rank of the plan, as is `to`
  Rank to = 0;
  bool results = false;
  std::int64_t bytes = 0;
  std::int64_t copied_out = 0;  ///< bytes of them that the sender copies into the message
  std::int64_t copied_in = 0;   ///< bytes of them that the receiver copies out of it
  bool slices = false;          ///< has only some heads of rows that have all heads at home
  Range moves;                  ///< place in the lists of Traffic::moves
  friend bool operator==(const PlannedMessage&, const PlannedMessage&) = default;
};

/// Indices into a list of a plan or of a Traffic.
using Indices = std::span<const std::uint32_t>;

/// A rank's part in a stage. Valid as long as its Traffic lives and is not moved.
struct Part {
  Range sends;                  ///< indices of messages, ascending by (to, results)
  Indices receives;             ///< indices of messages, ascending by (from, results)
  Indices tasks;                ///< indices of the plan stage's tasks, ascending
  bool inputs = false;          ///< sends or receives inputs
  bool inputs_arrive = false;   ///< receives inputs
  bool results = false;         ///< sends or receives results
  bool results_arrive = false;  ///< receives results
  /// The stage after whose arrival, before its tasks, the messages of inputs of this stage are
  /// posted: it brings the last rows that some rank sends on in it or, where that is later, lies
  /// two stages before it (Plan::paced). -1: all rows are at home, and the messages are posted when
  /// attention begins. One place for all ranks: NCCL's messages have no tags, so both ends of a
  /// pair must reach them in the same order, also where a device runs inputs and results one after
  /// another.
  int ready = -1;
  /// The stage after whose tasks the messages of results of this stage are posted: some rank
  /// computes the last of them there. One place for all ranks, too.
  int complete = -1;
};

class Traffic {
 public:
  /// The traffic of a plan without stages.
  Traffic() = default;
  /// @param pass  the pass of the plan
  Traffic(const plan::Plan& plan, Pass pass);
  /// The traffic of the plan's index rounds, each of which leaves when it is posted.
  static Traffic of_index(const plan::Plan& plan, Pass pass);

  int stages() const { return static_cast<int>(stages_.size()); }

  /// The messages of a stage, ascending by (from, to, results), each of which occurs once.
  std::span<const PlannedMessage> messages(int stage) const { return planned(stage).messages; }

  /// Indices of a message's moves in the plan's stage, ascending.
  Indices moves(int stage, const PlannedMessage& message) const;

  /// A rank's part in a stage; empty for a rank without one.
  Part of(Rank rank, int stage) const;

  /// The stage behind the last one in which the rank has tasks or inputs: results that arrive in
  /// that one or later are awaited when attention ends, and their buffers live until then.
  int end_of_tasks(Rank rank) const;

  /// Indices of a rank's homes in the workload, ascending.
  Indices homes(Rank rank) const;

 private:
  /// The begin of a rank's messages and tasks, which end where the next rank's begin.
  struct Begins {
    std::uint32_t sends = 0;
    std::uint32_t receives = 0;
    std::uint32_t tasks = 0;
  };
  struct Stage {
    std::vector<PlannedMessage> messages;
    std::vector<std::uint32_t> moves;     ///< indices, by message
    std::vector<std::uint32_t> receives;  ///< indices of messages, by receiver
    std::vector<std::uint32_t> tasks;     ///< indices, by server
    std::vector<Begins> ranks;            ///< by rank, and one more for the end
    int ready = -1;                       ///< Part::ready
    int complete = -1;                    ///< Part::complete
  };
  const Stage& planned(int stage) const { return stages_[at(stage)]; }
  Stage make_stage(const plan::Stage& planned, const plan::Workload& workload, Pass pass,
                   std::size_t ranks) const;
  bool lies_together(const plan::Workload& workload, const plan::Move& move) const;
  /// Where the messages of each stage are posted.
  void add_places(const plan::Plan& plan, Pass pass);
  int brought_by(const plan::Plan& plan, const plan::Move& move, int after, int before) const;

  std::vector<Stage> stages_;
  std::vector<std::uint32_t> homes_;        ///< indices, by rank
  std::vector<std::uint32_t> homes_begin_;  ///< by rank, and one more for the end
};

}  // namespace cadenza::program
