// SPDX-License-Identifier: Apache-2.0
// Tuned kernels of x86-64 processors: float and bfloat16, chosen at run time by instruction set.
#pragma once

#include <vector>

#include "cadenza/kernels/attention.hpp"
#include "tile_kernels.hpp"

namespace cadenza::kernels::cpu {

/// A table and what experiments call it.
struct NamedKernels {
  AttentionKernel name;
  const TileKernels* table;
};

/// Tables of this processor for data stored as Real, the fastest first.
template <typename Real>
const std::vector<NamedKernels>& tables();

/// The fastest; null where there is none.
template <typename Real>
const TileKernels* best_kernels() {
  return tables<Real>().empty() ? nullptr : tables<Real>().front().table;
}

/// True where the tile kernels take such heads.
inline bool fits(const AttentionShape& shape) {
  return shape.head_dim % kDimStep == 0 && shape.head_dim <= kLargestDim;
}

inline constexpr int kAllThreads = 1 << 30;

template <typename Real>
void attention_forward(const TileKernels& kernels, const AttentionShape& shape,
                       const RotaryTable<float>& rotary, const TaskList<Real>& list,
                       int most_threads = kAllThreads);

/// Five products. Units own keys; what several of them add to the same queries is added in the
/// order of the units, so that results have the same bits with any number of threads.
template <typename Real>
void attention_backward(const TileKernels& kernels, const AttentionShape& shape,
                        const RotaryTable<float>& rotary, const TaskList<Real>& list,
                        int most_threads = kAllThreads);

/// Of the pairs of list.index; no task's document is dense.
template <typename Real>
void sparse_forward(const TileKernels& kernels, const AttentionShape& shape,
                    const RotaryTable<float>& rotary, const TaskList<Real>& list,
                    int most_threads = kAllThreads);
template <typename Real>
void sparse_backward(const TileKernels& kernels, const AttentionShape& shape,
                     const RotaryTable<float>& rotary, const TaskList<Real>& list,
                     int most_threads = kAllThreads);

}  // namespace cadenza::kernels::cpu
