// SPDX-License-Identifier: Apache-2.0
#include "cadenza/kernels/device_identity.hpp"

#include "cadenza/kernels/device.hpp"

#ifdef KOKKOS_ENABLE_CUDA
#include <cuda_runtime.h>
#include <fmt/format.h>

#include "cadenza/base/error.hpp"
#endif

namespace cadenza::kernels {

#ifdef KOKKOS_ENABLE_CUDA

namespace {

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail(ExitCode::internal, "{}: {}", call, cudaGetErrorString(status));
}

/// As nvidia-smi writes it: GPU-8-4-4-4-12 digits.
std::string text_of(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int byte = 0; byte < 16; ++byte) {
    const bool first = byte == 0 || byte == 4 || byte == 6 || byte == 8 || byte == 10;
    text += fmt::format("{}{:02x}", first ? "-" : "", static_cast<unsigned char>(uuid.bytes[byte]));
  }
  return text;
}

}  // namespace

DeviceIdentity device_identity() {
  int device = 0;
  cudaDeviceProp properties = {};
  int kilohertz = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  check(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device), "cudaDevAttrClockRate");
  DeviceIdentity identity;
  identity.name = properties.name;
  identity.uuid = text_of(properties.uuid);
  identity.multiprocessors = properties.multiProcessorCount;
  identity.clock_mhz = kilohertz / 1000;
  identity.bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  return identity;
}

std::string missing_device() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return devices == 0 ? "none is visible" : "";
}

#else

std::string missing_device() {
  return "";
}

DeviceIdentity device_identity() {
  DeviceIdentity identity;
  identity.name = Device::name();
  return identity;
}

#endif

}  // namespace cadenza::kernels
