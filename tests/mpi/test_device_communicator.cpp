// SPDX-License-Identifier: Apache-2.0
// What carries messages between devices, each way: the same results, and NCCL's rules.
#include "cadenza/exec/device_communicator.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <numeric>
#include <vector>

#include "cadenza/kernels/device.hpp"
#include "shared_device.hpp"
#include "unit/kernels/device_data.hpp"

namespace cadenza::exec::test_device_communicator {
namespace {

using cadenza::testing::download;
using cadenza::testing::upload;
using config::Transport;

template <typename T>
std::span<T> span_of(const Array<T>& array) {
  return {array.data(), array.extent(0)};
}

/// Whole numbers, whose sums are exact in any order.
template <typename T>
std::vector<T> numbers(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = T((rank * 31 + static_cast<int>(i) * 7) % 97);
  return values;
}

template <typename T>
std::vector<T> sum_of_numbers(int ranks, std::size_t count) {
  std::vector<T> sum(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto of_rank = numbers<T>(rank, count);
    std::transform(sum.begin(), sum.end(), of_rank.begin(), sum.begin(), std::plus<T>());
  }
  return sum;
}

class DeviceCommunicatorTest : public ::testing::TestWithParam<Transport> {
 protected:
  void SetUp() override {
    if (GetParam() == Transport::mpi && !host_holds_tensors()) {
      GTEST_SKIP() << "MPI does not read the memory of devices and of the preset `separate`";
    }
    if (GetParam() == Transport::nccl && testing::ranks_share_a_device(*world_)) {
      GTEST_SKIP() << "NCCL takes one rank a device; these ranks share one";
    }
    devices_ = make_device_communicator(*world_, GetParam(), Purpose::attention);
  }
  int rank() const { return world_->rank(); }
  int ranks() const { return world_->size(); }
  /// 0, 1, 2... elements more for every rank; rank 1 has none.
  std::vector<std::int64_t> uneven() const {
    std::vector<std::int64_t> counts;
    for (int r = 0; r < ranks(); ++r) counts.push_back(r == 1 ? 0 : 1000 * r + 3);
    return counts;
  }
  std::int64_t first_of(const std::vector<std::int64_t>& counts) const {
    return std::accumulate(counts.begin(), counts.begin() + rank(), std::int64_t{0});
  }

  template <typename T>
  void expect_collectives() {
    constexpr std::size_t kEach = 501;
    const std::size_t all = kEach * static_cast<std::size_t>(ranks());
    const auto mine = upload(numbers<T>(rank(), all));

    Array<T> sum = upload(numbers<T>(rank(), all));
    devices_->all_reduce(span_of(sum), comm::Reduction::sum);
    EXPECT_EQ(download(sum), sum_of_numbers<T>(ranks(), all));

    Array<T> largest = upload(std::vector<T>{T(rank()), T(-rank())});
    devices_->all_reduce(span_of(largest), comm::Reduction::max);
    EXPECT_EQ(download(largest), (std::vector<T>{T(ranks() - 1), T(0)}));

    Array<T> share("share", kEach);
    devices_->reduce_scatter(std::span<const T>(span_of(mine)), span_of(share));
    const auto expected = sum_of_numbers<T>(ranks(), all);
    const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(kEach) * rank();
    EXPECT_EQ(download(share), std::vector<T>(begin, begin + kEach));

    Array<T> gathered("gathered", all);
    const auto own = upload(std::vector<T>(kEach, T(rank())));
    devices_->all_gather(std::as_bytes(span_of(own)), std::as_writable_bytes(span_of(gathered)));
    std::vector<T> everybody;
    for (int r = 0; r < ranks(); ++r) everybody.insert(everybody.end(), kEach, T(r));
    EXPECT_EQ(download(gathered), everybody);
  }

