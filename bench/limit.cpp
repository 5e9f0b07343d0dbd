// SPDX-License-Identifier: Apache-2.0
#include "limit.hpp"

#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "cadenza/base/error.hpp"

namespace cadenza::bench {
namespace {

using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

constexpr int kTrials = 3;  // per entry, to choose the fastest

class Product : public Work {
 public:
  Product(Type type, std::int64_t size)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_), type_(type), size_(size) {
    const auto count = static_cast<std::size_t>(size * size);
    const std::vector<float> ones(count, 1.0f);
    a_ = filled(ones);
    b_ = filled(ones);
    c_ = dnnl::memory({{size, size}, Type::f32, Tag::ab}, engine_);
  }
  double flops() const override {
    const auto n = static_cast<double>(size_);
    return 2.0 * n * n * n;
  }

 protected:
  dnnl::memory filled(const std::vector<float>& values) {
    const dnnl::memory::dims dims{size_, size_};
    dnnl::memory plain({dims, Type::f32, Tag::ab}, engine_, const_cast<float*>(values.data()));
    dnnl::memory typed({dims, type_, Tag::ab}, engine_);
    dnnl::reorder(plain, typed).execute(stream_, plain, typed);
    stream_.wait();
    return typed;
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  Type type_;
  std::int64_t size_;
  dnnl::memory a_, b_, c_;
};

class Primitive final : public Product {
 public:
  /// @param packed  the right factor is brought beforehand into the layout that oneDNN likes best
  Primitive(Type type, std::int64_t size, bool packed) : Product(type, size), packed_(packed) {
    const dnnl::memory::desc right({size, size}, type, packed ? Tag::any : Tag::ab);
    const dnnl::matmul::primitive_desc description(
        dnnl::matmul::desc(a_.get_desc(), right, c_.get_desc()), engine_);
    if (description.weights_desc() != b_.get_desc()) {
      dnnl::memory packed_b(description.weights_desc(), engine_);
      dnnl::reorder(b_, packed_b).execute(stream_, b_, packed_b);
      stream_.wait();
      b_ = packed_b;
    }
    matmul_ = dnnl::matmul(description);
  }
  void run() override {
    matmul_.execute(stream_, {{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}});
    stream_.wait();
  }
  Json report() const override {
    return {{"library", packed_ ? "oneDNN matmul, packed" : "oneDNN matmul"}};
  }

 private:
  bool packed_;
  dnnl::matmul matmul_;
};

class Sgemm final : public Product {
 public:
  explicit Sgemm(std::int64_t size) : Product(Type::f32, size) {}
  void run() override {
    dnnl_sgemm('N', 'N', size_, size_, size_, 1.0f, pointer(a_), size_, pointer(b_), size_, 0.0f,
               pointer(c_), size_);
  }
  Json report() const override { return {{"library", "oneDNN sgemm"}}; }

 private:
  static float* pointer(const dnnl::memory& memory) {
    return static_cast<float*>(memory.get_data_handle());
  }
};

double fastest_of(Work& work) {
  work.run();
  double best = seconds(work);
  for (int trial = 1; trial < kTrials; ++trial) best = std::min(best, seconds(work));
  return best;
}

}  // namespace

std::unique_ptr<Work> make_limit(const Json& request) {
  const std::string dtype = request.value("dtype", "float32");
  const std::int64_t size = request.value("size", kLimitSize);
  if (dtype != "float32" && dtype != "bfloat16") {
    fail(ExitCode::usage, "dtype: found {}; valid: float32, bfloat16", dtype);
  }
  const Type type = dtype == "float32" ? Type::f32 : Type::bf16;
  std::vector<std::unique_ptr<Work>> entries;
  try {
    entries.push_back(std::make_unique<Primitive>(type, size, false));
    entries.push_back(std::make_unique<Primitive>(type, size, true));
  } catch (const dnnl::error&) {
    fail(ExitCode::usage, "limit: oneDNN multiplies no {} on this processor", dtype);
  }
  if (type == Type::f32) entries.push_back(std::make_unique<Sgemm>(size));
  std::unique_ptr<Work> best;
  double best_seconds = 0;
  for (std::unique_ptr<Work>& entry : entries) {
    const double taken = fastest_of(*entry);
    if (!best || taken < best_seconds) {
      best_seconds = taken;
      best = std::move(entry);
    }
  }
  return best;
}

}  // namespace cadenza::bench
