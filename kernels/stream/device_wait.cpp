// SPDX-License-Identifier: Apache-2.0
#include "cadenza/kernels/device.hpp"

#include "cadenza/base/error.hpp"

namespace cadenza {
namespace {

DeviceWait& watched() {
  static DeviceWait wait;
  return wait;
}

}  // namespace

DeviceWaitScope::DeviceWaitScope(DeviceWait wait) {
  watched() = std::move(wait);
}
DeviceWaitScope::~DeviceWaitScope() {
  watched() = {};
}

void wait_for_device() {
#ifdef KOKKOS_ENABLE_CUDA
  if (watched()) {
    watched()([] {
      const cudaError_t status = cudaStreamQuery(Device().cuda_stream());
      if (status == cudaErrorNotReady) {
        static_cast<void>(cudaGetLastError());  // it is no error of the next launch
        return false;
      }
      if (status == cudaSuccess) return true;
      fail(ExitCode::internal, "the device: {}", cudaGetErrorString(status));
    });
  }
#endif
  Device().fence();
}

}  // namespace cadenza
