// SPDX-License-Identifier: Apache-2.0
// Rows of the residual stream or of its gradient, on the device, in the type that run.residual
// says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cadenza/kernels/bfloat16.hpp"

namespace cadenza::model {

/// A pointer to elements of Sum = Accumulator<Real>, or, `rounded`, of Real.
template <typename Real>
class Residual {
 public:
  using Sum = Accumulator<Real>;

  Residual(std::nullptr_t = nullptr) {}
  Residual(Sum* data) : data_(data) {}
  Residual(void* data, bool rounded) : data_(data), rounded_(rounded) {}

  explicit operator bool() const { return data_ != nullptr; }
  Residual operator+(std::int64_t elements) const {
    return visit([&](auto* data) { return Residual(data + elements, rounded_); });
  }
  static std::int64_t bytes_of(bool rounded) { return rounded ? sizeof(Real) : sizeof(Sum); }

  /// The pointer, whose elements must be of T.
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  /// Calls what(pointer), of Sum or of Real.
  template <typename What>
  auto visit(const What& what) const {
    if constexpr (!std::is_same_v<Real, Sum>) {
      if (rounded_) return what(static_cast<Real*>(data_));
    }
    return what(static_cast<Sum*>(data_));
  }

 private:
  void* data_ = nullptr;
  bool rounded_ = false;
};

}  // namespace cadenza::model
