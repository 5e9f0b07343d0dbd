// SPDX-License-Identifier: Apache-2.0
// Matrix products on the host: float through oneDNN, double through the register blocks of
// attention.
#include <Kokkos_Core.hpp>

#ifndef KOKKOS_ENABLE_CUDA

#include <oneapi/dnnl/dnnl.h>

#include "cadenza/base/error.hpp"
#include "cadenza/kernels/device.hpp"
#include "multiply.hpp"
#include "tile_product.hpp"

namespace cadenza::kernels::portable {
namespace {

/// A strided operand: element (i, j) at data[i * row_step + j * column_step].
struct Operand {
  const double* data;
  std::int64_t row_step;
  std::int64_t column_step;
  KOKKOS_FUNCTION double operator()(std::int64_t i, std::int64_t j) const {
    return data[i * row_step + j * column_step];
  }
};

/// Four rows of C. B is packed: rows of `n` elements, filled up to whole register blocks.
struct RowBlock {
  Operand a;
  const double* b;
  double* c;
  std::int64_t m, n, k, pitch;
  double alpha, beta;

  KOKKOS_FUNCTION void operator()(std::int64_t block) const {
    // A strip of B this deep stays in the first-level cache while it is used.
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

/// Rows of op(B), each filled up with zeros.
struct PackRows {
  Operand b;
  double* to;
  std::int64_t n, pitch;
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    for (std::int64_t j = 0; j < pitch; ++j) to[row * pitch + j] = j < n ? b(row, j) : 0;
  }
};

}  // namespace

void multiply(Transpose a_op, Transpose b_op, std::int64_t m, std::int64_t n, std::int64_t k,
              float alpha, const float* a, const float* b, float beta, float* c) {
  const char ta = a_op == Transpose::yes ? 'T' : 'N';
  const char tb = b_op == Transpose::yes ? 'T' : 'N';
  const std::int64_t lda = a_op == Transpose::yes ? m : k;
  const std::int64_t ldb = b_op == Transpose::yes ? k : n;
  const dnnl_status_t status = dnnl_sgemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, n);
  if (status != dnnl_success) {
    fail(ExitCode::numerics, "oneDNN refused the product [{}, {}] x [{}, {}]: status {}", m, k, k,
         n, static_cast<int>(status));
  }
}

void multiply(Transpose a_op, Transpose b_op, std::int64_t m, std::int64_t n, std::int64_t k,
              double alpha, const double* a, const double* b, double beta, double* c) {
  constexpr std::int64_t kColumns = kBlockColumns<double>;
  const std::int64_t pitch = (n + kColumns - 1) / kColumns * kColumns;
  const Operand left = a_op == Transpose::yes ? Operand{a, 1, m} : Operand{a, k, 1};
  const Operand right = b_op == Transpose::yes ? Operand{b, 1, k} : Operand{b, n, 1};
  const Array<double> packed(Kokkos::view_alloc("matmul_right", Kokkos::WithoutInitializing),
                             static_cast<std::size_t>(k * pitch));
  using Rows = Kokkos::RangePolicy<Device, Kokkos::IndexType<std::int64_t>>;
  Kokkos::parallel_for("matmul_pack", Rows(0, k), PackRows{right, packed.data(), n, pitch});
  const std::int64_t blocks = (m + kBlockRows - 1) / kBlockRows;
  Kokkos::parallel_for("matmul_double", Rows(0, blocks),
                       RowBlock{left, packed.data(), c, m, n, k, pitch, alpha, beta});
}

}  // namespace cadenza::kernels::portable

#endif
