// SPDX-License-Identifier: Apache-2.0
// Every call of a queue, by a group of one rank: on a device it is NCCL that answers, which a
// machine with one device would not meet otherwise (to itself a rank sends nothing through it).
#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/kernels/device.hpp"
#include "exec/nccl/queue.hpp"
#include "unit/kernels/device_data.hpp"

namespace cadenza::exec::nccl {
namespace {

using cadenza::testing::download;
using cadenza::testing::upload;
using ::testing::Each;

template <typename T>
std::span<std::byte> bytes_of(const Array<T>& array) {
  return std::as_writable_bytes(std::span(array.data(), array.extent(0)));
}

class NcclQueue : public ::testing::Test {
 protected:
  /// One group of these calls, and kernels behind it.
  template <typename Calls>
  void run(const Calls& calls) {
    queue_->start();
    calls();
    const Ticket group = queue_->end();
    queue_->let_kernels_wait(group);
    fence();
    EXPECT_TRUE(queue_->is_done(group));
  }

  template <typename T>
  void expect_collectives() {
    const auto numbers_of = [](const Array<T>& array) {
      return comm::Numbers(std::span<T>(array.data(), array.extent(0)));
    };
    const std::vector<T> values = {T(1.5), T(-2), T(1e30), T(0), T(7)};
    const Array<T> from = upload(values);
    const auto expect_copied = [&](const char* call, const auto& post) {
      const Array<T> to = upload(std::vector<T>(values.size(), T(-1)));
      run([&] { post(to); });
      EXPECT_EQ(download(to), values) << call;
    };
    for (const comm::Reduction op : {comm::Reduction::sum, comm::Reduction::max}) {
      run([&] { queue_->all_reduce(numbers_of(from), op); });
      EXPECT_EQ(download(from), values) << "all_reduce";
    }
    expect_copied("reduce",
                  [&](const Array<T>& to) { queue_->reduce(numbers_of(from), numbers_of(to), 0); });
    expect_copied("broadcast",
                  [&](const Array<T>& to) { queue_->broadcast(bytes_of(from), bytes_of(to), 0); });
    expect_copied("reduce_scatter", [&](const Array<T>& to) {
      queue_->reduce_scatter(numbers_of(from), numbers_of(to));
    });
    expect_copied("all_gather",
                  [&](const Array<T>& to) { queue_->all_gather(bytes_of(from), bytes_of(to)); });
  }

  std::unique_ptr<comm::Communicator> self_ = comm::make_self();
  std::unique_ptr<Queue> queue_ = make_queue(*self_, 8);
};

TEST_F(NcclQueue, CollectivesOfFloat32) {
  expect_collectives<float>();
}

TEST_F(NcclQueue, CollectivesOfFloat64) {
  expect_collectives<double>();
}

TEST_F(NcclQueue, MessagesOfAGroupToItselfInTheirOrder) {
  const Array<float> first = upload(std::vector<float>(300000, 1.5f));
  const Array<float> second = upload(std::vector<float>(7, -3.0f));
  const Array<float> wants_first("first", first.extent(0)), wants_second("second", 7);
  run([&] {
    queue_->receive(bytes_of(wants_first), 0);
    queue_->receive(bytes_of(wants_second), 0);
    queue_->send(bytes_of(first), 0);
    queue_->send(bytes_of(second), 0);
  });
  EXPECT_THAT(download(wants_first), Each(1.5f));
  EXPECT_THAT(download(wants_second), Each(-3.0f));
}

TEST_F(NcclQueue, ManyGroupsUnderWayEndInTheirOrder) {
  std::vector<Array<float>> sent, received;
  std::vector<Ticket> groups;
  for (int group = 0; group < 20; ++group) {
    sent.push_back(upload(std::vector<float>(1000, static_cast<float>(group))));
    received.emplace_back("received", std::size_t{1000});
    queue_->start();
    queue_->receive(bytes_of(received.back()), 0);
    queue_->send(bytes_of(sent.back()), 0);
    groups.push_back(queue_->end());
  }
  EXPECT_TRUE(std::ranges::is_sorted(groups));
  queue_->let_kernels_wait(groups.back());
  fence();
  for (const Ticket group : groups) EXPECT_TRUE(queue_->is_done(group));
  for (int group = 0; group < 20; ++group) {
    EXPECT_THAT(download(received[static_cast<std::size_t>(group)]),
                Each(static_cast<float>(group)));
  }
}

}  // namespace
}  // namespace cadenza::exec::nccl
