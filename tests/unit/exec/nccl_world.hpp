// SPDX-License-Identifier: Apache-2.0
// What the ranks of an experiment ask of NCCL in a step, and who waits for whom.
//
// A rank starts groups in the order of its program. There are no tags: the n-th message of a pair
// on a communicator is the n-th at both ends. A group is done when all its messages are, and a
// message is when both ends run. A group runs after the kernels that were started before it, and
// they run after what they wait for. So do hosts that wait for kernels (fences): what they start
// later would have waited for the same kernels.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "cadenza/program/operation_work.hpp"
#include "unit/exec/random_experiment.hpp"

namespace cadenza::exec::testing {

/// How groups of a device hold each other up.
enum class Device {
  queues,         ///< the groups of a communicator run one after another, others beside them
  one_at_a_time,  ///< all run one after another, as started: also what a host needs that waits for
                  ///< the whole device, wherever it does
};

/// Planted faults.
enum class Fault {
  none,
  late_receives,    ///< of residual streams: posted where they are waited for
  waits_for_sends,  ///< late_receives, and a stage goes on when its stream has arrived
  one_for_a_pass,   ///< late_receives, on one communicator for all edges of a pass
};

/// What a group is: communicator, and what tells it from others there.
using Name = std::tuple<int, int, int, bool, int>;

struct GroupMessage {
  Rank peer = 0;
  bool sends = false;
};

struct NcclGroup {
  int communicator = 0;
  Name name;
  std::vector<GroupMessage> messages;
  std::size_t waited = 0;  ///< RankGroups::waits that kernels before it wait for
  bool runs = false, done = false;
};

struct RankGroups {
  std::vector<NcclGroup> groups;  ///< in the order of the program
  std::vector<Name> waits;        ///< of kernels, in their order
  std::map<Name, std::size_t> places;
};

/// Numbers of communicators are apart by kind.
enum class Kind { attention, streams, gradients, slices, hosts };
inline int number_of(Kind kind, int of) {
  return 1'000'000 * static_cast<int>(kind) + of;
}
inline bool is_of(Kind kind, const NcclGroup& group) {
  return group.communicator / 1'000'000 == static_cast<int>(kind);
}

/// Whether a group of a rank runs after kernels that wait for another one.
inline bool waits(const RankGroups& rank, const Name& group, const Name& other) {
  const auto end =
      rank.waits.begin() + static_cast<std::ptrdiff_t>(rank.groups[rank.places.at(group)].waited);
  return std::find(rank.waits.begin(), end, other) != end;
}

class RankBuilder {
 public:
  RankBuilder(const config::Experiment& experiment, const program::StepShape& shape,
              const program::Program& program, std::span<const program::TickPlans> tick_plans,
              Fault fault)
      : work_(experiment, shape.layout),
        shape_(shape),
        layout_(shape.layout),
        program_(program),
        tick_plans_(tick_plans),
        fault_(fault) {
    const bool trains = layout_.trains(program.rank);
    if (!trains) return;
    at_ = layout_.coordinates(program.rank);
    for (Rank rank = 0; rank < layout_.trainers(); ++rank) {
      const program::Coordinates other = layout_.coordinates(rank);
      if (other.pipeline == at_.pipeline && other.tensor == at_.tensor) replicas_.push_back(rank);
      if (other.data == at_.data && other.context == at_.context) model_.push_back(rank);
      if (rank / layout_.tensor() == program.rank / layout_.tensor()) slices_.push_back(rank);
      trainers_.push_back(rank);
    }
  }

  RankGroups build() {
    for (number_ = 0; number_ < program_.instructions.size(); ++number_)
      add(program_.instructions[number_]);
    for (auto& sending : sending_) wait_for(sending);
    return std::move(made_);
  }

 private:
  using Operation = program::Operation;
  using Pass = program::Pass;
  using Instruction = program::Instruction;

