// SPDX-License-Identifier: Apache-2.0
#ifdef __CUDACC__

#include "column_sums.hpp"

#include "check.hpp"

namespace cadenza::kernels::device {
namespace {

constexpr int kBlock = 256;

__global__ void add_column_sums(const SparseProblem problem, int head_dim, std::int64_t numbers) {
  const std::int64_t number = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (number < numbers) add_column_sum(problem, head_dim, number);
}

}  // namespace

void launch_column_sums(const SparseProblem& problem, int head_dim, int sums, cudaStream_t stream) {
  if (sums == 0) return;
  const std::int64_t numbers = std::int64_t{sums} * 2 * head_dim;
  const auto blocks = static_cast<unsigned>((numbers + kBlock - 1) / kBlock);
  add_column_sums<<<blocks, kBlock, 0, stream>>>(problem, head_dim, numbers);
  check(cudaGetLastError(), "gradients of columns");
}

}  // namespace cadenza::kernels::device

#endif
