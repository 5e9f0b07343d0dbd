// SPDX-License-Identifier: Apache-2.0
// Part of CUDA builds only, and without Kokkos: a test
// (end_to_end/tooling/test_tensor_core_binaries.py) compiles this file by itself and inspects the
// result. It is compiled for sm_90a only: other devices lack these instructions.
#ifdef __CUDACC__

#include "cuda_kernels.hpp"

#include <cuda.h>

#include <algorithm>

#include "../device/check.hpp"
#include "device_thread.hpp"
#include "forward.hpp"
#include "key_gradient.hpp"
#include "query_gradient.hpp"

namespace cadenza::kernels::sm90 {
namespace {

// Registers per thread by role, in place of 168 for each of three warpgroups.
constexpr int kLoaderRegisters = 40;
constexpr int kConsumerRegisters = 232;
static_assert(kLoaderRegisters + kConsumers * kConsumerRegisters <= 3 * 168);

template <template <int, typename> typename LoaderOf, template <int, typename> typename ConsumerOf,
          template <int> typename LayoutOf, int kDim>
__global__ void __launch_bounds__(kThreads, 1) run_units(const __grid_constant__ Problem problem) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
  extern __shared__ __align__(kAtomBytes) unsigned char shared[];
  // CUDA guarantees only 16 bytes; swizzles and descriptors count from whole atoms.
  if (__cvta_generic_to_shared(shared) % kAtomBytes != 0) __trap();
  const DeviceThread thread;
  initialize_barriers<LayoutOf<kDim>>(thread, shared);
  if (thread.index() < kWarpgroup) {
    thread.release_registers<kLoaderRegisters>();
    if (thread.index() < 32) LoaderOf<kDim, DeviceThread>(thread, problem, shared).run();
  } else {
    thread.take_registers<kConsumerRegisters>();
    ConsumerOf<kDim, DeviceThread>(thread, problem, shared).run();
  }
#else
  __trap();  // is_available() prevents this
#endif
}

int attribute(cudaDeviceAttr of) {
  int device = 0;
  int value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, of, device), "cudaDeviceGetAttribute");
  return value;
}

template <typename Kernel>
void start(Kernel kernel, int shared, const Problem& problem, cudaStream_t stream) {
  static const int multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "shared memory of attention on Hopper");
  check(cudaMemsetAsync(problem.next_unit, 0, sizeof(int), stream), "attention on Hopper");
  const auto blocks = static_cast<unsigned>(std::min(multiprocessors, problem.unit_count));
  kernel<<<blocks, kThreads, static_cast<std::size_t>(shared), stream>>>(problem);
  check(cudaGetLastError(), "attention on Hopper");
}

template <int kDim>
void launch_dim(Grid grid, const Problem& problem, cudaStream_t stream) {
  constexpr int kMostOfABlock = 227 * 1024;  // sm_90
  static_assert(ForwardLayout<kDim>::kBytes <= kMostOfABlock);
  static_assert(QueryGradientLayout<kDim>::kBytes <= kMostOfABlock);
  static_assert(KeyGradientLayout<kDim>::kBytes <= kMostOfABlock);
  switch (grid) {
    case Grid::forward:
      return start(run_units<ForwardLoader, ForwardConsumer, ForwardLayout, kDim>,
                   ForwardLayout<kDim>::kBytes, problem, stream);
    case Grid::query_gradient:
      return start(run_units<QueryGradientLoader, QueryGradientConsumer, QueryGradientLayout, kDim>,
                   QueryGradientLayout<kDim>::kBytes, problem, stream);
    case Grid::key_gradient:
      return start(run_units<KeyGradientLoader, KeyGradientConsumer, KeyGradientLayout, kDim>,
                   KeyGradientLayout<kDim>::kBytes, problem, stream);
  }
}

/// Returns the driver's function, without linking the driver's library, so that the program starts
/// without it.
decltype(&cuTensorMapEncodeTiled) encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &found),
        "cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess) {
    fail(ExitCode::internal, "the driver has no cuTensorMapEncodeTiled");
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

bool is_available() {
  int device = 0;
  int major = 0;
  int minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == 9 && minor == 0;
}

void launch(Grid grid, int head_dim, const Problem& problem, cudaStream_t stream) {
  if (problem.unit_count == 0) return;
  if (head_dim == 64) return launch_dim<64>(grid, problem, stream);
  launch_dim<128>(grid, problem, stream);
}

TensorMap tensor_map(const MappedRows& rows) {
  static const auto encode = encoder();
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  TensorMap map;
  constexpr cuuint32_t kDimensions = 3;
  const auto head_bytes = static_cast<cuuint64_t>(rows.head_dim) * sizeof(Bits);
  const auto heads = static_cast<cuuint64_t>(rows.heads);
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(rows.head_dim), heads,
                              static_cast<cuuint64_t>(rows.rows)};
  const cuuint64_t strides[] = {head_bytes, head_bytes * heads};
  const cuuint32_t box[] = {kPanel, 1, static_cast<cuuint32_t>(rows.tile)};
  const cuuint32_t steps[] = {1, 1, 1};
  const CUresult status =
      encode(reinterpret_cast<CUtensorMap*>(&map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kDimensions,
             const_cast<Bits*>(rows.data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    fail(ExitCode::internal, "cuTensorMapEncodeTiled: error {}", static_cast<int>(status));
  }
  return map;
}

}  // namespace cadenza::kernels::sm90

#endif
