// SPDX-License-Identifier: Apache-2.0
// Emulates NCCL's rules without NCCL: the groups of a communicator run one after another, messages
// have no tags, nothing is received before its group runs, and no send completes before its
// receive. Pairs connect where they first meet, and their hosts wait for it. A program that
// violates that order hangs or gets wrong data here as it would with the library.
#ifndef CADENZA_NCCL

#include "cadenza/base/at.hpp"
#include "exec/nccl/queue.hpp"

#include <algorithm>
#include <compare>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "cadenza/base/error.hpp"
#include "exec/collectives/staging.hpp"

namespace cadenza::exec::nccl {
namespace {

using comm::ConstNumbers;
using comm::Numbers;
using comm::Reduction;
using Lease = Staging::Lease;

constexpr int kChannel = 0;  // each communicator runs one group at a time
constexpr int kConnecting = 1;
constexpr int kTags = 1 << 14;  ///< for messages; connections have the next two

class EmulatedQueue;

/// All queues of the process. NCCL's run by themselves; these run when a group is added and while
/// the process waits for others.
std::vector<EmulatedQueue*>& all_queues() {
  static std::vector<EmulatedQueue*> queues;
  return queues;
}

class EmulatedQueue final : public Queue {
 public:
  explicit EmulatedQueue(comm::Communicator& group) : group_(group.split(0)) {
    all_queues().push_back(this);
    group_->set_background(go_on_everywhere);
  }
  ~EmulatedQueue() override { std::erase(all_queues(), this); }

  void start() override { made_ = {}; }
  Ticket end() override {
    connect();
    fence();  // the copies of what is sent
    groups_.push_back(std::move(made_));
    ++ended_;
    go_on_everywhere();
    return ended_;
  }

  void send(std::span<const std::byte> data, int to) override {
    made_.ends.push_back({to, true});
    made_.calls.push_back([this, copy = keep(staging_.copy_in(data)), to](Group& group) {
      group.sends.push_back({copy->bytes(), to, next_tag(sent_[to]), true});
    });
  }
  void receive(std::span<std::byte> data, int from) override {
    made_.ends.push_back({from, false});
    made_.calls.push_back([this, place = arriving(data), from](Group& group) {
      group.receives.push_back({place->bytes(), from, next_tag(received_[from])});
    });
  }
  void all_reduce(Numbers data, Reduction op) override {
    made_.is_collective = true;
    const auto copy = keep(staging_.copy_in(data.bytes()));
    made_.arrivals.push_back({copy, data.bytes()});
    made_.calls.push_back([this, copy, type = data.type(), op](Group& group) {
      if (op == Reduction::max) return post_maximum(group, copy, type);
      if (op != Reduction::sum) fail(ExitCode::internal, "no reduction of the emulated NCCL");
      group_->post_all_reduce({copy->bytes(), type}, kChannel);
    });
  }
  void reduce(ConstNumbers data, Numbers sum, int root) override {
    made_.is_collective = true;
    const auto copy = keep(staging_.copy_in(data.bytes()));
    const auto place = root == group_->rank() ? arriving(sum.bytes()) : keep(staging_.take(0));
    made_.calls.push_back([this, copy, place, all = data, root](Group&) {
      group_->post_reduce_scatter({copy->bytes(), all.type()}, only(root, all.size()),
                                  {place->bytes(), all.type()}, kChannel);
    });
  }
  void broadcast(std::span<const std::byte> data, std::span<std::byte> all, int root) override {
    made_.is_collective = true;
    const bool mine = root == group_->rank();
    const auto copy = keep(mine ? staging_.copy_in(data) : staging_.take(0));
    const auto place = arriving(all);
    made_.calls.push_back([this, copy, place, root](Group&) {
      group_->post_all_gather_v(copy->bytes(), only(root, place->bytes().size()), place->bytes(),
                                kChannel);
    });
  }
  void reduce_scatter(ConstNumbers all, Numbers mine) override {
    made_.is_collective = true;
    const auto copy = keep(staging_.copy_in(all.bytes()));
    const auto place = arriving(mine.bytes());
    made_.calls.push_back([this, copy, place, mine](Group&) {
      group_->post_reduce_scatter({copy->bytes(), mine.type()}, equal_parts(mine.size()),
                                  {place->bytes(), mine.type()}, kChannel);
    });
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    made_.is_collective = true;
    const auto copy = keep(staging_.copy_in(mine));
    const auto place = arriving(all);
    made_.calls.push_back([this, copy, place](Group&) {
      group_->post_all_gather_v(copy->bytes(), equal_parts(copy->bytes().size()), place->bytes(),
                                kChannel);
    });
  }

  void let_kernels_wait(Ticket group) override {
    group_->wait_until("NCCL group", [&] { return is_done(group); });
  }
  bool is_done(Ticket group) override {
    go_on_everywhere();
    return done_ >= group;
  }

