// SPDX-License-Identifier: Apache-2.0
// What NCCL may take of a device: multiprocessors and memory.
#include <gmock/gmock.h>

#include <cstdlib>

#include "exec/nccl/communicator.hpp"
#include "unit/exec/tiny.hpp"

namespace cadenza::exec {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// A variable of the environment, as long as it lives.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

std::int64_t nccl_mib(const config::Experiment& e, Rank rank) {
  const auto corpus = data::open_corpus(e.data, e.model.vocab, e.seed);
  const auto tick_plans = program::plan_ticks(e, data::Packer(*corpus, e).batch(0));
  return nccl_bytes(program::StepShape(e), rank, tick_plans) / kMiB;
}

/// Of each kind, as many as a rank can have.
TEST(NcclMemory, AllChannelsOfARankFitOnTheSmallestDeviceAtATime) {
  constexpr int kMultiprocessors = 108;
  const int all = 4 * nccl::most_channels(Purpose::attention) +
                  4 * nccl::most_channels(Purpose::streams) +
                  nccl::most_channels(Purpose::gradients) + nccl::most_channels(Purpose::slices);
  EXPECT_EQ(all, 64);
  EXPECT_LE(all, kMultiprocessors);
}

TEST(NcclMemory, OfAnEndIsABufferForEachProtocolInEachChannel) {
  EXPECT_EQ(nccl::buffer_bytes(Purpose::attention, 0), 0);
  EXPECT_EQ(nccl::buffer_bytes(Purpose::attention, 1), 8 * 10 * kMiB);
  EXPECT_EQ(nccl::buffer_bytes(Purpose::streams, 3), 3 * 4 * 10 * kMiB);
  {
    const Setting smaller("NCCL_BUFFSIZE", "1048576");
    EXPECT_EQ(nccl::buffer_bytes(Purpose::attention, 1), 8 * 8 * kMiB);
    const Setting fewer("NCCL_MAX_CTAS", "2");
    EXPECT_EQ(nccl::buffer_bytes(Purpose::attention, 1), 2 * 8 * kMiB);
  }
  EXPECT_EQ(nccl::buffer_bytes(Purpose::attention, 1), 8 * 10 * kMiB);
}

TEST(NcclMemory, CollectivesConnectARingAndATree) {
  EXPECT_EQ(nccl::ends_of_collectives(1), 0);
  EXPECT_EQ(nccl::ends_of_collectives(2), 2);
  EXPECT_EQ(nccl::ends_of_collectives(4), 6);
  EXPECT_EQ(nccl::ends_of_collectives(1000), 8);
}

TEST(NcclMemory, IsThatOfThePairsThatMeet) {
  config::Experiment e = testing::tiny_experiment();
  e.attention.placement = config::PlacementKind::colocated;
  EXPECT_EQ(nccl_mib(e, 0), 0);
  e.parallel.data = 3;
  EXPECT_EQ(nccl_mib(e, 0), 4 * 80) << "gradients";
  e.parallel.data = 1;
  e.parallel.pipeline = 2;
  EXPECT_EQ(nccl_mib(e, 0), 2 * 40) << "an edge, both passes";
  e.parallel.pipeline = 1;
  e.parallel.tensor = 2;
  EXPECT_EQ(nccl_mib(e, 1), (2 + 2) * 80) << "shards of rows, sums";
  e.parallel.tensor = 1;
  e.parallel.context = 3;
  e.attention.placement = config::PlacementKind::all_gather;
  EXPECT_EQ(nccl_mib(e, 1), (4 + 4 + 4) * 80) << "inputs, results, gradients";
}

TEST(NcclMemory, IsNamedWhereItIsTheLargestPart) {
  MemoryEstimate memory;
  memory.activations = 10 * kMiB;
  memory.communication = 60 * kMiB;
  memory.nccl = 55 * kMiB;
  EXPECT_THAT(memory.largest(), ::testing::StartsWith("buffers of NCCL"));
  memory.nccl = 5 * kMiB;
  EXPECT_THAT(memory.largest(), ::testing::StartsWith("message buffers"));
}

}  // namespace
}  // namespace cadenza::exec
