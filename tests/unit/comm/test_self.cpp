// SPDX-License-Identifier: Apache-2.0
// The group of one, and what is built from a communicator's primitives.
#include <gmock/gmock.h>

#include <array>
#include <numeric>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/comm/communicator.hpp"

namespace cadenza::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::span<const std::byte> bytes(const int& value) {
  return std::as_bytes(std::span(&value, 1));
}
std::span<std::byte> bytes(int& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

/// Expects Error(communication) whose message holds `part`.
template <typename Call>
void expect_error(const std::string& part, Call call) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::communication);
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(Self, IsRankZeroOfOne) {
  const auto self = make_self();
  EXPECT_EQ(self->rank(), 0);
  EXPECT_EQ(self->size(), 1);
  self->barrier();
  const auto part = self->split(3);
  EXPECT_EQ(part->rank(), 0);
  EXPECT_EQ(part->size(), 1);
}

template <typename T>
void expect_reductions_keep(const std::vector<T>& values) {
  const auto self = make_self();
  for (const Reduction op : {Reduction::sum, Reduction::min, Reduction::max}) {
    std::vector<T> data = values;
    self->all_reduce(std::span<T>(data), op);
    EXPECT_EQ(data, values);
  }
}

TEST(Self, CollectivesKeepTheirOnlyContribution) {
  expect_reductions_keep<float>({1.5F, -2, 0});
  expect_reductions_keep<double>({1.5, -2, 0});
  expect_reductions_keep<std::int64_t>({7, -7});
  expect_reductions_keep<std::uint64_t>({~std::uint64_t{0}});
  expect_reductions_keep<float>({});
  const auto self = make_self();
  int value = 5, gathered = 0;
  self->broadcast(bytes(value), 0);
  EXPECT_EQ(value, 5);
  self->all_gather(bytes(std::as_const(value)), bytes(gathered));
  EXPECT_EQ(gathered, 5);
  self->all_gather({}, {});
}

TEST(Self, PostedCollectivesKeepTheirOnlyContribution) {
  const auto self = make_self();
  std::vector<float> summed = {1, 2};
  self->post_all_reduce(std::span(summed), 0);
  const std::vector<double> all = {3, 4, 5};
  std::vector<double> mine(3), shard(3);
  const std::int64_t count = 3, bytes_each = 3 * sizeof(double);
  self->post_reduce_scatter(std::span(all), {&count, 1}, std::span(mine), 1);
  self->reduce_scatter(std::span(all), std::span(shard));
  std::vector<double> gathered(3);
  self->post_all_gather_v(std::as_bytes(std::span(all)), {&bytes_each, 1},
                          std::as_writable_bytes(std::span(gathered)), 2);
  const std::int64_t none = 0;
  self->post_all_gather_v({}, {&none, 1}, {}, 2);
  self->progress();
  for (int channel = 0; channel < 3; ++channel) {
    EXPECT_TRUE(self->test(channel));
    self->wait(channel);
  }
  EXPECT_THAT(summed, ElementsAre(1, 2));
  EXPECT_EQ(mine, all);
  EXPECT_EQ(shard, all);
  EXPECT_EQ(gathered, all);
}

TEST(Self, PartsMustFitTheirCounts) {
  const auto self = make_self();
  std::vector<float> all(4), mine(4);
  const auto scatter = [&](const std::vector<std::int64_t>& counts, std::size_t size) {
    self->post_reduce_scatter(std::span<const float>(all), counts, std::span(mine).first(size), 0);
  };
  expect_error("2 counts for 1 ranks", [&] { scatter({2, 2}, 4); });
  expect_error("a count of -4", [&] { scatter({-4}, 4); });
  expect_error("rank 0 has 4 of 4 elements, where the counts say 3 of 3", [&] { scatter({3}, 4); });
  expect_error("rank 0 has 3 of 4 elements, where the counts say 4 of 4", [&] { scatter({4}, 3); });
}

