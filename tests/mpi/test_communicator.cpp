// SPDX-License-Identifier: Apache-2.0
// The MPI transport, and errors that all ranks must learn of.
#include <gmock/gmock.h>

#include <numeric>
#include <vector>

#include "cadenza/app/agree.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/trace/event.hpp"

namespace cadenza::comm {
namespace {

TEST(Communicator, AllReduceSumsMinimaAndMaxima) {
  const auto world = make_world();
  std::vector<double> values = {static_cast<double>(world->rank()), 1.0};
  world->all_reduce(std::span(values), Reduction::sum);
  const double n = world->size();
  EXPECT_EQ(values, (std::vector<double>{n * (n - 1) / 2, n}));
  std::int64_t low = world->rank();
  std::int64_t high = world->rank();
  world->all_reduce(std::span(&low, 1), Reduction::min);
  world->all_reduce(std::span(&high, 1), Reduction::max);
  EXPECT_EQ(low, 0);
  EXPECT_EQ(high, world->size() - 1);
}

TEST(Communicator, EveryRankExchangesWithEveryOtherOnSeparateChannels) {
  const auto world = make_world();
  const int n = world->size();
  // Sizes differ by pair and include zero and more than an eager message.
  const auto size = [](int from, int to) {
    return static_cast<std::size_t>((from + 2 * to) % 3 == 0 ? 0 : 5000 * (from + 1) + to);
  };
  std::vector<std::vector<double>> sent, received;
  for (int peer = 0; peer < n; ++peer) {
    sent.emplace_back(size(world->rank(), peer), 100.0 * world->rank() + peer);
    received.emplace_back(size(peer, world->rank()), -1.0);
  }
  for (int peer = 0; peer < n; ++peer) {
    if (peer == world->rank()) continue;
    const auto at = static_cast<std::size_t>(peer);
    world->post_receive(std::as_writable_bytes(std::span(received[at])), peer, 7, peer % 2);
    world->post_send(std::as_bytes(std::span(sent[at])), peer, 7, peer % 2);
  }
  world->wait(1);
  world->wait(0);
  for (int peer = 0; peer < n; ++peer) {
    if (peer == world->rank()) continue;
    EXPECT_THAT(received[static_cast<std::size_t>(peer)],
                ::testing::Each(100.0 * peer + world->rank()));
  }
}

TEST(Communicator, SplitGroupsByColorInRankOrder) {
  const auto world = make_world();
  const auto part = world->split(world->rank() % 2);
  EXPECT_EQ(part->rank(), world->rank() / 2);
  EXPECT_EQ(part->size(), (world->size() + 1 - world->rank() % 2) / 2);
  double one = 1;
  part->all_reduce(std::span(&one, 1), Reduction::sum);
  EXPECT_EQ(one, part->size());
}

TEST(Communicator, StringsAreBroadcast) {
  const auto world = make_world();
  const int root = world->size() - 1;
  const std::string text = world->rank() == root ? "from the last rank" : "";
  EXPECT_EQ(broadcast(*world, text, root), "from the last rank");
  EXPECT_EQ(broadcast(*world, "", 0), "");
}

TEST(Communicator, ClocksOfOneHostAgreeWithinTheRoundTrip) {
  const auto world = make_world();
  const ClockOffset offset = measure_clock(*world, 50, trace::now_ns);
  // Ranks of one host read the same clock: the true offset is zero.
  EXPECT_LE(std::abs(offset.offset_ns), offset.rtt_min_ns);
  EXPECT_EQ(world->rank() == 0, offset.rtt_min_ns == 0);
}

TEST(Together, AnErrorOfOneRankReachesAllWithItsCodeAndMessage) {
  const auto world = make_world();
  const int failing = world->size() - 1;
  try {
    app::together(*world, [&] {
      if (world->rank() == failing) fail(ExitCode::data, "rank {} has no file", failing);
    });
    FAIL() << "no error on rank " << world->rank();
  } catch (const app::AgreedError& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_EQ(error.what(), fmt::format("rank {} has no file", failing));
  }
}

TEST(Together, NoErrorMeansNone) {
  const auto world = make_world();
  EXPECT_NO_THROW(app::together(*world, [] {}));
}

}  // namespace
}  // namespace cadenza::comm
