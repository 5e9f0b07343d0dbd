// SPDX-License-Identifier: Apache-2.0
// Host vectors to and from the device.
#pragma once

#include <vector>

#include "cadenza/kernels/device.hpp"

namespace cadenza::testing {

template <typename T>
Array<T> upload(const std::vector<T>& host) {
  Array<T> device("test", host.size());
  Kokkos::deep_copy(device, Kokkos::View<const T*, Kokkos::HostSpace>(host.data(), host.size()));
  return device;
}

template <typename T>
std::vector<T> download(const Array<T>& device) {
  std::vector<T> host(device.extent(0));
  Kokkos::deep_copy(Kokkos::View<T*, Kokkos::HostSpace>(host.data(), host.size()), device);
  return host;
}

template <typename To, typename From>
std::vector<To> convert(const std::vector<From>& from) {
  return std::vector<To>(from.begin(), from.end());
}

}  // namespace cadenza::testing
