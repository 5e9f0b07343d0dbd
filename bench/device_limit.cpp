// SPDX-License-Identifier: Apache-2.0
// limit.hpp on a device.
#include "cadenza/base/error.hpp"
#include "cadenza/kernels/matmul.hpp"
#include "cadenza/kernels/random_fill.hpp"
#include "limit.hpp"

namespace cadenza::bench {
namespace {

template <typename Real>
class Product final : public Work {
 public:
  explicit Product(std::int64_t size)
      : size_(size), a_("a", count()), b_("b", count()), c_("c", count()) {
    fill_random(a_, 1);
    fill_random(b_, 2);
  }
  void run() override {
    kernels::matmul<Real, Real>(kernels::Transpose::no, kernels::Transpose::yes, size_, size_,
                                size_, 1.0f, a_.data(), b_.data(), 0.0f, c_.data());
  }
  void finish() override { fence(); }
  double flops() const override {
    const auto n = static_cast<double>(size_);
    return 2.0 * n * n * n;
  }
  Json report() const override { return {{"library", "cuBLAS"}}; }

 private:
  std::size_t count() const { return static_cast<std::size_t>(size_ * size_); }

  std::int64_t size_;
  Array<Real> a_, b_, c_;
};

}  // namespace

std::unique_ptr<Work> make_limit(const Json& request) {
  const std::string dtype = request.value("dtype", "float32");
  const std::int64_t size = request.value("size", kLimitSize);
  if (dtype == "float32") return std::make_unique<Product<float>>(size);
  if (dtype == "bfloat16") return std::make_unique<Product<bfloat16>>(size);
  fail(ExitCode::usage, "dtype: found {}; valid: float32, bfloat16", dtype);
}

}  // namespace cadenza::bench
