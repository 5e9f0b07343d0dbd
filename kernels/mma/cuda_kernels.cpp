// SPDX-License-Identifier: Apache-2.0
// Of a CUDA build alone, and without Kokkos: a test
// (end_to_end/tooling/test_tensor_core_binaries.py) compiles this file by itself for several
// architectures and looks at what comes out.
#ifdef __CUDACC__

#include "cuda_kernels.hpp"

#include <cuda_runtime.h>

#include <algorithm>

#include "backward.hpp"
#include "cadenza/base/error.hpp"
#include "device_thread.hpp"
#include "forward.hpp"
#include "rotate.hpp"

namespace cadenza::kernels::mma {
namespace {

/// A pass over one unit. kBlocks of them are to fit on a multiprocessor: what bounds registers.
template <template <int, typename> typename Pass, int kDim, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) run_units(const Problem problem) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  const DeviceThread thread;
  Pass<kDim, DeviceThread>(thread, problem, problem.units[blockIdx.x],
                           reinterpret_cast<Bits*>(shared))
      .run();
#else
  __trap();  // is_available() says so before
#endif
}

__global__ void rotate(const Problem problem) {
  const Rotation& rotation = problem.rotations[blockIdx.x];
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * blockDim.x;
  for (std::int64_t pair = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
       pair < rotation.pairs; pair += step) {
    rotate_pair(DeviceThread(), problem, rotation, pair);
  }
}

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    fail(ExitCode::internal, "{}: {}", call, cudaGetErrorString(status));
  }
}

template <typename Kernel>
void start(Kernel kernel, int shared, const Problem& problem, int units, cudaStream_t stream) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "shared memory of attention on tensor cores");
  kernel<<<static_cast<unsigned>(units), kThreads, static_cast<std::size_t>(shared), stream>>>(
      problem);
  check(cudaGetLastError(), "attention on tensor cores");
}

/// Blocks of a pass that a multiprocessor of sm_90 has room for, each with 1 KiB of the system's.
/// sm_80 has 164 KiB: two forward blocks at head_dim 128, one of the backward passes.
template <template <int> typename Shared, int kDim, int kBlocks>
void check_room() {
  constexpr int kMultiprocessor = 228 * 1024;
  constexpr int kMostOfABlock = 99 * 1024;  // on every device from sm_80 on
  static_assert(Shared<kDim>::kBytes <= kMostOfABlock);
  static_assert((Shared<kDim>::kBytes + 1024) * kBlocks <= kMultiprocessor);
}

template <int kDim>
void launch_dim(Grid grid, const Problem& problem, int units, cudaStream_t stream) {
  constexpr int kBlocks = kDim > 64 ? 2 : 3;
  check_room<ForwardShared, kDim, kBlocks>();
  check_room<QueryGradientShared, kDim, kBlocks>();
  check_room<KeyGradientShared, kDim, kBlocks>();
  switch (grid) {
    case Grid::forward:
      return start(run_units<Forward, kDim, kBlocks>, ForwardShared<kDim>::kBytes, problem, units,
                   stream);
    case Grid::query_gradient:
      return start(run_units<QueryGradient, kDim, kBlocks>, QueryGradientShared<kDim>::kBytes,
                   problem, units, stream);
    case Grid::key_gradient:
      return start(run_units<KeyGradient, kDim, kBlocks>, KeyGradientShared<kDim>::kBytes, problem,
                   units, stream);
  }
}

}  // namespace

bool is_available() {
  int device = 0;
  int major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 8;
}

void launch(Grid grid, int head_dim, const Problem& problem, int units, cudaStream_t stream) {
  if (units == 0) return;
  switch (head_dim) {
    case 32:
      return launch_dim<32>(grid, problem, units, stream);
    case 64:
      return launch_dim<64>(grid, problem, units, stream);
    case 96:
      return launch_dim<96>(grid, problem, units, stream);
    default:
      return launch_dim<128>(grid, problem, units, stream);
  }
}

void launch_rotation(const Problem& problem, int rotations, std::int64_t pairs,
                     cudaStream_t stream) {
  constexpr int kBlock = 256;
  constexpr std::int64_t kMostBlocks = 4096;
  if (rotations == 0 || pairs == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(kMostBlocks, (pairs + kBlock - 1) / kBlock));
  rotate<<<dim3(static_cast<unsigned>(rotations), blocks), kBlock, 0, stream>>>(problem);
  check(cudaGetLastError(), "rotation of queries");
}

}  // namespace cadenza::kernels::mma

#endif
