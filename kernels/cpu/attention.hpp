// SPDX-License-Identifier: Apache-2.0
// Tuned kernels for x86-64 processors: float and bfloat16, chosen at run time by instruction set.
#pragma once

#include <vector>

#include "cadenza/kernels/attention.hpp"
#include "tile_kernels.hpp"

namespace cadenza::kernels::cpu {

/// A table of kernels and its name in experiments.
struct NamedKernels {
  AttentionKernel name;
  const TileKernels* table;
};

/// Returns this processor's tables for data stored as Real, fastest first.
template <typename Real>
const std::vector<NamedKernels>& tables();

/// Returns the fastest table; null if there is none.
template <typename Real>
const TileKernels* best_kernels() {
  return tables<Real>().empty() ? nullptr : tables<Real>().front().table;
}

/// Whether the tile kernels support this head_dim.
inline bool fits(const AttentionShape& shape) {
  return shape.head_dim % kDimStep == 0 && shape.head_dim <= kLargestDim;
}

inline constexpr int kAllThreads = 1 << 30;

template <typename Real>
void attention_forward(const TileKernels& kernels, const AttentionShape& shape,
                       const RotaryTable<float>& rotary, const TaskList<Real>& list,
                       int most_threads = kAllThreads);

/// Backward with five products. Units own keys; if several add to the same queries, they do so in
/// the order of the units, so results are bitwise the same with any number of threads.
template <typename Real>
void attention_backward(const TileKernels& kernels, const AttentionShape& shape,
                        const RotaryTable<float>& rotary, const TaskList<Real>& list,
                        int most_threads = kAllThreads);

/// Forward over the pairs of list.index; no task's document may be dense.
template <typename Real>
void sparse_forward(const TileKernels& kernels, const AttentionShape& shape,
                    const RotaryTable<float>& rotary, const TaskList<Real>& list,
                    int most_threads = kAllThreads);
template <typename Real>
void sparse_backward(const TileKernels& kernels, const AttentionShape& shape,
                     const RotaryTable<float>& rotary, const TaskList<Real>& list,
                     int most_threads = kAllThreads);

}  // namespace cadenza::kernels::cpu
