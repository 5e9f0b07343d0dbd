// SPDX-License-Identifier: Apache-2.0
// The MPI transport, and errors that all ranks must learn of.
#include <gmock/gmock.h>

#include <chrono>
#include <numeric>
#include <vector>

#include "app/runtime/failure.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/trace/events/event.hpp"

namespace cadenza::comm::test_communicator {
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

/// What rank `rank` has at `i`: small whole numbers, whose sums are exact in any order.
template <typename T>
T number_of(int rank, std::size_t i) {
  return static_cast<T>((static_cast<std::size_t>(rank) * 31 + i * 7) % 1000);
}

template <typename T>
std::vector<T> numbers_of(int rank, std::size_t count) {
  std::vector<T> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = number_of<T>(rank, i);
  return made;
}

template <typename T>
std::vector<T> sum_of_numbers(int ranks, std::size_t count) {
  std::vector<T> sums(count);
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < count; ++i) sums[i] += number_of<T>(rank, i);
  }
  return sums;
}

/// Unequal parts; some are empty, others no eager messages.
std::vector<std::int64_t> unequal_counts(int ranks) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) counts.push_back(rank % 3 == 1 ? 0 : 30000 * rank + 5);
  return counts;
}

template <typename T>
std::vector<T> part_of(const std::vector<T>& all, const std::vector<std::int64_t>& counts,
                       int rank) {
  const auto begin = std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  return {all.begin() + begin, all.begin() + begin + counts[static_cast<std::size_t>(rank)]};
}

template <typename T>
void expect_collectives_on_channels(Communicator& group) {
  const int ranks = group.size(), rank = group.rank();
  const auto counts = unequal_counts(ranks);
  const auto total =
      static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  std::vector<std::int64_t> byte_counts = counts;
  for (std::int64_t& count : byte_counts) count *= static_cast<std::int64_t>(sizeof(T));
  const auto own = static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]);

  auto summed = numbers_of<T>(rank, total);
  const auto all = numbers_of<T>(rank, total);
  std::vector<T> scattered(own), gathered(total), nothing;
  const auto mine = part_of(numbers_of<T>(7, total), counts, rank);
  group.post_all_reduce(std::span<T>(summed), 3);
  group.post_reduce_scatter(std::span<const T>(all), counts, std::span<T>(scattered), 1);
  group.post_all_reduce(std::span<T>(nothing), 1);
  group.post_all_gather_v(std::as_bytes(std::span(mine)), byte_counts,
                          std::as_writable_bytes(std::span(gathered)), 0);
  for (int polls = 0; polls < 20; ++polls) group.progress();
  group.wait(0);
  EXPECT_TRUE(group.test(0));
  EXPECT_EQ(gathered, numbers_of<T>(7, total));
  while (!group.test(1)) group.progress();
  group.wait(1);
  EXPECT_EQ(scattered, part_of(sum_of_numbers<T>(ranks, total), counts, rank));
  group.wait(3);
  EXPECT_EQ(summed, sum_of_numbers<T>(ranks, total));
}

TEST(Communicator, PostedCollectivesEqualStraightforwardSums) {
  const auto world = make_world();
  expect_collectives_on_channels<float>(*world);
  expect_collectives_on_channels<double>(*world);
  const auto part = world->split(world->rank() % 2);
  expect_collectives_on_channels<float>(*part);
}

TEST(Communicator, GroupsAreNamedByTheirFirstRank) {
  const auto world = make_world();
  EXPECT_EQ(world->leader(), 0);
  EXPECT_EQ(world->split(world->rank() % 2)->leader(), world->rank() % 2);
}

TEST(Communicator, GatheredPartsMayLieInTheirPlace) {
  const auto world = make_world();
  const auto n = static_cast<std::size_t>(world->size()),
             rank = static_cast<std::size_t>(world->rank());
  std::vector<double> all(n, -1);
  all[rank] = static_cast<double>(rank);
  const std::vector<std::int64_t> bytes(n, sizeof(double));
  world->post_all_gather_v(std::as_bytes(std::span(all).subspan(rank, 1)), bytes,
                           std::as_writable_bytes(std::span(all)), 0);
  world->wait(0);
  EXPECT_EQ(all, [&] {
    std::vector<double> expected(n);
    std::iota(expected.begin(), expected.end(), 0.0);
    return expected;
  }());
}