TEST(Self, TestTellsWhetherWaitWouldReturn) {
  const auto self = make_self();
  const int value = 1;
  int received = 0;
  EXPECT_TRUE(self->test(0));
  self->post_receive(bytes(received), 0, 3, 0);
  EXPECT_FALSE(self->test(0));
  EXPECT_TRUE(self->test(1));
  self->post_send(bytes(value), 0, 3, 1);
  EXPECT_TRUE(self->test(0));
}

TEST(Self, MessagesOfATagArriveInPostingOrder) {
  const auto self = make_self();
  const std::array<int, 3> sent = {1, 2, 3};
  std::array<int, 3> received{};
  self->post_receive(bytes(received[0]), 0, 4, 0);  // before and after its send
  for (const int& value : sent) self->post_send(bytes(value), 0, 4, 0);
  self->post_receive(bytes(received[1]), 0, 4, 0);
  self->post_receive(bytes(received[2]), 0, 4, 0);
  self->wait(0);
  EXPECT_THAT(received, ElementsAre(1, 2, 3));
}

TEST(Self, ReceivesPostedBeforeTheirSendsFillInOrder) {
  const auto self = make_self();
  const std::array<int, 2> sent = {1, 2};
  std::array<int, 2> received{};
  for (int& value : received) self->post_receive(bytes(value), 0, 0, 0);
  for (const int& value : sent) self->post_send(bytes(value), 0, 0, 0);
  self->wait(0);
  EXPECT_THAT(received, ElementsAre(1, 2));
}

TEST(Self, TagsKeepMessagesApart) {
  const auto self = make_self();
  const int one = 1, two = 2;
  int first = 0, second = 0;
  self->post_send(bytes(two), 0, 2, 0);
  self->post_send(bytes(one), 0, 1, 0);
  self->post_receive(bytes(first), 0, 1, 0);
  self->post_receive(bytes(second), 0, 2, 0);
  self->wait(0);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 2);
}

TEST(Self, EmptyMessagesMatchToo) {
  const auto self = make_self();
  self->post_receive({}, 0, 0, 0);
  expect_error("0 bytes", [&] { self->wait(0); });
  self->post_send({}, 0, 0, 0);
  self->wait(0);
}

TEST(Self, UnmatchedReceiveIsAnError) {
  const auto self = make_self();
  const int value = 1;
  int received = 0;
  self->post_send(bytes(value), 0, 7, 0);
  self->post_receive(bytes(received), 0, 8, 0);
  expect_error("4 bytes", [&] { self->wait(0); });
}

TEST(Self, WaitCompletesItsChannelOnly) {
  const auto self = make_self();
  const int value = 1;
  int received = 0, open = 0;
  self->post_receive(bytes(open), 0, 0, 1);
  self->post_receive(bytes(received), 0, 5, 0);
  self->post_send(bytes(value), 0, 5, 0);
  self->wait(0);
  EXPECT_EQ(received, 1);
  expect_error("no matching send", [&] { self->wait(1); });
  self->wait(2);  // nothing was posted there
}

TEST(Self, SizesOfAMessageMustAgree) {
  const auto self = make_self();
  const int value = 1;
  std::array<int, 2> received{};
  self->post_send(bytes(value), 0, 0, 0);
  expect_error("8 bytes matches a send of 4 bytes",
               [&] { self->post_receive(std::as_writable_bytes(std::span(received)), 0, 0, 0); });
}

TEST(Self, AbortEndsTheProcessWithItsCode) {
  EXPECT_EXIT(make_self()->abort(4), ::testing::ExitedWithCode(4), "");
}

TEST(Collective, BroadcastOfAString) {
  const auto self = make_self();
  for (const std::string& text : {std::string(), std::string("a\0b", 3), std::string(5000, 'x')}) {
    EXPECT_EQ(broadcast(*self, text, 0), text);
  }
}

TEST(Collective, ClockOfRankZeroHasNoOffset) {
  const auto self = make_self();
  const ClockOffset offset = measure_clock(*self, 5, [] { return std::int64_t{123}; });
  EXPECT_EQ(offset.time_ns, 123);
  EXPECT_EQ(offset.offset_ns, 0);
  EXPECT_EQ(offset.rtt_min_ns, 0);
}

}  // namespace
}  // namespace cadenza::comm
