// SPDX-License-Identifier: Apache-2.0
#include "cadenza/exec/transport.hpp"

#include <gmock/gmock.h>

#include <array>

namespace cadenza::exec {
namespace {

constexpr std::int64_t kBytes = 64;

/// Bytes of the device, written and read by its stream.
void fill(std::byte* to, int value) {
  enqueue([](std::byte* at, int byte) { std::fill_n(at, kBytes, std::byte(byte)); }, to, value);
}

int first_of(const Transport& transport, std::int64_t offset) {
  int value = -1;
  enqueue([](const std::byte* at, int* read) { *read = static_cast<int>(*at); },
          transport.memory() + offset, &value);
  fence();
  return value;
}

class TransportTest : public testing::Test {
 protected:
  TransportTest() {
    if (kDeviceIsCuda) return;  // what the tests enqueue runs on a host
    transport_.grow(4 * kBytes);
  }
  void SetUp() override {
    if (kDeviceIsCuda) GTEST_SKIP() << "the test's own work is no device code";
  }

  std::unique_ptr<comm::Communicator> self_ = comm::make_self();
  MemoryLedger ledger_;
  Transport transport_{*self_, ledger_, "messages"};
  std::array<Transfer, 2> sends_{{{0, 7, 0, kBytes}, {0, 8, kBytes, kBytes}}};
  std::array<Transfer, 2> receives_{{{0, 8, 2 * kBytes, kBytes}, {0, 7, 3 * kBytes, kBytes}}};
};

TEST_F(TransportTest, AGroupGoesOutOfAndIntoDeviceMemory) {
  fill(transport_.memory(), 1);
  fill(transport_.memory() + kBytes, 2);
  transport_.before_send(sends_);
  transport_.post(receives_, sends_, 3);
  EXPECT_TRUE(transport_.test(3));
  transport_.wait(3);
  transport_.after_receive(receives_);
  EXPECT_EQ(first_of(transport_, 2 * kBytes), 2);
  EXPECT_EQ(first_of(transport_, 3 * kBytes), 1);
  EXPECT_EQ(first_of(transport_, 0), 1) << "what is sent stays";
}

TEST_F(TransportTest, WithoutItsTwoCopiesOldBytesTravel) {
#ifndef CADENZA_SEPARATE_MEMORY
  GTEST_SKIP() << "the preset `separate` has memory of its own";
#endif
  fill(transport_.memory(), 1);
  transport_.before_send(sends_);
  fill(transport_.memory(), 5);  // too late for this message
  transport_.post(receives_, sends_, 0);
  transport_.wait(0);
  fill(transport_.memory() + 3 * kBytes, 9);
  EXPECT_EQ(first_of(transport_, 3 * kBytes), 9);
  transport_.after_receive(receives_);
  EXPECT_EQ(first_of(transport_, 3 * kBytes), 1);
}

TEST_F(TransportTest, GrowsAndIsInTheLedger) {
  EXPECT_EQ(ledger_.current(MemoryKind::communication), 4 * kBytes);
  transport_.grow(kBytes);
  EXPECT_EQ(ledger_.current(MemoryKind::communication), 4 * kBytes);
  transport_.grow(8 * kBytes);
  EXPECT_EQ(ledger_.current(MemoryKind::communication), 8 * kBytes);
}

TEST_F(TransportTest, PostsNothing) {
  transport_.before_send({});
  transport_.post({}, {}, 1);
  transport_.wait(1);
  transport_.after_receive({});
}

}  // namespace
}  // namespace cadenza::exec
