// SPDX-License-Identifier: Apache-2.0
#include "multiply.hpp"

#include <Kokkos_Core.hpp>

#ifndef KOKKOS_ENABLE_CUDA

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cadenza/kernels/simd.hpp"

namespace cadenza::kernels {
namespace {

constexpr std::int64_t kPartRows = 512;

using Host = Kokkos::DefaultHostExecutionSpace;
using FloatScratch = std::vector<float>;

/// Calls body(first, last) for parts of [0, count), on all threads.
template <typename Body>
void for_parts(const char* label, std::int64_t count, const Body& body) {
  constexpr std::int64_t kPart = 4096;
  Kokkos::parallel_for(
      label,
      Kokkos::RangePolicy<Host, Kokkos::IndexType<std::int64_t>>(0, (count + kPart - 1) / kPart),
      [&](std::int64_t part) { body(part * kPart, std::min(count, (part + 1) * kPart)); });
  Kokkos::fence(label);
}

void widen_all(const bfloat16* from, std::int64_t count, float* to) {
  for_parts("widen_factor", count, [=](std::int64_t first, std::int64_t last) {
    CADENZA_SIMD()
    for (std::int64_t i = first; i < last; ++i) to[i] = widen(from[i]);
  });
}

void narrow_all(const float* from, std::int64_t count, bfloat16* to) {
  for_parts("narrow_product", count, [=](std::int64_t first, std::int64_t last) {
    CADENZA_SIMD()
    for (std::int64_t i = first; i < last; ++i) narrow(from[i], to[i]);
  });
}

/// Returns room for `count` numbers, kept between calls.
float* room(FloatScratch& scratch, std::int64_t count) {
  const auto size = static_cast<std::size_t>(count);
  if (scratch.size() < size) scratch.resize(size);
  return scratch.data();
}

class Widened {
 public:
  template <typename Out>
  void run(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b, float beta,
           Out* c) {
    if (shape.a_op == Transpose::no) {
      rows(shape, alpha, a, widened(b, shape.k * shape.n, b_), beta, c);
    } else {
      depths(shape, alpha, a, b, beta, c);
    }
  }

 private:
  static const float* widened(const bfloat16* from, std::int64_t count, FloatScratch& scratch) {
    float* to = room(scratch, count);
    widen_all(from, count, to);
    return to;
  }

  /// Handles A [m, k]: some rows of A and C at a time.
  template <typename Out>
  void rows(const ProductShape& shape, float alpha, const bfloat16* a, const float* b, float beta,
            Out* c) {
    for (std::int64_t row = 0; row < shape.m; row += kPartRows) {
      ProductShape part = shape;
      part.m = std::min(kPartRows, shape.m - row);
      const float* left = widened(a + row * shape.k, part.m * shape.k, a_);
      Out* to = c + row * shape.n;
      with_sums(to, part.m * shape.n, beta,
                [&](float* sums) { multiply(part, alpha, left, b, beta, sums); });
    }
  }

  /// Handles A [k, m]: some rows of A and B at a time, each part added to the earlier ones. A
  /// transposed B, which the model's products do not have, is one part.
  template <typename Out>
  void depths(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
              float beta, Out* c) {
    const std::int64_t step = shape.b_op == Transpose::no ? kPartRows : shape.k;
    with_sums(c, shape.m * shape.n, beta, [&](float* sums) {
      for (std::int64_t row = 0; row < shape.k; row += step) {
        ProductShape part = shape;
        part.k = std::min(step, shape.k - row);
        const float* left = widened(a + row * shape.m, part.k * shape.m, a_);
        const float* right = widened(b + row * shape.n, part.k * shape.n, b_);
        multiply(part, alpha, left, right, row == 0 ? beta : 1.0f, sums);
      }
    });
  }

  /// Calls product(C in float32), initialised with C if beta reads it.
  template <typename Out, typename Product>
  void with_sums(Out* c, std::int64_t count, float beta, const Product& product) {
    if constexpr (std::is_same_v<Out, float>) {
      product(c);
    } else {
      float* sums = room(c_, count);
      if (beta != 0) widen_all(c, count, sums);
      product(sums);
      narrow_all(sums, count, c);
    }
  }

  FloatScratch a_, b_, c_;
};

Widened& shared() {
  static Widened widened;
  return widened;
}

}  // namespace

void multiply_widened(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
                      float beta, float* c) {
  shared().run(shape, alpha, a, b, beta, c);
}
void multiply_widened(const ProductShape& shape, float alpha, const bfloat16* a, const bfloat16* b,
                      float beta, bfloat16* c) {
  shared().run(shape, alpha, a, b, beta, c);
}

}  // namespace cadenza::kernels

#endif
