// SPDX-License-Identifier: Apache-2.0
// The clock of the simulator: a discrete-event simulation of one step.
//
// Every rank walks through its program. A queue holds, for each rank that can proceed, the time of
// its next event; run() takes the earliest, so that ports and collectives see requests in the order
// of time. Ties go to the lower rank, so a simulation gives the same result on any machine.
//
// An event either ends an operation or starts the next one: computation ends after the seconds of
// Work and Dense (varied by Perturbation); a post hands messages to the Network once both ends have
// posted them; a wait, a receive or a collective parks the rank until the last message or rank that
// it needs has arrived, which then puts it back into the queue. Every wait is attributed to its
// cause (RankTimes) and reported as a Span to the observer. When the queue is empty, all ranks have
// ended, or faults() names those that are stuck.
#pragma once

#include <map>
#include <queue>
#include <tuple>

#include "cadenza/simulate/simulator.hpp"
#include "simulate/dense.hpp"
#include "simulate/network.hpp"
#include "simulate/perturbation.hpp"
#include "simulate/work.hpp"

namespace cadenza::simulate {

class Clock {
 public:
  /// `observer` may be empty. All arguments must outlive the clock.
  Clock(const config::Experiment& experiment, const program::StepShape& step_shape,
        std::span<const program::Program> programs, std::span<const program::TickPlans> tick_plans,
        const Costs& costs, const Observer& observer, std::int64_t step);

  /// Processes events until no rank can proceed.
  void run();
  Result result() const;
  /// Describes deadlocked ranks; otherwise messages that only one end has posted. One line each.
  std::vector<std::string> faults() const;

 private:
  using Instruction = program::Instruction;

  enum class State : std::uint8_t {
    ready,      ///< can start its next operation
    running,    ///< in an operation, which ends at the rank's event
    draining,   ///< until its sends have left the memory that the next operation uses
    waiting,    ///< for attention messages
    receiving,  ///< waits for a residual stream
    meeting,    ///< until the last rank of a collective arrives
  };
  /// One end of a message for which a rank waits.
  struct End {
    StageMessages* stage;
    std::size_t message;
    bool sender;
    const Instruction* instruction;  ///< the one that posted or awaits it
  };
  /// Copies of message rows by one rank.
  struct Copies {
    std::int64_t bytes = 0;
    std::int64_t sent = 0;  ///< bytes of the messages, copied or not
    double seconds = 0;
  };
  /// Place of attention operations in one half: at a new place, earlier sends must complete first.
  using Place = std::tuple<int, int, program::Pass, bool>;

  struct RankState {
    const program::Program* program = nullptr;
    int pool = 0;
    Rank in_pool = 0;
    State state = State::ready;
    std::size_t next = 0;      ///< index of its current or next operation
    double now = 0;            ///< time of its last event
    double began = 0;          ///< begin of its operation
    std::size_t missing = 0;   ///< messages that it awaits and that are not under way
    double latest = 0;         ///< arrival of the last message or rank so far
    std::vector<End> awaited;  ///< message ends of this wait
    std::vector<End> sent[2];  ///< by half: sends not yet awaited
    Place place[2] = {};
    double compute = 0;            ///< seconds of its operation before it waits for others
    double sent_at = 0;            ///< when the stream that it receives was sent
    int tensor_collectives = 0;    ///< so far; equal on all ranks of a tensor group
    std::vector<double> gathers;   ///< when it posted each
    std::size_t gathered = 0;      ///< gathers for which it has waited
    double copied = 0;             ///< end of its last copy to or from host memory
    std::map<int, double> copies;  ///< by slot: end of the last
    RankTimes times;
    std::vector<double> attention;  ///< seconds by layer pass, on ranks that serve
    Rank rank() const { return program->rank; }
    bool ended() const { return next == program->instructions.size(); }
    const Instruction& instruction() const { return program->instructions[next]; }
  };

  /// A group by kind and number.
  using MeetingKey = std::pair<program::Group, int>;
  /// Ranks that have arrived at a collective.
  struct Rendezvous {
    std::vector<std::size_t> runners;
    double latest = 0;
    std::map<int, double> latest_of_data;  ///< by data coordinate, at the end of pipelines
  };
  /// Collectives of the ranks that hold the same part, beside computation. They run one at a time,
  /// in the order in which their last rank posted them, as those of a communicator of NCCL do.
  struct Replicas {
    struct Sum {
      std::size_t posted = 0;
      double begin = 0;
      double end = 0;
    };
    struct Gather {
      std::size_t posted = 0;
      std::size_t left = 0;              ///< runners that have waited for it
      double ready = 0;                  ///< of the last post
      double end = 0;                    ///< once all have posted
      std::vector<std::size_t> waiting;  ///< runners that wait for the last post
    };
    double free = 0;                          ///< end of the last collective
    std::map<std::pair<int, int>, Sum> sums;  ///< by tick and layer
    std::map<std::size_t, Gather> gathers;    ///< under way, by their number in the step
    double run(double ready, double seconds);
  };
  struct Stream {
    std::size_t sent = 0;
    std::size_t received = 0;
    bool awaited = false;
  };