  void add(const Instruction& instruction) {
    const Operation operation = instruction.operation;
    const bool early = fault_ == Fault::none;  // receives are posted before they are needed
    if (program::is_attention(operation)) return add_attention(instruction);
    for (int half = 0; half < 2; ++half) {
      if (program::writes_sent_rows(instruction, half)) {
        wait_for(sending_[static_cast<std::size_t>(half)]);
      }
    }
    add_in_slices(instruction);
    if (operation == Operation::send) send(instruction);
    if (operation == (early ? Operation::post_receive : Operation::receive)) {
      post(stream_name(instruction), {{instruction.peer, false}});
    }
    if (operation == Operation::receive) made_.waits.push_back(stream_name(instruction));
    if (operation == Operation::reduce_layer) sum_layer(instruction.layer);
    if (operation == Operation::reduce_gradients) sum_gradients();
    if (operation == Operation::gradient_norm) meet_for_norm();
    if (operation == Operation::gather_parameters) gather_parameters();
  }

  // --- attention ---

  void add_attention(const Instruction& instruction) {
    const auto part = static_cast<std::size_t>(instruction.half);
    const auto context =
        std::tuple(instruction.plan, instruction.layer, instruction.pass, instruction.recompute);
    if (std::exchange(context_[part], context) != context) wait_for(sending_[part]);
    const bool results = instruction.operation == Operation::post_results ||
                         instruction.operation == Operation::wait_results;
    if (instruction.operation == Operation::post ||
        instruction.operation == Operation::post_results) {
      const auto messages = attention_messages(instruction, results);
      const Name name = attention_name(instruction, results);
      post(name, messages);
      if (std::ranges::all_of(messages, &GroupMessage::sends)) sending_[part].push_back(name);
    } else if (instruction.operation == Operation::wait ||
               instruction.operation == Operation::wait_results) {
      made_.waits.push_back(attention_name(instruction, results));
    }
  }
  std::vector<GroupMessage> attention_messages(const Instruction& instruction, bool results) const {
    const int pool = layout_.pool_of(program_.rank);
    const Rank self = layout_.in_pool(program_.rank);
    std::vector<GroupMessage> messages;
    const auto& traffic =
        tick_plans_[static_cast<std::size_t>(instruction.plan)].traffic(instruction.pass);
    for (const program::PlannedMessage& planned : traffic.messages(instruction.stage)) {
      if (planned.results != results) continue;
      if (planned.from == self) messages.push_back({layout_.world_rank(pool, planned.to), true});
      if (planned.to == self) messages.push_back({layout_.world_rank(pool, planned.from), false});
    }
    return messages;
  }
  Name attention_name(const Instruction& instruction, bool results) const {
    const int of = 4 * layout_.pool_of(program_.rank) + 2 * instruction.half + (results ? 1 : 0);
    const bool backward = instruction.pass == Pass::backward;
    return {number_of(Kind::attention, of), 2 * instruction.plan + (backward ? 1 : 0),
            instruction.layer, instruction.recompute, instruction.stage};
  }

  // --- residual streams ---

  void send(const Instruction& instruction) {
    auto& sent = sent_[static_cast<std::size_t>(instruction.pass)];
    const auto room = program::stream_buffers_of_stage(shape_, at_.pipeline)
                          .sends[static_cast<std::size_t>(instruction.pass)];
    if (static_cast<int>(sent.size()) == room) {
      made_.waits.push_back(sent.front());
      sent.erase(sent.begin());
    }
    post(stream_name(instruction), {{instruction.peer, true}});
    sent.push_back(stream_name(instruction));
    if (fault_ == Fault::waits_for_sends) wait_for(sent);
  }
  /// Chunks are counted where a stream comes from.
  Name stream_name(const Instruction& instruction) const {
    const bool sends = instruction.operation == Operation::send;
    const int there = layout_.coordinates(instruction.peer).pipeline;
    const int from = sends ? at_.pipeline : there;
    const int to = sends ? there : at_.pipeline;
    const bool forward = instruction.pass == Pass::forward;
    const int wraps = (forward ? to < from : to > from) ? 1 : 0;
    const int chunk = sends ? instruction.chunk : instruction.chunk - (forward ? wraps : -wraps);
    auto first = at_;
    first.pipeline = 0;
    const int edge = forward ? from : to;
    int of = 2 * (layout_.rank(first) * layout_.pipeline() + edge) + (forward ? 0 : 1);
    if (fault_ == Fault::one_for_a_pass) of = forward ? 0 : 1;
    return {number_of(Kind::streams, of), instruction.microbatch, chunk, forward, edge};
  }

  // --- gradients, slices, hosts ---

