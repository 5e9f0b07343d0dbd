// SPDX-License-Identifier: Apache-2.0
// main() of the unit tests whose module computes with Kokkos.
#include <gmock/gmock.h>

#include <Kokkos_Core.hpp>

#include "device_here.hpp"

int main(int argc, char** argv) {
  if (!cadenza::testing::device_is_here()) return cadenza::testing::kSkipped;
  ::testing::InitGoogleMock(&argc, argv);
  Kokkos::ScopeGuard kokkos(argc, argv);
  return RUN_ALL_TESTS();
}
