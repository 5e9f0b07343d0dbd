// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/tracer.hpp"

#include <gmock/gmock.h>

#include <chrono>
#include <set>
#include <thread>

namespace cadenza::exec {
namespace {

/// Of operations on the compute lane.
constexpr std::uint8_t kTimedFlag = kStreamRunsLater ? trace::flag::kDeviceTimed : 0;

class TracerTest : public ::testing::Test {
 protected:
  MemoryLedger ledger_;
  trace::Recorder recorder_{100};
  Tracer tracer_{recorder_, ledger_, true, true};
};

/// A group of which only its place in the world counts.
class SilentGroup final : public comm::Communicator {
 public:
  SilentGroup(int leader, int size) : leader_(leader), size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  int leader() const override { return leader_; }
  void barrier() override {}
  void broadcast(std::span<std::byte>, int) override {}
  void all_reduce(comm::Numbers, comm::Reduction) override {}
  void all_gather(std::span<const std::byte>, std::span<std::byte>) override {}
  void reduce_scatter(comm::ConstNumbers, comm::Numbers) override {}
  void post_all_reduce(comm::Numbers, int) override {}
  void post_reduce_scatter(comm::ConstNumbers, std::span<const std::int64_t>, comm::Numbers,
                           int) override {}
  void post_all_gather_v(std::span<const std::byte>, std::span<const std::int64_t>,
                         std::span<std::byte>, int) override {}
  void post(std::span<const comm::Receive>, std::span<const comm::Send>, int) override {}
  void wait(int) override {}
  bool test(int) override { return true; }
  void wait_until(const char*, const std::function<bool()>&) override {}
  void progress() override {}
  void abort(int) override {}
  std::unique_ptr<comm::Communicator> split(int) override { return comm::make_self(); }