  int layers() const { return shape_.layers_of_rank(program_.rank); }
  Name gradient_name(int gathers, int bucket) const {
    return {number_of(Kind::gradients, replicas_.front()), gathers, bucket, false, 0};
  }
  void sum_layer(int layer) {
    summed_.push_back(layer);
    post(gradient_name(0, layer), with_all(replicas_));
  }
  /// The last bucket is all that is in no layer.
  void sum_gradients() {
    if (replicas_.size() == 1) return;
    for (int bucket = 0; bucket <= layers(); ++bucket) {
      if (std::ranges::count(summed_, bucket) > 0) continue;
      post(gradient_name(0, bucket), with_all(replicas_));
    }
    for (int bucket = 0; bucket <= layers(); ++bucket) {
      made_.waits.push_back(gradient_name(0, bucket));
    }
  }
  void gather_parameters() {
    for (int bucket = 0; bucket <= layers(); ++bucket) meet(gradient_name(1, bucket), replicas_);
  }
  /// All hosts that add their part; then nobody is without a stream that was sent.
  void meet_for_norm() {
    const auto& owners = shape_.shards_optimizer ? trainers_ : model_;
    meet({number_of(Kind::hosts, owners.front()), 0, 0, false, 0}, owners);
    for (auto& sent : sent_) wait_for(sent);
  }
  void add_in_slices(const Instruction& instruction) {
    int collective = 0;
    for (const program::TensorOverlap& overlap : work_.overlaps(instruction, program_.rank, 64)) {
      std::vector<Name> posted;
      for (const program::TensorCollective& each : overlap.collectives) {
        add_steps(each.what, collective++, posted);
      }
      wait_for(posted);
    }
  }
  /// Shards go to one rank of the tensor group after another.
  void add_steps(Collective what, int collective, std::vector<Name>& posted) {
    const auto name = [&](int step) {
      return Name{number_of(Kind::slices, slices_.front()), static_cast<int>(number_), collective,
                  false, step};
    };
    if (what == Collective::all_reduce) return meet(name(0), slices_);
    const int size = static_cast<int>(slices_.size());
    for (int step = 1; step < size; ++step) {
      const auto peer = [&](int distance) {
        return slices_[static_cast<std::size_t>((at_.tensor + size + distance) % size)];
      };
      post(name(step), {{peer(step), true}, {peer(-step), false}});
      posted.push_back(name(step));
    }
  }
  /// Nothing that a rank starts later begins before all are here.
  void meet(const Name& name, const std::vector<Rank>& ranks) {
    post(name, with_all(ranks));
    if (ranks.size() > 1) made_.waits.push_back(name);
  }
  std::vector<GroupMessage> with_all(const std::vector<Rank>& ranks) const {
    std::vector<GroupMessage> messages;
    for (const Rank peer : ranks) {
      if (peer == program_.rank) continue;
      messages.push_back({peer, true});
      messages.push_back({peer, false});
    }
    return messages;
  }

  void wait_for(std::vector<Name>& names) {
    made_.waits.insert(made_.waits.end(), names.begin(), names.end());
    names.clear();
  }
  void post(const Name& name, std::vector<GroupMessage> messages) {
    if (messages.empty()) return;
    made_.groups.push_back({std::get<0>(name), name, std::move(messages), made_.waits.size()});
  }

  program::OperationShapes work_;
  const program::StepShape& shape_;
  const program::Layout& layout_;
  const program::Program& program_;
  std::span<const program::TickPlans> tick_plans_;
  Fault fault_;
  program::Coordinates at_;
  std::vector<Rank> replicas_, model_, slices_, trainers_;
  std::size_t number_ = 0;  ///< of the operation
  RankGroups made_;
  std::array<std::tuple<int, int, Pass, bool>, 2> context_{};  ///< of each half's exchange
  std::array<std::vector<Name>, 2> sending_;                   ///< by half: nobody waits for these
  std::array<std::vector<Name>, 2> sent_;  ///< streams whose memory is not free yet, by pass
  std::vector<int> summed_;                ///< layers
};

struct Verdict {
  bool matched = true;  ///< both ends of every pair have the same order
  bool ended = true;
};

class World {
 public:
  explicit World(const config::Experiment& experiment, Fault fault = Fault::none)
      : shape_(experiment) {
    const auto corpus = data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
    const auto tick_plans =
        program::plan_ticks(experiment, data::Packer(*corpus, experiment).batch(0));
    for (Rank rank = 0; rank < shape_.layout.ranks(); ++rank) {
      const program::Program program = program::make_program(shape_, rank, tick_plans);
      ranks_.push_back(RankBuilder(experiment, shape_, program, tick_plans, fault).build());
    }
    for (RankGroups& rank : ranks_) number(rank);
  }