  /// Three sums at once, each its own channel, waited for in another order than posted.
  template <typename T>
  void expect_posted() {
    const auto counts = uneven();
    const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const auto count = static_cast<std::size_t>(all);
    Array<T> sum = upload(numbers<T>(rank(), count));
    const auto parts = upload(numbers<T>(rank(), count));
    Array<T> share("share", static_cast<std::size_t>(counts[static_cast<std::size_t>(rank())]));
    // Its own part stands in its place, as parameters do.
    std::vector<T> placed(count, T(-1));
    std::fill_n(placed.begin() + first_of(counts), share.extent(0), T(rank()));
    Array<T> gathered = upload(placed);
    std::vector<std::int64_t> bytes = counts;
    for (auto& each : bytes) each *= static_cast<std::int64_t>(sizeof(T));

    devices_->post_all_reduce(span_of(sum), 0);
    devices_->post_reduce_scatter(std::span<const T>(span_of(parts)), counts, span_of(share), 1);
    const auto own =
        span_of(gathered).subspan(static_cast<std::size_t>(first_of(counts)), share.extent(0));
    devices_->post_all_gather_v(std::as_bytes(own), bytes,
                                std::as_writable_bytes(span_of(gathered)), 2);
    devices_->wait(2);
    devices_->wait(0);
    devices_->wait(1);

    const auto expected = sum_of_numbers<T>(ranks(), count);
    EXPECT_EQ(download(sum), expected);
    const auto begin = expected.begin() + first_of(counts);
    EXPECT_EQ(download(share), std::vector<T>(begin, begin + share.extent(0)));
    std::vector<T> everybody;
    for (int r = 0; r < ranks(); ++r) {
      everybody.insert(everybody.end(),
                       static_cast<std::size_t>(counts[static_cast<std::size_t>(r)]), T(r));
    }
    EXPECT_EQ(download(gathered), everybody);
  }

  std::unique_ptr<comm::Communicator> world_ = comm::make_world();
  std::unique_ptr<DeviceCommunicator> devices_;
};

TEST_P(DeviceCommunicatorTest, CollectivesThatAreDoneWhenTheyReturn) {
  expect_collectives<float>();
  expect_collectives<double>();
}

TEST_P(DeviceCommunicatorTest, CollectivesThatAreWaitedFor) {
  expect_posted<float>();
  expect_posted<double>();
}

/// Everybody sends two messages to everybody, to itself too, in one group; sizes differ by pair.
TEST_P(DeviceCommunicatorTest, AGroupOfMessagesBetweenAll) {
  const auto size = [](int from, int to) { return std::size_t(40000 * from + 10 * to + 1); };
  std::vector<Array<std::byte>> sent, received;
  std::vector<comm::Send> sends;
  std::vector<comm::Receive> receives;
  for (int peer = 0; peer < ranks(); ++peer) {
    for (int message = 0; message < 2; ++message) {
      const auto content = std::byte(16 * rank() + 2 * peer + message);
      sent.push_back(upload(std::vector<std::byte>(size(rank(), peer), content)));
      received.emplace_back("received", size(peer, rank()));
      sends.push_back({span_of(sent.back()), peer, 5});
      receives.push_back({span_of(received.back()), peer, 5});
    }
  }
  devices_->post(receives, sends, 3);
  devices_->wait(3);
  for (int peer = 0; peer < ranks(); ++peer) {
    for (int message = 0; message < 2; ++message) {
      const auto found = download(received[static_cast<std::size_t>(2 * peer + message)]);
      EXPECT_THAT(found, ::testing::Each(std::byte(16 * peer + 2 * rank() + message)));
    }
  }
}

/// Groups of which a rank computes nothing in between: many are under way at once.
TEST_P(DeviceCommunicatorTest, ManyGroupsUnderWay) {
  constexpr int kGroups = 20;
  const int next = (rank() + 1) % ranks();
  const int before = (rank() + ranks() - 1) % ranks();
  std::vector<Array<float>> sent, received;
  for (int group = 0; group < kGroups; ++group) {
    sent.push_back(upload(std::vector<float>(3000, static_cast<float>(100 * rank() + group))));
    received.emplace_back("received", std::size_t{3000});
    const comm::Receive want{std::as_writable_bytes(span_of(received.back())), before, 9};
    const comm::Send have{std::as_bytes(span_of(sent.back())), next, 9};
    devices_->post({&want, 1}, {&have, 1}, group % 4);
  }
  for (int channel = 0; channel < 4; ++channel) devices_->wait(channel);
  for (int group = 0; group < kGroups; ++group) {
    EXPECT_THAT(download(received[static_cast<std::size_t>(group)]),
                ::testing::Each(static_cast<float>(100 * before + group)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeviceCommunicatorTest,
                         ::testing::Values(Transport::nccl, Transport::mpi, Transport::staged),
                         [](const auto& one) {
                           const std::string line = describe_transport(one.param);
                           return line.substr(0, line.find(':'));
                         });

/// Rank 0 sends to rank 1; the others look on.
class NcclPair : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kDeviceIsCuda || world_->size() == 1) GTEST_SKIP() << "the emulation's, of several ranks";
    devices_ = make_device_communicator(*world_, Transport::nccl, Purpose::attention);
  }
  void send() {
    const comm::Send message{std::as_bytes(span_of(sent_)), 1, 0};
    devices_->post({}, {&message, 1}, 0);
  }
  void receive() {
    const comm::Receive message{std::as_writable_bytes(span_of(received_)), 0, 0};
    devices_->post({&message, 1}, {}, 0);
    devices_->wait(0);
    EXPECT_THAT(download(received_), ::testing::Each(3));
  }
  /// For a while, which a slow machine only makes less strict.
  template <typename Said>
  static void expect_never(const Said& said) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (std::chrono::steady_clock::now() < end) ASSERT_FALSE(said());
  }
  void tell(int rank) {
    world_->post_send({&signal_, 1}, rank, 1, 0);
    world_->wait(0);
  }
  void listen_to(int rank) { world_->post_receive({&signal_, 1}, rank, 1, 0); }

