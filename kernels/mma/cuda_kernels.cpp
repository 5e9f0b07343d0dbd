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
template <template <int, typename> typename Pass, int kDim, int kThreads, int kBlocks>
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

/// Shared memory of a multiprocessor of sm_90; a block has 1 KiB of the system's with it.
constexpr int kMultiprocessor = 228 * 1024;
constexpr int kMostOfABlock = 163 * 1024;  // of sm_80, which is less than that of sm_90

template <template <int, typename> typename Pass, int kDim, typename Shape>
void start(const Problem& problem, int units, cudaStream_t stream) {
  static_assert(Shape::kBytes <= kMostOfABlock);
  static_assert((Shape::kBytes + 1024) * Shape::kBlocks <= kMultiprocessor);
  const auto kernel = run_units<Pass, kDim, Shape::kThreads, Shape::kBlocks>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes),
        "shared memory of attention on tensor cores");
  kernel<<<static_cast<unsigned>(units), Shape::kThreads, Shape::kBytes, stream>>>(problem);
  check(cudaGetLastError(), "attention on tensor cores");
}

template <int kDim>
void launch_dim(Grid grid, const Problem& problem, int units, cudaStream_t stream) {
  switch (grid) {
    case Grid::forward:
      return start<Forward, kDim, ForwardShape<kDim>>(problem, units, stream);
    case Grid::query_gradient:
      return start<QueryGradient, kDim, QueryGradientShape<kDim>>(problem, units, stream);
    case Grid::key_gradient:
      return start<KeyGradient, kDim, KeyGradientShape<kDim>>(problem, units, stream);
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
