// SPDX-License-Identifier: Apache-2.0
// That memory and stream of the preset `separate` find what they are there to find: one planted
// fault each.
#include <gmock/gmock.h>

#include <cmath>
#include <thread>

#include "unit/kernels/device_data.hpp"

#ifdef CADENZA_SEPARATE_MEMORY

namespace cadenza {
namespace {

using testing::download;
using testing::upload;

struct Twice {
  Array<float> values;
  KOKKOS_FUNCTION void operator()(int i) const { values(i) *= 2; }
};

void twice(const Array<float>& values) {
  launch("twice", Kokkos::RangePolicy<Device>(0, static_cast<int>(values.extent(0))),
         Twice{values});
}

/// What a library that takes device pointers and knows nothing of the stream would send now.
std::vector<float> sent(const Array<float>& values) {
  const DeviceAccess access;
  return {values.data(), values.data() + values.extent(0)};
}

TEST(SeparateMemory, KernelsAndCopiesReachIt) {
  const auto values = upload(std::vector<float>{1, 2, 3});
  twice(values);
  EXPECT_THAT(download(values), ::testing::ElementsAre(2, 4, 6));
  Array<float> copy("copy", 3);
  EXPECT_THAT(download(copy), ::testing::Each(0));
  Kokkos::deep_copy(copy, values);
  twice(copy);
  EXPECT_THAT(download(copy), ::testing::ElementsAre(4, 8, 12));
  EXPECT_THAT(download(values), ::testing::ElementsAre(2, 4, 6));
}

TEST(SeparateMemory, TheHostDoesNot) {
  const auto values = upload(std::vector<float>{1, 2, 3});
  volatile float* at = values.data();
  EXPECT_DEATH(static_cast<void>(*at), "");
  EXPECT_DEATH(*at = 1, "");
  const DeviceAccess access;
  EXPECT_EQ(*at, 1);
}

TEST(SeparateMemory, IsClosedAgainAfterKernelsAndCopies) {
  const auto values = upload(std::vector<float>{1, 2, 3});
  twice(values);
  download(values);
  { const DeviceAccess access; }
  volatile float* at = values.data();
  EXPECT_DEATH(static_cast<void>(*at), "");
}

TEST(SeparateMemory, AKernelPastTheStreamDies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the kernel needs threads
  const auto values = upload(std::vector<float>{1, 2, 3});
  EXPECT_DEATH(Kokkos::parallel_for("twice", Kokkos::RangePolicy<Device>(0, 3), Twice{values}), "");
}

TEST(SeparateMemory, AForgottenCopyBackIsSeen) {
  const Array<float> values(Kokkos::view_alloc("values", Kokkos::WithoutInitializing), 3);
  const auto host = Kokkos::create_mirror_view(values);
  host(0) = 1;  // and no deep_copy
  EXPECT_TRUE(std::isnan(download(values)[0]));
  static_assert(!std::is_same_v<HostArray<float>::memory_space, DeviceMemory>);
}

TEST(SeparateMemory, MemoryThatIsUsedAgainHoldsNothing) {
  constexpr std::size_t kCount = 12'345;
  const float* first = nullptr;
  {
    const auto values = upload(std::vector<float>(kCount, 1));
    first = values.data();
  }
  const Array<float> values(Kokkos::view_alloc("values", Kokkos::WithoutInitializing), kCount);
  ASSERT_EQ(values.data(), first);
  for (const float value : download(values)) ASSERT_TRUE(std::isnan(value));
}

TEST(DeferredStream, AMissingWaitIsSeen) {
  const auto values = upload(std::vector<float>{1, 2, 3});
  twice(values);
  EXPECT_THAT(sent(values), ::testing::ElementsAre(1, 2, 3));
  fence();
  EXPECT_THAT(sent(values), ::testing::ElementsAre(2, 4, 6));
}

TEST(DeferredStream, HostMemoryThatChangesTooEarlyIsSeen) {
  float source = 1;
  const auto values = upload(std::vector<float>{0});
  const auto read = [&](float* to, const float* from) { *to = *from; };
  enqueue(read, values.data(), &source);
  source = 2;
  EXPECT_THAT(download(values), ::testing::ElementsAre(2));
  enqueue(read, values.data(), &source);
  fence();
  source = 3;
  EXPECT_THAT(download(values), ::testing::ElementsAre(2));
}

TEST(DeferredStream, KeepsTheOrderOfCallsAndCopiesWait) {
  const auto values = upload(std::vector<float>{1});
  std::vector<int> order;
  enqueue([&order] { order.push_back(1); });
  twice(values);
  enqueue([&order] { order.push_back(2); });
  EXPECT_THAT(order, ::testing::IsEmpty());
  EXPECT_THAT(download(values), ::testing::ElementsAre(2));
  EXPECT_THAT(order, ::testing::ElementsAre(1, 2));
}

TEST(DeferredStream, IsOneForAllThreads) {
  const auto values = upload(std::vector<float>{1});
  std::thread([&] { twice(values); }).join();
  fence();
  EXPECT_THAT(sent(values), ::testing::ElementsAre(2));
}

TEST(DeferredStream, InputsAreThoseOfTheCall) {
  const auto values = upload(std::vector<float>{0});
  std::vector<float> list = {1, 2};
  enqueue([](float* to, const std::vector<float>& from) { *to = from[0] + from[1]; }, values.data(),
          list);
  list.clear();
  EXPECT_THAT(download(values), ::testing::ElementsAre(3));
}

#ifdef __SANITIZE_ADDRESS__
TEST(SeparateMemory, TheSanitizerSeesTheEndsOfArrays) {
  for (const std::size_t count : {1, 3, 1024, 4096}) {
    const auto values = upload(std::vector<float>(count, 1));
    volatile float* at = values.data();
    const DeviceAccess access;
    constexpr std::size_t kRounded = 1;  // Kokkos asks for multiples of 8 bytes
    EXPECT_DEATH(static_cast<void>(at[count + kRounded]), "use-after-poison");
  }
}
#endif

}  // namespace
}  // namespace cadenza

#else

TEST(SeparateMemory, FindsPlantedFaults) {
  GTEST_SKIP() << "the preset `separate` has it";
}

#endif
