// SPDX-License-Identifier: Apache-2.0
// Device memory that waits in host memory.
#include <gmock/gmock.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/kernels/host_store.hpp"

namespace cadenza::test_host_store {
namespace {

void fill(const Array<double>& array, double value) {
  launch(
      "fill", Kokkos::RangePolicy<Device>(0, static_cast<int>(array.size())),
      KOKKOS_LAMBDA(const int i) { array(i) = value + i; });
}

std::vector<double> read(const Array<double>& array) {
  const HostArray<double> host = Kokkos::create_mirror_view(array);
  copy_and_wait(host, array);
  return {host.data(), host.data() + host.size()};
}

HostStore::Arrays of(const std::vector<Array<double>>& arrays) {
  HostStore::Arrays all;
  for (const Array<double>& array : arrays) {
    all.push_back(std::as_writable_bytes(std::span(array.data(), array.size())));
  }
  return all;
}

TEST(HostStore, WhatIsPutComesBack) {
  const std::vector<Array<double>> first = {Array<double>("a", 1000), Array<double>("b", 3)};
  const std::vector<Array<double>> other = {Array<double>("c", 1000), Array<double>("d", 3)};
  HostStore store;
  store.reserve(1003 * 8);
  for (int place = 0; place < 5; ++place) {
    fill(first[0], 100 * place);
    fill(first[1], -place);
    store.put(place, 0, of(first));
    store.wait(0);
  }
  fill(first[0], -1);
  for (const int place : {3, 0, 4, 1}) {
    const int slot = place % 2;
    const auto& arrays = slot == 0 ? first : other;
    store.get(place, slot, of(arrays));
    store.wait(slot);
    EXPECT_EQ(read(arrays[0])[7], 100 * place + 7);
    EXPECT_EQ(read(arrays[1])[2], -place + 2);
  }
}

TEST(HostStore, CopiesFollowTheWorkBeforeThem) {
  const std::vector<Array<double>> arrays = {Array<double>("a", 50'000)};
  HostStore store;
  store.reserve(50'000 * 8);
  fill(arrays[0], 1);
  store.put(0, 0, of(arrays));
  store.wait(0);
  fill(arrays[0], 2);
  store.get(0, 0, of(arrays));
  store.wait(0);
  EXPECT_EQ(read(arrays[0])[0], 1);
}

TEST(HostStore, GrowsBetweenSteps) {
  HostStore store;
  for (const int count : {10, 1000, 20}) {
    const std::vector<Array<double>> arrays = {Array<double>("a", static_cast<std::size_t>(count))};
    store.reserve(count * 8);
    for (int place = 0; place < 3; ++place) {
      fill(arrays[0], place);
      store.put(place, 0, of(arrays));
      store.wait(0);
    }
    store.get(1, 0, of(arrays));
    store.wait(0);
    EXPECT_EQ(read(arrays[0])[5], 6);
  }
}

#ifndef KOKKOS_ENABLE_CUDA

/// A copy runs when it is waited for: what is overwritten before is lost, as on a slow device.
TEST(HostStore, MemoryThatIsUsedTooEarlyIsSeen) {
  const std::vector<Array<double>> arrays = {Array<double>("a", 10)};
  HostStore store;
  store.reserve(80);
  fill(arrays[0], 1);
  store.put(0, 0, of(arrays));
  fill(arrays[0], 2);
  store.wait(0);
  store.get(0, 0, of(arrays));
  fill(arrays[0], 3);
  EXPECT_EQ(read(arrays[0])[0], 3);
  store.wait(0);
  EXPECT_EQ(read(arrays[0])[0], 2);
}

TEST(HostStore, AFolderThatTakesNoFilesIsNamed) {
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  for (const std::string folder : {"/proc", "/none/such", "/etc/hostname"}) {
    setenv("TMPDIR", folder.c_str(), 1);
    HostStore store;
    try {
      store.reserve(80);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::data);
      EXPECT_THAT(error.what(),
                  ::testing::HasSubstr("run.offload: a file in " + folder + " (TMPDIR)"));
    }
  }
  before == nullptr ? unsetenv("TMPDIR") : setenv("TMPDIR", kept.c_str(), 1);
}

#endif

}  // namespace
}  // namespace cadenza::test_host_store
