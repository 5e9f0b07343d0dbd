// SPDX-License-Identifier: Apache-2.0
#include "cadenza/kernels/device_identity.hpp"

#include <fmt/format.h>

#include "cadenza/kernels/device.hpp"

#ifdef KOKKOS_ENABLE_CUDA
#include <cuda_runtime.h>

#include <algorithm>

#include "../device/check.hpp"
#include "cadenza/base/error.hpp"
#endif

namespace cadenza::kernels {

std::string describe_old_driver(int driver, int program) {
  return fmt::format("its driver is for CUDA {}.{}, older than this program's CUDA {}.{}",
                     driver / 1000, driver % 1000 / 10, program / 1000, program % 1000 / 10);
}

std::string describe_old_device(const std::string& name, int capability, int least) {
  if (capability >= least) return "";
  return fmt::format(
      "{} has compute capability {}.{}; this program is for {}.{} and newer "
      "(CMAKE_CUDA_ARCHITECTURES)",
      name, capability / 10, capability % 10, least / 10, least % 10);
}

#ifdef KOKKOS_ENABLE_CUDA

namespace {

using device::check;

/// Lowest compute capability for which this program was compiled.
constexpr int kLeastCapability = std::min({__CUDA_ARCH_LIST__}) / 10;

/// Formats as nvidia-smi does: GPU-8-4-4-4-12 digits.
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

std::int64_t free_device_memory() {
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

std::string missing_device() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0, program = 0;
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    check(cudaRuntimeGetVersion(&program), "cudaRuntimeGetVersion");
    return describe_old_driver(driver, program);
  }
  if (status != cudaSuccess) return cudaGetErrorString(status);
  for (int device = 0; device < devices; ++device) {
    cudaDeviceProp properties = {};
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    const std::string why = describe_old_device(
        properties.name, 10 * properties.major + properties.minor, kLeastCapability);
    if (!why.empty()) return why;
  }
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

std::int64_t free_device_memory() {
  return 0;
}

#endif

}  // namespace cadenza::kernels