 private:
  int leader_;
  int size_;
};

TEST_F(TracerTest, FlowsOfCollectivesTellGroupsNamesAndInstancesApart) {
  SilentGroup pair(0, 2);
  SilentGroup other_pair(2, 2);
  SilentGroup four(0, 4);
  const auto of_step = [&](std::int64_t step) {
    recorder_.clear();
    tracer_.begin_step(step);
    for (SilentGroup* group : {&pair, &other_pair, &four}) {
      for (int again = 0; again < 2; ++again) {
        tracer_.time_collective(*group, program::OtherEvent::agree_on_loss, {}, [] {});
        tracer_.time_collective(*group, program::Operation::gather_parameters, {}, [] {});
      }
    }
    tracer_.finish_step();
    std::vector<std::uint32_t> flows;
    for (const trace::Event& event : recorder_.events()) {
      if (event.category == Category::collective) flows.push_back(event.flow);
    }
    return flows;
  };
  std::vector<std::uint32_t> all = of_step(1);
  EXPECT_EQ(of_step(1), all) << "every member finds the same";
  const std::vector<std::uint32_t> next = of_step(2);
  all.insert(all.end(), next.begin(), next.end());
  EXPECT_EQ(std::set<std::uint32_t>(all.begin(), all.end()).size(), 24u);
  EXPECT_THAT(all, ::testing::Each(::testing::Ne(0u)));
}

TEST_F(TracerTest, EventsKnowTheirPlace) {
  tracer_.begin_step(4);
  tracer_.set_context({Phase::backward, 1, 2, 3, 5, 0});
  tracer_.time(program::OtherEvent::pack, {}, [] {});
  tracer_.finish_step();
  tracer_.message(program::Operation::send, 1, 2,
                  {.bytes = 8, .peer = 6, .flow = 7, .sends = true});
  ASSERT_EQ(recorder_.events().size(), 2u);
  for (const trace::Event& event : recorder_.events()) {
    EXPECT_EQ(event.step, 4u);
    EXPECT_EQ(event.phase, Phase::backward);
    EXPECT_EQ(event.microbatch, 1);
    EXPECT_EQ(event.layer, 2);
    EXPECT_EQ(event.tick, 3);
    EXPECT_EQ(event.stage, 5);
    EXPECT_EQ(event.half, 0);
  }
  EXPECT_EQ(recorder_.events()[0].category, Category::compute_other);
  EXPECT_EQ(recorder_.events()[1].category, Category::p2p_send);
  EXPECT_EQ(recorder_.names()[recorder_.events()[1].name_id], "send");
  EXPECT_EQ(recorder_.events()[0].flags, kTimedFlag);
  EXPECT_EQ(recorder_.events()[1].flags, trace::flag::kNonBlocking | trace::flag::kSends);
}

TEST_F(TracerTest, TheWholeOfAnOperationIsTheHostsAndLeftOutWhereShort) {
  tracer_.begin_step(0);
  constexpr std::size_t kTries = 1000;  // another program may make some of them long
  for (std::size_t i = 0; i < kTries; ++i) tracer_.time_if_long(program::Operation::post, [] {});
  const std::size_t first = recorder_.events().size();
  EXPECT_LT(first, kTries / 2);
  tracer_.time_if_long(program::Operation::send,
                       [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  tracer_.time_host(program::OtherEvent::write_step, [] {});
  ASSERT_EQ(recorder_.events().size(), first + 2);
  EXPECT_EQ(recorder_.events()[first].category, Category::host);
  EXPECT_EQ(recorder_.events()[first + 1].category, Category::trace_overhead);
  for (const trace::Event& event : recorder_.events()) EXPECT_EQ(event.lane, trace::Lane::host);
}

TEST_F(TracerTest, OperationsSayForHowLongTheRankStoodStill) {
  constexpr auto kSleep = std::chrono::milliseconds(20);
  tracer_.begin_step(0);
  tracer_.time(program::Operation::wait, {}, [&] { std::this_thread::sleep_for(kSleep); });
  Tracer::Waited waited;
  for (int wait = 0; wait < 2; ++wait) {
    tracer_.add_wait(waited, [&] { std::this_thread::sleep_for(kSleep / 2); });
  }
  EXPECT_GE(waited.ns, 20'000'000);
  tracer_.waited_inside(program::OtherEvent::tensor_all_reduce, {}, waited);
  tracer_.message(program::Operation::send, 1, 2, {});
  tracer_.finish_step();
  ASSERT_EQ(recorder_.events().size(), 3u);
  for (const trace::Event& event : recorder_.events()) {
    const std::string& name = recorder_.names()[event.name_id];
    if (name == "send") {
      EXPECT_EQ(event.still_ns, -1);
    } else {
      EXPECT_GE(event.still_ns, 19'000'000) << name;
    }
    EXPECT_EQ(event.flags, name == "wait" ? kTimedFlag : trace::flag::kNonBlocking) << name;
  }
}

TEST_F(TracerTest, KernelsAreTimedWhereTheyRunAndNotWaitedFor) {
  if (kDeviceIsCuda) GTEST_SKIP() << "work of the host is on no GPU's stream";
  bool ran = false;
  const auto work = [&](std::int64_t milliseconds) {
    enqueue([&ran, milliseconds] {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      ran = true;
    });
  };
  tracer_.begin_step(0);
  tracer_.time(program::Operation::optimize, {.flops = 3}, [&] { work(5); });
  tracer_.time(program::Operation::attend, {.flops = 4}, [&] { work(10); });
  EXPECT_EQ(ran, !kStreamRunsLater);
  tracer_.finish_step();
  EXPECT_TRUE(ran);
  ASSERT_EQ(recorder_.events().size(), 2u);
  const trace::Event& first = recorder_.events()[0];
  const trace::Event& second = recorder_.events()[1];
  EXPECT_GE(first.end_ns - first.begin_ns, 5'000'000);
  EXPECT_GE(second.end_ns - second.begin_ns, 10'000'000);
  EXPECT_LE(first.end_ns, second.begin_ns);
  if (kStreamRunsLater) {  // the host has put both there before the first begins
    EXPECT_GT(first.enqueued_ns, 0);
    EXPECT_LE(first.enqueued_ns, second.enqueued_ns);
    EXPECT_LE(second.enqueued_ns, first.begin_ns);
  } else {
    EXPECT_EQ(first.enqueued_ns, 0);
    EXPECT_EQ(second.enqueued_ns, 0);
  }
  EXPECT_EQ(tracer_.totals().flops, 7);
  EXPECT_EQ(tracer_.totals().of(Category::compute_attention), second.end_ns - second.begin_ns);
}

TEST_F(TracerTest, AttentionIsAddedUpByTickLayerAndPass) {
  tracer_.begin_step(0);
  const auto run = [&](program::Operation operation, std::int32_t tick, std::int32_t layer,
                       Phase phase, std::int32_t stage, double flops) {
    EventContext place;
    place.tick = tick;
    place.layer = layer;
    place.phase = phase;
    place.stage = stage;
    tracer_.set_context(place);
    tracer_.time(operation, {.flops = flops}, [] {});
  };
  using program::Operation;
  run(Operation::estimate, 0, 1, Phase::forward, 4, 0);
  run(Operation::attend, 0, 1, Phase::forward, 0, 2);
  run(Operation::attend, 0, 1, Phase::forward, 1, 3);
  run(Operation::attend, 0, 1, Phase::backward, 0, 4);
  run(Operation::attend, 2, 1, Phase::forward, 0, 5);
  run(Operation::optimize, 0, 1, Phase::forward, 0, 7);
  tracer_.finish_step();
  std::map<program::LayerPass, std::int64_t> expected;
  for (const trace::Event& event : recorder_.events()) {
    if (event.category != Category::compute_attention) continue;
    expected[{event.tick, event.layer, event.phase}] += event.end_ns - event.begin_ns;
  }
  EXPECT_EQ(expected.size(), 3u);
  EXPECT_EQ(tracer_.totals().attention_ns, expected);
  EXPECT_EQ(tracer_.totals().attention_flops, 14);
  tracer_.begin_step(1);
  EXPECT_TRUE(tracer_.totals().attention_ns.empty());
}

}  // namespace
}  // namespace cadenza::exec
