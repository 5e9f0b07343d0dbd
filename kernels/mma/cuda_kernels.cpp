// SPDX-License-Identifier: Apache-2.0
// Part of CUDA builds only, and without Kokkos: a test
// (end_to_end/tooling/test_tensor_core_binaries.py) compiles this file by itself for several
// architectures and inspects the result.
#ifdef __CUDACC__

#include "cuda_kernels.hpp"

#include <type_traits>

#include "../device/check.hpp"
#include "backward.hpp"
#include "device_thread.hpp"
#include "forward.hpp"
#include "sparse_tiles.hpp"

namespace cadenza::kernels::mma {
namespace {

/// Runs a pass over one unit. kBlocks of them should fit on a multiprocessor, which limits
/// registers.
template <template <int, typename> typename Pass, int kDim, int kThreads, int kBlocks,
          typename Problem>
__global__ void __launch_bounds__(kThreads, kBlocks) run_units(const Problem problem) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  const DeviceThread thread;
  Pass<kDim, DeviceThread>(thread, problem, problem.units[blockIdx.x],
                           reinterpret_cast<Bits*>(shared))
      .run();
#else
  __trap();  // is_available() prevents this
#endif
}

/// Shared memory of a multiprocessor of sm_80, which has less than sm_90 and sm_100, and the most
/// that a block may use of it. The system takes 1 KiB per block.
constexpr int kMultiprocessor = 164 * 1024;
constexpr int kMostOfABlock = kMultiprocessor - 1024;

template <template <int, typename> typename Pass, int kDim, typename Shape, typename Problem>
void start(const Problem& problem, int units, cudaStream_t stream) {
  static_assert(Shape::kBytes <= kMostOfABlock);
  static_assert((Shape::kBytes + 1024) * Shape::kBlocks <= kMultiprocessor);
  const auto kernel = run_units<Pass, kDim, Shape::kThreads, Shape::kBlocks, Problem>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes),
        "shared memory of attention on tensor cores");
  kernel<<<static_cast<unsigned>(units), Shape::kThreads, Shape::kBytes, stream>>>(problem);
  check(cudaGetLastError(), "attention on tensor cores");
}

/// Calls work(Dim) with the head_dim as a constant.
template <typename Work>
auto with_head_dim(int head_dim, const Work& work) {
  switch (head_dim) {
    case 32:
      return work(std::integral_constant<int, 32>());
    case 64:
      return work(std::integral_constant<int, 64>());
    case 96:
      return work(std::integral_constant<int, 96>());
    default:
      return work(std::integral_constant<int, 128>());
  }
}

}  // namespace

bool is_available() {
  const auto attribute = [](cudaDeviceAttr which) {
    int device = 0;
    int value = 0;
    const bool there = cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&value, which, device) == cudaSuccess;
    return there ? value : 0;
  };
  return attribute(cudaDevAttrComputeCapabilityMajor) >= 8 &&
         attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= kMostOfABlock;
}

int unit_rows(Grid grid, int head_dim) {
  return with_head_dim(head_dim, [grid](auto dim) {
    return grid == Grid::forward          ? ForwardShape<dim()>::kRows
           : grid == Grid::query_gradient ? QueryGradientShape<dim()>::kRows
                                          : KeyGradientShape<dim()>::kRows;
  });
}

void launch(Grid grid, int head_dim, const Problem& problem, int units, cudaStream_t stream) {
  if (units == 0) return;
  with_head_dim(head_dim, [&](auto dim) {
    constexpr int kDim = dim();
    switch (grid) {
      case Grid::forward:
        return start<Forward, kDim, ForwardShape<kDim>>(problem, units, stream);
      case Grid::query_gradient:
        return start<QueryGradient, kDim, QueryGradientShape<kDim>>(problem, units, stream);
      case Grid::key_gradient:
        return start<KeyGradient, kDim, KeyGradientShape<kDim>>(problem, units, stream);
    }
  });
}

void launch(Grid grid, int head_dim, const SparseProblem& problem, int units, cudaStream_t stream) {
  if (units == 0) return;
  with_head_dim(head_dim, [&](auto dim) {
    constexpr int kDim = dim();
    switch (grid) {
      case Grid::forward:
        return start<SparseForward, kDim, SparseShape<ForwardShape<kDim>>>(problem, units, stream);
      case Grid::query_gradient:
        return start<SparseQueryGradient, kDim, SparseShape<QueryGradientShape<kDim>>>(
            problem, units, stream);
      case Grid::key_gradient:
        return start<SparseKeyGradient, kDim, SparseShape<KeyGradientShape<kDim>>>(problem, units,
                                                                                   stream);
    }
  });
}

}  // namespace cadenza::kernels::mma

#endif
