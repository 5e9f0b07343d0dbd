// SPDX-License-Identifier: Apache-2.0
// Matrix products of doubles on the host, with the register blocks of attention.
#include <Kokkos_Core.hpp>

#ifndef KOKKOS_ENABLE_CUDA

#include "../portable/tile_product.hpp"
#include "cadenza/kernels/device.hpp"
#include "multiply.hpp"

namespace cadenza::kernels {
namespace {

using portable::block_product;
using portable::kBlockColumns;
using portable::kBlockRows;
using portable::Left;
using portable::Product;
using portable::Start;

/// A strided operand: element (i, j) at data[i * row_step + j * column_step].
struct Operand {
  const double* data;
  std::int64_t row_step;
  std::int64_t column_step;
  KOKKOS_FUNCTION double operator()(std::int64_t i, std::int64_t j) const {
    return data[i * row_step + j * column_step];
  }
};

/// Computes four rows of C. B is packed: rows of `n` elements, padded to whole register blocks.
struct RowBlock {
  Operand a;
  const double* b;
  double* c;
  std::int64_t m, n, k, pitch;
  double alpha, beta;

  KOKKOS_FUNCTION void operator()(std::int64_t block) const {
    // A strip of B this deep stays in the first-level cache.
    constexpr int kDepth = 128;
    constexpr int kColumns = kBlockColumns<double>;
    double left[kBlockRows * kDepth];
    const std::int64_t row = block * kBlockRows;
    const int rows = static_cast<int>(m - row < kBlockRows ? m - row : kBlockRows);
    for (std::int64_t column = 0; column < n; column += kColumns) {
      double sum[kBlockRows * kColumns] = {};
      for (std::int64_t depth = 0; depth < k; depth += kDepth) {
        const int count = static_cast<int>(k - depth < kDepth ? k - depth : kDepth);
        for (int i = 0; i < kBlockRows; ++i) {
          for (int j = 0; j < count; ++j) {
            left[i * kDepth + j] = i < rows ? a(row + i, depth + j) : 0;
          }
        }
        block_product<Left::rows, Start::add>(
            Product<double>{left, kDepth, b + depth * pitch + column, static_cast<int>(pitch), sum,
                            kColumns, nullptr},
            count);
      }
      store_block(row, rows, column, sum);
    }
  }

  KOKKOS_FUNCTION void store_block(std::int64_t row, int rows, std::int64_t column,
                                   const double* sum) const {
    constexpr int kColumns = kBlockColumns<double>;
    const int columns = static_cast<int>(n - column < kColumns ? n - column : kColumns);
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        double& to = c[(row + i) * n + column + j];
        const double kept = beta == 0 ? 0 : beta * to;  // not 0 * to: C may hold NaN
        to = kept + alpha * sum[i * kColumns + j];
      }
    }
  }
};

/// Packs rows of op(B), each padded with zeros.
struct PackRows {
  Operand b;
  double* to;
  std::int64_t n, pitch;
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    for (std::int64_t j = 0; j < pitch; ++j) to[row * pitch + j] = j < n ? b(row, j) : 0;
  }
};

/// Packed right factors; kept, so that repeated products allocate nothing.
double* packed_scratch(std::int64_t elements) {
  static Array<double> kept = [] {
    Kokkos::push_finalize_hook([] { kept = {}; });
    return Array<double>();
  }();
  if (static_cast<std::int64_t>(kept.extent(0)) < elements) {
    kept = {};
    kept = Array<double>(Kokkos::view_alloc("matmul_right", Kokkos::WithoutInitializing),
                         static_cast<std::size_t>(elements));
  }
  return kept.data();
}

}  // namespace

void multiply(const ProductShape& shape, double alpha, const double* a, const double* b,
              double beta, double* c) {
  const auto [a_op, b_op, m, n, k] = shape;
  constexpr std::int64_t kColumns = kBlockColumns<double>;
  const std::int64_t pitch = (n + kColumns - 1) / kColumns * kColumns;
  const Operand left = a_op == Transpose::yes ? Operand{a, 1, m} : Operand{a, k, 1};
  const Operand right = b_op == Transpose::yes ? Operand{b, 1, k} : Operand{b, n, 1};
  double* packed = packed_scratch(k * pitch);
  using Rows = Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>;
  Kokkos::parallel_for("matmul_pack", Rows(0, k), PackRows{right, packed, n, pitch});
  const std::int64_t blocks = (m + kBlockRows - 1) / kBlockRows;
  Kokkos::parallel_for("matmul_double", Rows(0, blocks),
                       RowBlock{left, packed, c, m, n, k, pitch, alpha, beta});
}

}  // namespace cadenza::kernels

#endif
