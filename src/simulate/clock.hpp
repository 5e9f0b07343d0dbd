// SPDX-License-Identifier: Apache-2.0
// The engine: every rank walks its program; the earliest event of all goes first, so ports and
// collectives see what reaches them in the order of time. Equal times go by rank: a simulation is
// the same wherever it runs.
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
  /// `observer` may be empty. All arguments outlive the clock.
  Clock(const config::Experiment& experiment, const program::StepShape& step_shape,
        std::span<const program::Program> programs, std::span<const program::TickPlans> ticks,
        const Costs& costs, const Observer& observer, std::int64_t step);

  /// Goes on until nobody can.
  void run();
  Result result() const;
  /// Who never ends and, where all do, whose messages nobody takes: one line each.
  std::vector<std::string> faults() const;

 private:
  using Step = program::Step;

  enum class State : std::uint8_t {
    ready,      ///< to start its next operation
    running,    ///< it; ends when the rank's event comes
    draining,   ///< until what it sent has left the memory that the next operation uses
    waiting,    ///< for messages of attention
    receiving,  ///< a residual stream
    meeting,    ///< until the last rank of a collective is there
  };
  /// One end of a message that a rank waits for.
  struct End {
    StageMessages* exchange;
    std::size_t message;
    bool sender;
    const Step* step;  ///< that posted or awaits it
  };
  /// Of messages' rows by one rank.
  struct Copies {
    std::int64_t bytes = 0;
    double seconds = 0;
  };
  /// Attention operations of one half of one layer: a new place completes what was sent before.
  using Place = std::tuple<int, int, program::Pass, bool>;

  struct RankState {
    const program::Program* program = nullptr;
    int pool = 0;
    Rank in_pool = 0;
    State state = State::ready;
    std::size_t next = 0;      ///< operation
    double now = 0;            ///< of its last event
    double began = 0;          ///< its operation
    std::size_t missing = 0;   ///< messages that it waits for and that are not under way
    double latest = 0;         ///< when the last of the others is there
    std::vector<End> awaited;  ///< in this wait
    std::vector<End> sent[2];  ///< by half: sends whose end it has not waited for
    Place place[2] = {};
    double compute = 0;  ///< of the operation that it meets others in, before it waits for them
    double sent_at = 0;  ///< when the stream that it receives was sent
    int tensor_collectives = 0;  ///< so far: all of its tensor group count alike
    RankTimes times;
    std::vector<double> attention;  ///< seconds by layer pass, of a rank that serves
    Rank rank() const { return program->rank; }
    bool ended() const { return next == program->steps.size(); }
    const Step& step() const { return program->steps[next]; }
  };

  /// A group of its kind, by number.
  using MeetingKey = std::pair<program::Group, int>;
  /// Ranks that meet in a collective.
  struct Rendezvous {
    std::vector<std::size_t> runners;
    double latest = 0;
    std::map<int, double> latest_of_data;  ///< by data coordinate, where pipelines end
  };
  /// Sums of gradients over the ranks that hold the same part: one after the other.
  struct Sums {
    struct Bucket {
      std::size_t posted = 0;
      double begin = 0;
      double end = 0;
    };
    double free = 0;  ///< when the last one is over
    std::map<int, Bucket> layers;
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
  void next_operation(std::size_t runner);
  void run_for(std::size_t runner, double seconds);
  static double& computing(RankTimes& times, program::Operation operation);
  void attend(std::size_t runner);
  void count_attention(RankState& runner, double seconds);
  void estimate(std::size_t runner);

  // clock_messages.cpp: attention's messages, residual streams.
  StageMessages& exchange_of(const RankState& runner);
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
  void post_layer(std::size_t runner);
  double end_of_meeting(const Rendezvous& meeting);
  double finish_sums(const Rendezvous& meeting);
  void leave(std::size_t runner, const Rendezvous& meeting, double end);
  bool ends_pipelines(const RankState& runner) const;
  void wait_in(RankState& runner, const Rendezvous& meeting, double arrived) const;
  void emit_tensor(RankState& runner, const DenseTime& time, double arrived, double opens) const;

  void emit(const RankState& runner, Activity what, double begin, double end,
            std::int64_t bytes = 0, double flops = 0, std::uint32_t flow = 0) const;
  /// What the rank's operation takes, of which the machine needs `seconds`.
  double taken(const RankState& runner, double seconds) const {
    return variation_.seconds(runner.rank(), runner.next, runner.step(), seconds);
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
  std::vector<int> runner_of_;  ///< by world rank; -1: another stands for it, or it has no program
  bool one_for_all_ = false;    ///< tensor coordinate 0 stands for its tensor group
  using Event = std::pair<double, std::size_t>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t operations_ = 0;
  std::map<StageKey, StageMessages> exchanges_;  ///< that somebody has not seen the end of
  std::map<std::tuple<Rank, Rank, program::Pass>, Stream> streams_;  ///< by sender, receiver
  std::map<MeetingKey, Rendezvous> meetings_;
  std::map<int, Sums> sums_;
};

}  // namespace cadenza::simulate
