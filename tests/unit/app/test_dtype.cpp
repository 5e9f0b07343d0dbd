// SPDX-License-Identifier: Apache-2.0
// Which types a host computes in.
#include "app/runtime/machine.hpp"

#include <gmock/gmock.h>

#include "cadenza/base/error.hpp"
#include "cadenza/kernels/device.hpp"

namespace cadenza::app::test_dtype {
namespace {

using config::Dtype;

TEST(RequireDtype, RefusesBfloat16WhereTheHostLacksIt) {
  if (kDeviceIsCuda) GTEST_SKIP() << "this program computes on a device";
  try {
    require_dtype(Dtype::bfloat16, false, "node7");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_STREQ(
        error.what(),
        "run.dtype: bfloat16 needs a processor with AVX2; host node7 has none; valid here: "
        "float32, float64");
  }
}

TEST(RequireDtype, AcceptsTheRest) {
  EXPECT_NO_THROW(require_dtype(Dtype::bfloat16, true, "h"));
  for (const bool has : {false, true}) {
    EXPECT_NO_THROW(require_dtype(Dtype::float32, has, "h"));
    EXPECT_NO_THROW(require_dtype(Dtype::float64, has, "h"));
  }
}

TEST(WithReal, NamesTheTypeOfEveryWord) {
  const auto size = [](Dtype dtype) {
    std::size_t bytes = 0;
    with_real(dtype, [&]<typename Real>(Real) { bytes = sizeof(Real); });
    return bytes;
  };
  EXPECT_EQ(size(Dtype::bfloat16), 2u);
  EXPECT_EQ(size(Dtype::float32), 4u);
  EXPECT_EQ(size(Dtype::float64), 8u);
}

}  // namespace
}  // namespace cadenza::app::test_dtype
