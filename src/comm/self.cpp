// SPDX-License-Identifier: Apache-2.0
// A group of one rank: collectives are copies, messages to itself match in posting order.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/comm/parts.hpp"

namespace cadenza::comm {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int leader() const override { return 0; }
  void barrier() override {}
  void broadcast(std::span<std::byte>, int) override {}
  void all_reduce(Numbers, Reduction) override {}
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    std::ranges::copy(mine, all.begin());
  }
  void reduce_scatter(ConstNumbers all, Numbers mine) override {
    const auto count = static_cast<std::int64_t>(all.size());
    take_all("reduce_scatter", {&count, 1}, all, mine);
  }
  void post_all_reduce(Numbers, int) override {}
  void post_reduce_scatter(ConstNumbers all, std::span<const std::int64_t> counts, Numbers mine,
                           int) override {
    take_all("post_reduce_scatter", counts, all, mine);
  }
  void post_all_gather_v(std::span<const std::byte> mine, std::span<const std::int64_t> byte_counts,
                         std::span<std::byte> all, int) override {
    check_parts("post_all_gather_v", byte_counts, {mine.size(), all.size()});
    if (mine.data() != all.data()) std::ranges::copy(mine, all.begin());
  }
  void post(std::span<const Receive> receives, std::span<const Send> sends, int channel) override {
    for (const Receive& want : receives) expected_.push_back({want.tag, channel, want.data});
    for (const Send& have : sends) {
      sent_.push_back({have.tag, {have.data.begin(), have.data.end()}});
    }
    match();
  }
  void wait(int channel) override {
    for (const Expected& want : expected_) {
      if (want.channel != channel) continue;
      fail(ExitCode::communication, "a receive of {} bytes has no matching send in a group of one",
           want.data.size());
    }
  }
  bool test(int channel) override {
    return std::ranges::none_of(expected_,
                                [&](const Expected& want) { return want.channel == channel; });
  }
  void wait_until(const char*, const std::function<bool()>& done) override {
    while (!done()) {
    }
  }
  void progress() override {}
  void abort(int code) override { std::_Exit(code); }
  std::unique_ptr<Communicator> split(int) override { return make_self(); }

 private:
  struct Sent {
    int tag;
    std::vector<std::byte> data;
  };
  struct Expected {
    int tag;
    int channel;
    std::span<std::byte> data;
  };

  /// Copies the data: the sum over one rank.
  static void take_all(const char* call, std::span<const std::int64_t> counts, ConstNumbers all,
                       Numbers mine) {
    check_parts(call, counts, {mine.size(), all.size()});
    std::ranges::copy(all.bytes(), mine.bytes().begin());
  }

  void match() {
    for (auto want = expected_.begin(); want != expected_.end();) {
      auto have = sent_.begin();
      while (have != sent_.end() && have->tag != want->tag) ++have;
      if (have == sent_.end()) {
        ++want;
        continue;
      }
      if (have->data.size() != want->data.size()) {
        fail(ExitCode::communication, "a receive of {} bytes matches a send of {} bytes",
             want->data.size(), have->data.size());
      }
      std::ranges::copy(have->data, want->data.begin());
      sent_.erase(have);
      want = expected_.erase(want);
    }
  }

  std::deque<Sent> sent_;
  std::deque<Expected> expected_;
};

}  // namespace

std::unique_ptr<Communicator> make_self() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace cadenza::comm
