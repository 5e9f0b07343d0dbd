// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/workspace.hpp"

#include <gmock/gmock.h>

#include <array>

#include "cadenza/base/error.hpp"

namespace cadenza::exec {
namespace {

using config::Transport;

constexpr std::int64_t kBytes = 64;

/// Bytes of the device, written and read by its stream.
void fill(std::byte* to, int value) {
  enqueue([](std::byte* at, int byte) { std::fill_n(at, kBytes, std::byte(byte)); }, to, value);
}

int first_of(const MessageBuffer& buffer, std::int64_t offset) {
  int value = -1;
  enqueue([](const std::byte* at, int* read) { *read = static_cast<int>(*at); },
          buffer.memory() + offset, &value);
  fence();
  return value;
}

class MessageBufferTest : public ::testing::TestWithParam<Transport> {
 protected:
  void SetUp() override {
    if (kDeviceIsCuda) GTEST_SKIP() << "the test's own work is no device code";
    if (GetParam() == Transport::mpi && !host_holds_tensors()) {
      GTEST_SKIP() << "MPI does not read the memory of the preset `separate`";
    }
    devices_ = make_device_communicator(*self_, GetParam(), Purpose::attention);
    buffer_.grow(4 * kBytes);
  }

  std::unique_ptr<comm::Communicator> self_ = comm::make_self();
  MemoryLedger ledger_;
  std::unique_ptr<DeviceCommunicator> devices_;
  MessageBuffer buffer_{ledger_, "messages"};
  /// Two messages to itself: the first arrives in the last place, the second before it.
  void post(int channel) {
    const std::array<comm::Receive, 2> receives{
        {{buffer_.bytes(3 * kBytes, kBytes), 0, 7}, {buffer_.bytes(2 * kBytes, kBytes), 0, 8}}};
    const std::array<comm::Send, 2> sends{
        {{buffer_.bytes(0, kBytes), 0, 7}, {buffer_.bytes(kBytes, kBytes), 0, 8}}};
    devices_->post(receives, sends, channel);
  }
};

TEST_P(MessageBufferTest, AGroupGoesOutOfAndIntoDeviceMemory) {
  fill(buffer_.memory(), 1);
  fill(buffer_.memory() + kBytes, 2);
  post(3);
  EXPECT_TRUE(devices_->test(3));
  devices_->wait(3);
  EXPECT_EQ(first_of(buffer_, 2 * kBytes), 2);
  EXPECT_EQ(first_of(buffer_, 3 * kBytes), 1);
  EXPECT_EQ(first_of(buffer_, 0), 1) << "what is sent stays";
}

/// Copies are made when a message is posted and when it is waited for, not before and not later.
TEST_P(MessageBufferTest, CopiesAreMadeByPostAndByWait) {
  if (GetParam() != Transport::staged) GTEST_SKIP() << "nothing is copied, or at another time";
  fill(buffer_.memory(), 1);
  fill(buffer_.memory() + 3 * kBytes, 9);
  post(0);
  fill(buffer_.memory(), 5);  // too late for this message
  EXPECT_EQ(first_of(buffer_, 3 * kBytes), 9);
  devices_->wait(0);
  EXPECT_EQ(first_of(buffer_, 3 * kBytes), 1);
}

/// What arrived is copied behind the kernels that are on the stream: the host waits for none.
TEST_P(MessageBufferTest, AWaitForMessagesIsNoneForKernels) {
  if (GetParam() != Transport::staged) GTEST_SKIP() << "nothing is copied by the host";
  fill(buffer_.memory(), 1);
  post(0);
  bool ran = false;
  enqueue([&ran] { ran = true; });
  devices_->wait(0);
  EXPECT_EQ(ran, !kStreamRunsLater);
  EXPECT_EQ(first_of(buffer_, 3 * kBytes), 1);
  EXPECT_TRUE(ran);
}

TEST_P(MessageBufferTest, GrowsAndIsInTheLedger) {
  EXPECT_EQ(ledger_.current(MemoryKind::communication), 4 * kBytes);
  buffer_.grow(kBytes);
  EXPECT_EQ(ledger_.current(MemoryKind::communication), 4 * kBytes);
  buffer_.grow(8 * kBytes);
  EXPECT_EQ(ledger_.current(MemoryKind::communication), 8 * kBytes);
}

TEST_P(MessageBufferTest, PostsNothing) {
  devices_->post({}, {}, 1);
  devices_->wait(1);
}

INSTANTIATE_TEST_SUITE_P(All, MessageBufferTest,
                         ::testing::Values(Transport::nccl, Transport::mpi, Transport::staged),
                         [](const auto& one) {
                           const std::string line = describe_transport(one.param);
                           return line.substr(0, line.find(':'));
                         });

TEST(ChooseTransport, MpiWhereItReadsTheTensors) {
  if (kDeviceIsCuda) GTEST_SKIP() << "depends on the MPI library";
  EXPECT_EQ(choose_transport(Transport::automatic, false),
            host_holds_tensors() ? Transport::mpi : Transport::staged);
  EXPECT_EQ(choose_transport(Transport::staged, false), Transport::staged);
  if (host_holds_tensors()) {
    EXPECT_EQ(choose_transport(Transport::mpi, false), Transport::mpi);
  } else {
    EXPECT_THROW(choose_transport(Transport::mpi, false), Error);
  }
}

}  // namespace
}  // namespace cadenza::exec