TEST(Communicator, ReduceScatterOfEqualShards) {
  const auto world = make_world();
  const int n = world->size();
  for (const std::size_t shard :
       {std::size_t{0}, std::size_t{1}, std::size_t{20000}, std::size_t{600001}}) {
    const std::size_t total = shard * static_cast<std::size_t>(n);
    const auto all = numbers_of<float>(world->rank(), total);
    std::vector<float> mine(shard);
    world->reduce_scatter(std::span(all), std::span(mine));
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(n),
                                           static_cast<std::int64_t>(shard));
    EXPECT_EQ(mine, part_of(sum_of_numbers<float>(n, total), counts, world->rank()));
  }
  std::vector<double> all(static_cast<std::size_t>(n) + 1), mine(1);
  EXPECT_THROW(world->reduce_scatter(std::span<const double>(all), std::span(mine)), Error);
}

TEST(Communicator, AllReduceOfFloatMaxima) {
  const auto world = make_world();
  std::vector<float> values = {static_cast<float>(-world->rank()),
                               static_cast<float>(world->rank())};
  world->all_reduce(std::span(values), Reduction::max);
  EXPECT_EQ(values, (std::vector<float>{0, static_cast<float>(world->size() - 1)}));
}

/// Messages of a channel arrive while collectives of another one are under way, and progress alone
/// completes no channel's bookkeeping.
TEST(Communicator, MessagesAndCollectivesPassEachOther) {
  const auto world = make_world();
  const int n = world->size(), next = (world->rank() + 1) % n, last = (world->rank() + n - 1) % n;
  const auto sent = numbers_of<double>(world->rank(), 50000);
  std::vector<double> received(sent.size());
  auto summed = numbers_of<double>(world->rank(), 50000);
  if (world->rank() % 2 == 0) world->post_all_reduce(std::span(summed), 2);
  world->post_send(std::as_bytes(std::span(sent)), next, 5, 0);
  world->post_receive(std::as_writable_bytes(std::span(received)), last, 5, 0);
  if (world->rank() % 2 == 1) world->post_all_reduce(std::span(summed), 2);
  for (int polls = 0; polls < 50; ++polls) world->progress();
  world->wait(0);
  EXPECT_EQ(received, numbers_of<double>(last, 50000));
  world->wait(2);
  EXPECT_EQ(summed, sum_of_numbers<double>(n, 50000));
}

/// Ranks 0 and 1 only poll, and look into their own memory to see what has arrived.
TEST(Communicator, ProgressAloneMovesALargeMessage) {
  const auto world = make_world();
  if (world->size() < 2) GTEST_SKIP() << "one rank";
  const auto sent = numbers_of<double>(3, std::size_t{1} << 20);
  std::vector<double> received(sent.size(), -1);
  int answer = 0;
  const int yes = 1;
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(4);
  const auto poll_until = [&](const auto& arrived) {
    while (!arrived() && std::chrono::steady_clock::now() < end) world->progress();
    EXPECT_TRUE(arrived());
  };
  if (world->rank() == 0) {
    world->post_send(std::as_bytes(std::span(sent)), 1, 9, 0);
    world->post_receive(std::as_writable_bytes(std::span(&answer, 1)), 1, 9, 0);
    poll_until([&] { return answer == yes; });
  } else if (world->rank() == 1) {
    world->post_receive(std::as_writable_bytes(std::span(received)), 0, 9, 0);
    poll_until([&] { return received.back() == sent.back(); });
    world->post_send(std::as_bytes(std::span(&yes, 1)), 0, 9, 0);
    world->wait(0);
    EXPECT_EQ(received, sent);
  }
  world->wait(0);
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
    app::collectively(*world, [&] {
      if (world->rank() == failing) fail(ExitCode::data, "rank {} has no file", failing);
    });
    FAIL() << "no error on rank " << world->rank();
  } catch (const app::CollectiveError& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_EQ(error.what(), fmt::format("rank {} has no file", failing));
  }
}

TEST(Together, NoErrorMeansNone) {
  const auto world = make_world();
  EXPECT_NO_THROW(app::collectively(*world, [] {}));
}

}  // namespace
}  // namespace cadenza::comm::test_communicator
