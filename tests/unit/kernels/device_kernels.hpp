// SPDX-License-Identifier: Apache-2.0
// The kernels of devices where none is: their own source, run by emulated blocks.
#pragma once
#ifndef KOKKOS_ENABLE_CUDA

#include <gtest/gtest.h>

#include "../../../kernels/device/call.hpp"
#include "../../../kernels/device/rotation.hpp"
#include "unit/kernels/emulated_hopper.hpp"
#include "unit/kernels/kernel_sets.hpp"

namespace cadenza::testing {

/// Passes of `mma`, each with barriers of its own.
enum class MmaPass { all, forward, query_gradient, key_gradient };

/// Leaves a barrier out of a pass, and runs that pass alone.
struct MissingBarrier {
  MmaPass in = MmaPass::all;
  int barrier = -1;  ///< as for EmulatedBlock

  bool runs(MmaPass pass) const { return in == MmaPass::all || in == pass; }
};

/// @param seed  of the order of threads, and of copies
Kernels<bfloat16> emulated_mma(const MissingBarrier& fault = {}, std::uint64_t seed = 0);
/// The same for tasks of documents with a pattern.
/// @param wrong_positions  plants a fault in the forward pass: the mask takes gathered keys for
/// neighbours of the first one
Kernels<bfloat16> emulated_sparse_mma(std::uint64_t seed = 0, bool wrong_positions = false);
Kernels<bfloat16> emulated_sm90(const HopperFault& fault = {}, std::uint64_t seed = 0);

/// Calls test(std::integral_constant<int, D>) with the one of kDims that is `dim`.
template <int... kDims, typename Test>
void with_head_dim(int dim, const Test& test) {
  const auto is_it = [&](auto known) {
    if (known() == dim) test(known);
    return known() == dim;
  };
  if (!(is_it(std::integral_constant<int, kDims>()) || ...)) {
    FAIL() << "no kernels for head_dim " << dim;
  }
}

/// The rotated queries of a call in host memory. The call's problem points to its arrays.
struct RotatedQueries {
  explicit RotatedQueries(kernels::device::Call& call)
      : memory(static_cast<std::size_t>(call.rotated_elements) + 8) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    call.place_rotated(memory.data() + (16 - begin % 16) % 16 / sizeof(kernels::device::Bits));
    call.problem.queries = call.queries.data();
    call.problem.keys = call.keys.data();
    call.problem.rotations = call.rotations.data();
    call.problem.entries = call.entries.data();
    for (const kernels::device::Rotation& rotation : call.rotations) {
      const auto parts = static_cast<std::uint32_t>(rotation.pairs / kernels::device::kNeighbours);
      for (std::uint32_t part = 0; part < parts; ++part) {
        kernels::device::rotate_pairs(EmulatedArithmetic(), call.problem, rotation, part);
      }
    }
  }

  std::vector<kernels::device::Bits> memory;
};

/// A call and its rotated arrays in host memory, as a device has them. Its problem points into it.
struct RotatedCall {
  RotatedCall(const AttentionShape& shape, const kernels::RotaryTable<float>& rotary,
              const kernels::TaskList<bfloat16>& list)
      : call(kernels::device::make_call(shape, rotary, list)), rotated(call) {}
  RotatedCall(const RotatedCall&) = delete;
  RotatedCall& operator=(const RotatedCall&) = delete;

  kernels::device::Call call;
  RotatedQueries rotated;
};

/// Memory of kernels that is the host's (see KeptArray).
struct HostMemory {
  template <typename T>
  using Array = std::vector<T>;
  template <typename T>
  Array<T> allocate(std::size_t count) const {
    return Array<T>(count);
  }
  template <typename T>
  void copy(Array<T>& to, const std::vector<T>& items) const {
    to = items;
  }
};

}  // namespace cadenza::testing

#endif
