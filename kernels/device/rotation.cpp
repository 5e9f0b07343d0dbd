// SPDX-License-Identifier: Apache-2.0
#ifdef __CUDACC__

#include "rotation.hpp"

#include <algorithm>

#include "check.hpp"
#include "thread.hpp"

namespace cadenza::kernels::device {
namespace {

__global__ void rotate(const Problem problem) {
  const Rotation& rotation = problem.rotations[blockIdx.x];
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * blockDim.x;
  for (std::int64_t pair = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
       pair < rotation.pairs; pair += step) {
    rotate_pair(DeviceThread(), problem, rotation, pair);
  }
}

}  // namespace

void launch_rotation(const Problem& problem, const std::vector<Rotation>& rotations,
                     cudaStream_t stream) {
  constexpr int kBlock = 256;
  constexpr std::int64_t kMostBlocks = 4096;
  std::int64_t most = 0;
  for (const Rotation& rotation : rotations) most = std::max(most, rotation.pairs);
  if (problem.half == 0 || most == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(kMostBlocks, (most + kBlock - 1) / kBlock));
  const dim3 grid(static_cast<unsigned>(rotations.size()), blocks);
  rotate<<<grid, kBlock, 0, stream>>>(problem);
  check(cudaGetLastError(), "rotation of queries");
}

}  // namespace cadenza::kernels::device

#endif
