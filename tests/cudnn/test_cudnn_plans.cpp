// SPDX-License-Identifier: Apache-2.0
// Whether cuDNN has plans for the shapes that attention.kernel: cudnn asks for, on devices that are
// described and not there. cuDNN compiles its kernels for them; that it does not load them, for
// want of a driver, is the end of what can be asked here.
#include <gmock/gmock.h>

#include "../../kernels/cudnn/graph.hpp"

namespace cadenza::testing {
namespace {

using kernels::cudnn::SdpaShape;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A device as cuDNN describes it (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION).
std::string device(int sm, int multiprocessors, int shared) {
  return R"({"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],)"
         R"("driverVer": 13000, "cudaDeviceId": 0, "regsPerBlock": 65536, "warpSize": 32,)"
         R"("smClockRateKHz": 1500000, "memClockRateKHz": 2000000, "l2CacheSize": 52428800,)"
         R"("maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024,)"
         R"("maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,)"
         R"("maxThreadsPerSM": 2048, "pciDeviceId": 0, "deviceName": "described",)"
         R"("isTccDriver": 0, "supportCoopLaunch": 1, "totalGlobalMem": 40000000000,)"
         R"("deviceVer": )" +
         std::to_string(10 * sm) + R"(, "multiProcessorCount": )" +
         std::to_string(multiprocessors) + R"(, "maxSharedMemoryPerBlockOptin": )" +
         std::to_string(shared) + "}";
}

std::string answer(Pass pass, const SdpaShape& shape, int sm) {
  return kernels::cudnn::refusal(pass, shape,
                                 sm == 90 ? device(90, 132, 232448) : device(80, 108, 166912), sm);
}

constexpr const char* kOnlyNotLoaded = "cuLibraryLoadData";

void expect_plans(const SdpaShape& shape, int sm = 90) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    EXPECT_THAT(answer(pass, shape, sm), AnyOf("", HasSubstr(kOnlyNotLoaded)))
        << shape.queries << " queries, " << shape.keys << " keys";
  }
}

/// Heads, kv_heads, head_dim, queries, keys, rows of q and of k, causal, left.
TEST(CudnnPlans, WholeDocumentsAndShards) {
  expect_plans({32, 8, 128, 8192, 8192, 4096, 1024, true, 0});
  expect_plans({32, 8, 128, 1000, 8192, 4096, 1024, true, 0});
  expect_plans({32, 8, 64, 1000, 4097, 2048, 512, false, 0});
}

TEST(CudnnPlans, SlicesOfHeadsAndSmallOddShapes) {
  expect_plans({3, 1, 72, 37, 55, 6 * 72, 2 * 72, true, 0});
  expect_plans({2, 2, 8, 2, 2, 4 * 8, 4 * 8, true, 0});
  expect_plans({2, 1, 96, 5, 1, 2 * 96, 96, false, 0});
  expect_plans({2, 1, 96, 1, 5, 2 * 96, 96, false, 0});
}

/// A window, and what is left of one below its last key: an edge on the left alone.
TEST(CudnnPlans, Windows) {
  expect_plans({8, 2, 128, 4096, 4096, 1024, 256, true, 512});
  expect_plans({8, 2, 128, 777, 1023, 1024, 256, true, 100});
  expect_plans({8, 2, 128, 777, 1023, 1024, 256, false, 1023 - 777 + 1});
}

TEST(CudnnPlans, OlderDevices) {
  expect_plans({8, 2, 128, 1000, 2000, 1024, 256, true, 0}, 80);
}

/// What this test would see of a shape that cuDNN has no plan for.
TEST(CudnnPlans, RefusalsShow) {
  const SdpaShape no_alignment{8, 2, 20, 100, 100, 160, 40, true, 0};
  const SdpaShape more_queries_than_keys{8, 2, 64, 200, 100, 512, 128, true, 0};
  const SdpaShape one_pair{1, 1, 64, 1, 1, 64, 64, false, 0};
  for (const SdpaShape& shape : {no_alignment, more_queries_than_keys, one_pair}) {
    const std::string got = answer(Pass::backward, shape, 90);
    EXPECT_THAT(got, Not(HasSubstr(kOnlyNotLoaded)));
    EXPECT_NE(got, "");
  }
  EXPECT_THAT(answer(Pass::forward, more_queries_than_keys, 90), HasSubstr("Bottom right"));
}

}  // namespace
}  // namespace cadenza::testing
