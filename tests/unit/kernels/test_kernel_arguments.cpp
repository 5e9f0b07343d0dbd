// SPDX-License-Identifier: Apache-2.0
// What a kernel reads of its functor is what the host wrote. Two compilers lay out the functor of a
// device's kernel, and have not agreed where a Kokkos::View had [[no_unique_address]] members.
#include <gmock/gmock.h>

#include "device_data.hpp"

namespace cadenza {
namespace {

struct Arguments {
  std::int32_t before;
  Array<std::int32_t> view;
  std::int32_t between;
  Array<double> other;
  std::int64_t after;
};

struct ReadArguments {
  Arguments of;
  std::int64_t* to;
  KOKKOS_FUNCTION void operator()(std::int64_t) const {
    to[0] = of.before;
    to[1] = static_cast<std::int64_t>(of.view.extent(0)) + of.view(2);
    to[2] = of.between;
    to[3] = static_cast<std::int64_t>(of.other.extent(0)) + static_cast<std::int64_t>(of.other(1));
    to[4] = of.after;
  }
};

TEST(KernelArguments, ReachTheKernelAsTheyWereWritten) {
  const Array<std::int64_t> read("read", 5);
  const Arguments of{1, testing::upload<std::int32_t>({5, 6, 7}), 2,
                     testing::upload<double>({8, 9}), 3};
  launch("read_arguments", Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>(0, 1),
         ReadArguments{of, read.data()});
  fence();
  EXPECT_THAT(testing::download(read), ::testing::ElementsAre(1, 3 + 7, 2, 2 + 9, 3));
}

}  // namespace
}  // namespace cadenza