 private:
  using Kept = std::shared_ptr<Lease>;
  struct Arrival {
    Kept from;
    std::span<std::byte> to;
  };
  /// This rank's end of a pair, which sends or receives.
  struct End {
    int peer = 0;
    bool sends = false;
    friend auto operator<=>(const End&, const End&) = default;
  };
  struct Group {
    bool runs = false;
    std::vector<End> ends;
    bool is_collective = false;
    std::vector<std::function<void(Group&)>> calls;
    std::vector<comm::Receive> receives;  ///< filled when the group runs
    std::vector<comm::Send> sends;
    std::vector<Arrival> arrivals;
    std::vector<std::function<void()>> last;  ///< run before the arrivals are copied
  };

  static void go_on_everywhere() {
    static bool inside = false;  // progress may wait for the device, and such waits call this
    if (std::exchange(inside, true)) return;
    try {
      for (EmulatedQueue* queue : all_queues()) queue->go_on();
    } catch (...) {
      inside = false;
      throw;
    }
    inside = false;
  }

  /// Waits for the other ranks of every pair or collective that the group is the first to use.
  void connect() {
    if (made_.is_collective && !std::exchange(collectives_, true)) group_->barrier();
    std::vector<comm::Receive> receives;
    std::vector<comm::Send> sends;
    const std::byte signal{};
    std::vector<std::byte> signals(made_.ends.size());
    for (std::size_t i = 0; i < signals.size(); ++i) {
      const End& end = made_.ends[i];
      if (!connected_.insert(end).second) continue;
      sends.push_back({{&signal, 1}, end.peer, kTags + (end.sends ? 0 : 1)});
      receives.push_back({{&signals[i], 1}, end.peer, kTags + (end.sends ? 1 : 0)});
    }
    if (sends.empty()) return;
    group_->post(receives, sends, kConnecting);
    group_->wait(kConnecting);
  }

  static Kept keep(Lease lease) { return std::make_shared<Lease>(std::move(lease)); }
  Kept arriving(std::span<std::byte> to) {
    Kept place = keep(staging_.take(to.size()));
    made_.arrivals.push_back({place, to});
    return place;
  }
  /// Messages of a pair are distinguished by their order alone.
  static int next_tag(int& count) { return count++ % kTags; }

  void go_on() {
    while (!groups_.empty()) {
      Group& group = groups_.front();
      if (!group.runs) run(group);
      if (!group_->test(kChannel)) return;
      for (const auto& work : group.last) work();
      for (const Arrival& each : group.arrivals) Staging::copy_out(*each.from, each.to);
      fence();
      groups_.pop_front();
      ++done_;
    }
  }
  void run(Group& group) {
    group.runs = true;
    for (const auto& call : group.calls) call(group);
    group_->post(group.receives, group.sends, kChannel);
  }

  /// Sizes of all ranks' parts if only the root has one.
  std::vector<std::int64_t> only(int root, std::size_t size) const {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(group_->size()));
    sizes[at(root)] = static_cast<std::int64_t>(size);
    return sizes;
  }

  std::vector<std::int64_t> equal_parts(std::size_t each) const {
    return std::vector<std::int64_t>(static_cast<std::size_t>(group_->size()),
                                     static_cast<std::int64_t>(each));
  }

  void post_maximum(Group& group, const Kept& data, comm::NumberType type) {
    const auto ranks = static_cast<std::size_t>(group_->size());
    const auto bytes = static_cast<std::int64_t>(data->bytes().size());
    const Kept everybody = keep(staging_.take(ranks * data->bytes().size()));
    group_->post_all_gather_v(data->bytes(), std::vector<std::int64_t>(ranks, bytes),
                              everybody->bytes(), kChannel);
    group.last.push_back([data, everybody, type] {
      comm::with_type(type, [&]<typename T>(T) {
        take_maximum<T>(ConstNumbers(everybody->bytes(), type).as<T>(),
                        Numbers(data->bytes(), type).as<T>());
      });
    });
  }
  template <typename T>
  static void take_maximum(std::span<const T> everybody, std::span<T> largest) {
    for (std::size_t i = 0; i < everybody.size(); ++i) {
      T& one = largest[i % largest.size()];
      one = std::max(one, everybody[i]);
    }
  }

  std::unique_ptr<comm::Communicator> group_;  ///< of its own: nobody else's messages
  Staging staging_;
  Group made_;                ///< between start() and end()
  std::deque<Group> groups_;  ///< ended but not done; the first may be running
  Ticket ended_ = 0, done_ = 0;
  std::map<int, int> sent_, received_;  ///< messages by rank
  std::set<End> connected_;
  bool collectives_ = false;  ///< whether collectives are connected
};

}  // namespace

std::unique_ptr<Queue> make_queue(comm::Communicator& group, int /*channels*/) {
  return std::make_unique<EmulatedQueue>(group);
}

}  // namespace cadenza::exec::nccl

#endif
