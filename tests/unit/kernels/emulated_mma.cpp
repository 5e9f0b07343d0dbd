// SPDX-License-Identifier: Apache-2.0
// `mma`, run by emulated blocks.
#include "unit/kernels/device_kernels.hpp"
#ifndef KOKKOS_ENABLE_CUDA

#include "../../../kernels/device/column_sums.hpp"
#include "../../../kernels/device/sparse_call.hpp"
#include "../../../kernels/mma/backward.hpp"
#include "../../../kernels/mma/forward.hpp"
#include "../../../kernels/mma/sparse_tiles.hpp"
#include "unit/kernels/emulated_block.hpp"

namespace cadenza::testing {
namespace {

namespace device = kernels::device;
namespace mma = kernels::mma;

/// Runs Pass<kDim, EmulatedThread> for all units. Blocks differ in the order of their threads.
template <int kDim, template <int, typename> typename Pass, typename Shape, typename Problem>
void run_units(Problem problem, const kernels::UnitList& units, std::uint64_t seed,
               int planted = -1) {
  problem.order = units.entries.data();
  EmulatedBlock block(Shape::kThreads, Shape::kBytes, seed, planted);
  for (const kernels::Unit& unit : units.units) {
    block.run([&](const EmulatedThread& thread) {
      Pass<kDim, EmulatedThread>(thread, problem, unit, block.shared()).run();
    });
  }
}

struct PreparedMma : RotatedCall {
  PreparedMma(const AttentionShape& shape, const kernels::RotaryTable<float>& rotary,
              const kernels::TaskList<bfloat16>& list, std::uint64_t order)
      : RotatedCall(shape, rotary, list), seed(order) {}

  template <template <int, typename> typename Pass, template <int> typename Shape>
  void run(const AttentionShape& shape, const kernels::TaskList<bfloat16>& list, kernels::Side side,
           int planted) {
    with_head_dim<32, 64, 96, 128>(shape.head_dim, [&](auto dim) {
      using Of = Shape<dim()>;
      const kernels::UnitList units =
          kernels::make_units(shape, list, device::unit_shape(shape, side, Of::kRows));
      run_units<dim(), Pass, Of>(call.problem, units, ++seed, planted);
    });
  }

  std::uint64_t seed;
};

/// The fault that a mask by places in a tile would be.
template <int kDim, int kTile>
struct WrongPositions : mma::SparseKeyTile<kDim, kTile> {
  using Base = mma::SparseKeyTile<kDim, kTile>;
  bool sees_all(int q, int queries) const {
    return this->gathered == nullptr ? Base::sees_all(q, queries)
                                     : this->visible.sees_all(q, queries, 0, kTile);
  }
  mma::KeySet seen(int query) const {
    if (this->gathered == nullptr) return Base::seen(query);
    const device::SeenColumns places = device::keys_of(this->visible, query);
    const int end = places.begin + static_cast<int>(places.size);
    return {mma::bits_between(places.begin, std::min(end, this->keys()))};
  }
  bool sees_some(int query) const { return seen(query).bits != 0; }
};
template <int kDim, typename Thread>
using WrongForward = mma::Forward<kDim, Thread, WrongPositions>;

struct PreparedSparse {
  PreparedSparse(Pass pass, const AttentionShape& attention,
                 const kernels::RotaryTable<float>& rotary, const kernels::TaskList<bfloat16>& of,
                 std::uint64_t order)
      : shape(attention),
        list(of),
        call(device::make_sparse_call(pass, shape, rotary, list)),
        rotated(call.call),
        gradients(static_cast<std::size_t>(call.gradient_elements(shape.head_dim))),
        arrays({}, call, gradients.data()),
        seed(order) {}

  template <template <int, typename> typename Pass, template <int> typename Shape>
  void run(kernels::Side side) {
    with_head_dim<32, 64, 96, 128>(shape.head_dim, [&](auto dim) {
      using Of = Shape<dim()>;
      const kernels::UnitList units = device::sparse_units(call, shape, list, side, Of::kRows);
      run_units<dim(), Pass, Of>(arrays.problem(units), units, ++seed);
    });
  }
  void add_column_sums() {
    const auto numbers = std::ssize(call.sums) * 2 * shape.head_dim;
    for (std::int64_t number = 0; number < numbers; ++number) {
      device::add_column_sum(arrays.problem(), shape.head_dim, number);
    }
  }

  const AttentionShape& shape;
  const kernels::TaskList<bfloat16>& list;
  device::SparseCall call;
  RotatedQueries rotated;
  std::vector<float> gradients;
  device::SparseArrays<HostMemory> arrays;
  std::uint64_t seed;
};

}  // namespace

Kernels<bfloat16> emulated_mma(const MissingBarrier& fault, std::uint64_t seed) {
  Kernels<bfloat16> by;
  by.forward = on_stream([=](const auto& shape, const auto& rotary, const auto& list) {
    PreparedMma prepared(shape, rotary, list, seed);
    prepared.run<mma::Forward, mma::ForwardShape>(
        shape, list, kernels::Side::queries, fault.in == MmaPass::forward ? fault.barrier : -1);
  });
  by.backward = on_stream([=](const auto& shape, const auto& rotary, const auto& list) {
    if (fault.in == MmaPass::forward) return;
    PreparedMma prepared(shape, rotary, list, seed);
    if (fault.runs(MmaPass::query_gradient)) {
      prepared.run<mma::QueryGradient, mma::QueryGradientShape>(shape, list, kernels::Side::queries,
                                                                fault.barrier);
    }
    if (fault.runs(MmaPass::key_gradient)) {
      prepared.run<mma::KeyGradient, mma::KeyGradientShape>(shape, list, kernels::Side::keys,
                                                            fault.barrier);
    }
  });
  return by;
}

Kernels<bfloat16> emulated_sparse_mma(std::uint64_t seed, bool wrong_positions) {
  Kernels<bfloat16> by;
  by.forward = on_stream([=](const auto& shape, const auto& rotary, const auto& list) {
    PreparedSparse prepared(Pass::forward, shape, rotary, list, seed);
    if (wrong_positions) {
      prepared.run<WrongForward, mma::ForwardShape>(kernels::Side::queries);
    } else {
      prepared.run<mma::SparseForward, mma::ForwardShape>(kernels::Side::queries);
    }
    device::count_pairs(prepared.call, list);
  });
  by.backward = on_stream([=](const auto& shape, const auto& rotary, const auto& list) {
    PreparedSparse prepared(Pass::backward, shape, rotary, list, seed);
    prepared.run<mma::SparseQueryGradient, mma::QueryGradientShape>(kernels::Side::queries);
    prepared.run<mma::SparseKeyGradient, mma::KeyGradientShape>(kernels::Side::keys);
    prepared.add_column_sums();
    device::count_pairs(prepared.call, list);
  });
  return by;
}

}  // namespace cadenza::testing

#endif