  std::unique_ptr<comm::Communicator> world_ = comm::make_world();
  std::unique_ptr<DeviceCommunicator> devices_;
  std::byte signal_{};
  Array<float> sent_ = upload(std::vector<float>(8, 3)), received_{"received", 8};
};

TEST_F(NcclPair, ConnectsWhereBothAre) {
  if (world_->rank() == 0) {
    send();
    tell(1);
    devices_->wait(0);
  } else if (world_->rank() == 1) {
    listen_to(0);
    expect_never([&] { return world_->test(0); });
    receive();
    world_->wait(0);
  }
  world_->barrier();
}

TEST_F(NcclPair, SendsNothingBeforeItIsReceived) {
  for (int message = 0; message < 2; ++message) {  // the first one connects
    if (world_->rank() == 0) {
      send();
      if (message == 1) {
        expect_never([&] { return devices_->test(0); });
        tell(1);
      }
      devices_->wait(0);
    } else if (world_->rank() == 1) {
      if (message == 1) {
        listen_to(0);
        world_->wait(0);
      }
      receive();
    }
  }
  world_->barrier();
}

/// A planted fault: with tags the messages would find their places.
TEST(NcclOrder, MessagesInAnotherOrderLandInEachOthersPlaces) {
  const auto world = comm::make_world();
  if (kDeviceIsCuda || world->size() == 1) GTEST_SKIP() << "the emulation's, of several ranks";
  const auto devices = make_device_communicator(*world, Transport::nccl, Purpose::attention);
  const int next = (world->rank() + 1) % world->size();
  const int before = (world->rank() + world->size() - 1) % world->size();
  const auto first = upload(std::vector<float>(8, 1));
  const auto second = upload(std::vector<float>(8, 2));
  const Array<float> wants_first("first", 8), wants_second("second", 8);
  const std::array sends = {comm::Send{std::as_bytes(span_of(second)), next, 2},
                            comm::Send{std::as_bytes(span_of(first)), next, 1}};
  const std::array receives = {
      comm::Receive{std::as_writable_bytes(span_of(wants_first)), before, 1},
      comm::Receive{std::as_writable_bytes(span_of(wants_second)), before, 2}};
  devices->post(receives, sends, 0);
  devices->wait(0);
  EXPECT_THAT(download(wants_first), ::testing::Each(2));
  EXPECT_THAT(download(wants_second), ::testing::Each(1));
}

}  // namespace
}  // namespace cadenza::exec::test_device_communicator
