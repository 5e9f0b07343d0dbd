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
  const auto parts = static_cast<std::uint32_t>(rotation.pairs / kNeighbours);
  for (std::uint32_t part = blockIdx.y * blockDim.x + threadIdx.x; part < parts;
       part += gridDim.y * blockDim.x) {
    rotate_pairs(DeviceThread(), problem, rotation, part);
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
  const auto blocks =
      static_cast<unsigned>(std::min(kMostBlocks, (most / kNeighbours + kBlock - 1) / kBlock));
  const dim3 grid(static_cast<unsigned>(rotations.size()), blocks);
  rotate<<<grid, kBlock, 0, stream>>>(problem);
  check(cudaGetLastError(), "rotation of queries");
}

}  // namespace cadenza::kernels::device

#endif
