// SPDX-License-Identifier: Apache-2.0
#include "app/calibrate/measure_products.hpp"

#include "cadenza/kernels/matmul.hpp"
#include "app/calibrate/timing.hpp"

namespace cadenza::app {

template <typename Real>
double product_seconds(comm::Communicator& world, const program::Product& product) {
  using kernels::Transpose;
  using program::ProductKind;
  using Sum = Accumulator<Real>;
  const auto m = static_cast<std::int64_t>(product.rows);
  const auto n = static_cast<std::int64_t>(product.columns);
  const auto k = static_cast<std::int64_t>(product.depth);
  const auto make = [](std::int64_t count) {
    const Array<Real> array("product", static_cast<std::size_t>(count));
    Kokkos::deep_copy(array, static_cast<Real>(0.1f));
    return array;
  };
  const Array<Real> a = make(m * k), b = make(k * n);
  if (product.kind == ProductKind::weight_gradient) {
    const Array<Sum> sums("product", static_cast<std::size_t>(m * n));
    return measure(world, [&] {
      kernels::matmul<Real>(Transpose::yes, Transpose::no, m, n, k, Sum(1), a.data(), b.data(),
                            Sum(1), sums.data());
    });
  }
  const Array<Real> c = make(m * n);
  const Transpose of_b = product.kind == ProductKind::forward ? Transpose::yes : Transpose::no;
  return measure(world, [&] {
    kernels::matmul<Real>(Transpose::no, of_b, m, n, k, Sum(1), a.data(), b.data(), Sum(0),
                          c.data());
  });
}

template double product_seconds<bfloat16>(comm::Communicator&, const program::Product&);
template double product_seconds<float>(comm::Communicator&, const program::Product&);
template double product_seconds<double>(comm::Communicator&, const program::Product&);

}  // namespace cadenza::app