  std::size_t groups() const {
    std::size_t count = 0;
    for (const RankGroups& rank : ranks_) count += rank.groups.size();
    return count;
  }

  /// A planted fault: the first two groups of a rank that `chosen` takes, one right after the
  /// other, change places.
  /// @param chosen  (groups of the rank, number of the first of them)
  /// @return whether there are any
  template <typename Chosen>
  bool swap_two(const Chosen& chosen) {
    for (RankGroups& rank : ranks_) {
      for (std::size_t i = 0; i + 1 < rank.groups.size(); ++i) {
        if (!chosen(rank, i)) continue;
        std::swap(rank.groups[i], rank.groups[i + 1]);
        std::swap(rank.groups[i].waited, rank.groups[i + 1].waited);
        number(rank);
        return true;
      }
    }
    return false;
  }
  /// A planted fault: as swap_two(), and the second of them runs after the first.
  template <typename Chosen>
  bool swap_two_and_wait(const Chosen& chosen) {
    return swap_two([&](RankGroups& rank, std::size_t i) {
      if (!chosen(rank, i)) return false;
      const std::size_t at = rank.groups[i + 1].waited;
      rank.waits.insert(rank.waits.begin() + static_cast<std::ptrdiff_t>(at),
                        rank.groups[i + 1].name);
      for (std::size_t later = i + 1; later < rank.groups.size(); ++later) {
        ++rank.groups[later].waited;
      }
      return true;
    });
  }
  RankGroups& of(Rank rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  Verdict judge(Device device) {
    for (RankGroups& rank : ranks_) {
      for (NcclGroup& group : rank.groups) group.runs = group.done = false;
    }
    while (start_some(device) | end_some()) {
    }
    Verdict verdict{matches(), true};
    for (const RankGroups& rank : ranks_) {
      verdict.ended &= std::ranges::all_of(rank.groups, &NcclGroup::done);
    }
    return verdict;
  }

 private:
  static void number(RankGroups& rank) {
    rank.places.clear();
    for (std::size_t i = 0; i < rank.groups.size(); ++i) rank.places[rank.groups[i].name] = i;
  }

  bool matches() const {
    std::map<std::tuple<int, Rank, Rank>, std::array<std::vector<Name>, 2>> pairs;
    for (Rank rank = 0; rank < shape_.layout.ranks(); ++rank) {
      for (const NcclGroup& group : ranks_[static_cast<std::size_t>(rank)].groups) {
        for (const GroupMessage& m : group.messages) {
          const auto pair = m.sends ? std::tuple(group.communicator, rank, m.peer)
                                    : std::tuple(group.communicator, m.peer, rank);
          pairs[pair][m.sends ? 0 : 1].push_back(group.name);
        }
      }
    }
    return std::ranges::all_of(pairs,
                               [](const auto& pair) { return pair.second[0] == pair.second[1]; });
  }

  bool start_some(Device device) {
    bool some = false;
    for (RankGroups& rank : ranks_) {
      std::set<int> busy;
      std::size_t fed = 0;
      while (fed < rank.waits.size() && group_of(rank, rank.waits[fed]).done) ++fed;
      for (NcclGroup& group : rank.groups) {
        if (group.done) continue;
        const int queue = device == Device::queues ? group.communicator : 0;
        if (!group.runs && !busy.contains(queue) && group.waited <= fed) group.runs = some = true;
        busy.insert(queue);
      }
    }
    return some;
  }
  bool end_some() {
    bool some = false;
    for (RankGroups& rank : ranks_) {
      for (NcclGroup& group : rank.groups) {
        if (!group.runs || group.done) continue;
        group.done = std::ranges::all_of(group.messages, [&](const GroupMessage& m) {
          return group_of(of(m.peer), group.name).runs;
        });
        some |= group.done;
      }
    }
    return some;
  }
  static NcclGroup& group_of(RankGroups& rank, const Name& name) {
    return rank.groups[rank.places.at(name)];
  }

  program::StepShape shape_;
  std::vector<RankGroups> ranks_;
};

}  // namespace cadenza::exec::testing