  // clock.cpp: the event loop.
  void wake(std::size_t runner, double time);
  void resume(std::size_t runner, double time);
  void place_pauses(const RankState& runner);
  void start(std::size_t runner);
  void start_operation(std::size_t runner);
  void finish(std::size_t runner);
  void start_copy(std::size_t runner);
  void wait_for_copy(std::size_t runner);
  void next_operation(std::size_t runner);
  void run_for(std::size_t runner, double seconds);
  static double& computing(RankTimes& times, program::Operation operation);
  void attend(std::size_t runner);
  void count_attention(RankState& runner, double seconds);
  void estimate(std::size_t runner);

  // clock_messages.cpp: attention's messages, residual streams.
  StageMessages& stage_of(const RankState& runner);
  void add_ends(std::size_t runner, bool sent, bool received, std::vector<End>& ends);
  Copies copies_of(const std::vector<End>& ends, bool sent) const;
  bool drains(std::size_t runner, std::vector<End>& sent);
  void post(std::size_t runner);
  void post_sends(std::size_t runner);
  void post_end(const End& end, double now);
  void wait_for(std::size_t runner, State state);
  void start_wait(std::size_t runner);
  void end_wait(std::size_t runner);
  void count_wait(RankState& runner, double ready, double RankTimes::*reason) const;
  bool has_no_microbatch(const RankState& runner) const;
  void close_awaited(std::size_t runner);
  void tell(Rank rank, double there);
  void emit_message(const RankState& runner, const End& end) const;
  void start_receive(std::size_t runner);
  void end_receive(std::size_t runner);
  void send(std::size_t runner);
  static std::uint32_t stream_flow(Rank from, Rank to, program::Pass pass, std::size_t number);
  std::int64_t stream_bytes(const RankState& runner) const;

  // clock_collectives.cpp
  void run_dense(std::size_t runner);
  void meet(std::size_t runner);
  std::size_t expected(const RankState& runner) const;
  MeetingKey meeting_of(const RankState& runner) const;
  MeetingKey tensor_group_of(const RankState& runner) const;
  int replicas_of(Rank rank) const;
  static std::uint32_t collective_flow(const MeetingKey& meeting, program::Operation operation,
                                       int bucket);
  void post_sum(std::size_t runner);
  void post_gather(std::size_t runner);
  void wait_for_gather(std::size_t runner);
  void leave_gather(std::size_t runner, Replicas::Gather& gather);
  double end_of_meeting(const Rendezvous& meeting);
  double finish_sums(const Rendezvous& meeting);
  void leave(std::size_t runner, const Rendezvous& meeting, double end);
  bool ends_pipelines(const RankState& runner) const;
  void wait_in(RankState& runner, const Rendezvous& meeting, double arrived) const;
  void emit_tensor(RankState& runner, const DenseTime& time, double arrived, double opens) const;

  void emit(const RankState& runner, Activity what, double begin, double end,
            std::int64_t bytes = 0, double flops = 0, std::uint32_t flow = 0) const;
  /// Seconds that the rank's operation takes if the machine needs `seconds`.
  double taken(const RankState& runner, double seconds) const {
    return variation_.seconds(runner.rank(), runner.next, runner.instruction(), seconds);
  }

  const program::StepShape& step_shape_;
  const program::Layout& layout_;
  const Costs& costs_;
  const Observer& observer_;
  Work work_;
  Dense dense_;
  Network network_;
  Perturbation variation_;
  std::vector<RankState> runners_;
  std::vector<int> runner_of_;  ///< by world rank; -1: no program, or another rank stands for it
  bool one_for_all_ = false;    ///< tensor coordinate 0 stands for its tensor group
  using Event = std::pair<double, std::size_t>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t operations_ = 0;
  std::map<StageKey, StageMessages> stages_;                         ///< that still have open ends
  std::map<std::tuple<Rank, Rank, program::Pass>, Stream> streams_;  ///< by sender, receiver, pass
  std::map<MeetingKey, Rendezvous> meetings_;
  std::map<int, Replicas> replicas_;  ///< by replicas_of()
};

}  // namespace cadenza::simulate
