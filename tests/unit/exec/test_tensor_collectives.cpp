// SPDX-License-Identifier: Apache-2.0
// The model does with its tensor group what the program's list says, or the run ends.
#include "exec/collectives/tensor_collectives.hpp"

#include <gmock/gmock.h>

namespace cadenza::exec {
namespace {

using program::Operation;
using ::testing::HasSubstr;

class TensorCollectivesTest : public ::testing::Test {
 protected:
  /// One step, of this rank to itself: what a group of two does with the other.
  void gather(std::size_t bytes) {
    sent_.resize(bytes);
    received_.resize(bytes);
    group_.post(Collective::all_gather, 1, sent_, received_);
  }
  void take() {
    group_.wait(Collective::all_gather, 1);
    fence();  // what arrives is copied on the stream
  }
  void sum(std::size_t elements) {
    std::vector<float> values(elements);
    group_.all_reduce_sum(values);
    fence();
  }
  template <typename Call>
  static void expect_fault(Call call, const std::string& said) {
    try {
      call();
      ADD_FAILURE() << "expected: " << said;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::internal);
      EXPECT_THAT(error.what(), HasSubstr(said));
    }
  }

  std::vector<std::byte> sent_, received_;
  MemoryLedger ledger_;
  trace::Recorder recorder_{100};
  Tracer tracer_{recorder_, ledger_, true, false};
  std::unique_ptr<comm::Communicator> self_ = comm::make_self();
  std::unique_ptr<DeviceCommunicator> devices_ =
      make_device_communicator(*self_, config::Transport::automatic, Purpose::attention);
  TensorCollectives<float> group_{*devices_, tracer_};
};

TEST_F(TensorCollectivesTest, RunsAndRecordsWhatIsListed) {
  group_.begin({{Collective::all_gather, 64}, {Collective::all_reduce, 12}});
  gather(64);
  take();
  sum(3);
  group_.end(Operation::embed);
  ASSERT_EQ(recorder_.events().size(), 2u);
  EXPECT_EQ(recorder_.names()[recorder_.events()[0].name_id], "tensor_all_gather");
  EXPECT_EQ(recorder_.events()[0].bytes, 64);
  EXPECT_EQ(recorder_.names()[recorder_.events()[1].name_id], "tensor_all_reduce");
}

TEST_F(TensorCollectivesTest, RefusesAnotherOne) {
  group_.begin({{Collective::all_gather, 64}});
  expect_fault([&] { sum(16); },
               "collective 0 of its operation is tensor_all_reduce of 64 bytes, expected "
               "tensor_all_gather of 64 bytes");
}

TEST_F(TensorCollectivesTest, RefusesOtherBytes) {
  group_.begin({{Collective::all_gather, 64}});
  expect_fault([&] { gather(32); }, "of 32 bytes, expected tensor_all_gather of 64 bytes");
}

TEST_F(TensorCollectivesTest, RefusesOneThatNobodyAwaited) {
  group_.begin({{Collective::all_gather, 64}});
  gather(64);
  expect_fault([&] { group_.end(Operation::embed); },
               "embed: the model ran 0 collectives of its tensor group, expected 1");
  take();
}

TEST_F(TensorCollectivesTest, RefusesAWaitForNothing) {
  group_.begin({});
  expect_fault([&] { take(); }, "tensor_all_gather: a wait for what was not posted");
}

TEST_F(TensorCollectivesTest, RefusesOneTooMany) {
  group_.begin({});
  expect_fault([&] { sum(1); }, "tensor_all_reduce of 4 bytes, expected none");
}

TEST_F(TensorCollectivesTest, RefusesOneTooFew) {
  group_.begin({{Collective::all_reduce, 4}, {Collective::all_reduce, 4}});
  sum(1);
  expect_fault([&] { group_.end(Operation::loss); },
               "loss: the model ran 1 collectives of its tensor group, expected 2");
}

}  // namespace
}  // namespace cadenza::exec
