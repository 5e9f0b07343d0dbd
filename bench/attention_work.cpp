// SPDX-License-Identifier: Apache-2.0
#include "attention_work.hpp"

#include <algorithm>
#include <string>

#include "cadenza/attention/core_attention.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/hash.hpp"
#include "cadenza/base/random.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/kernels/attention.hpp"
#include "cadenza/model/layers.hpp"

namespace cadenza::bench {
namespace {

constexpr std::uint64_t kSeed = 1;

struct Shape {
  AttentionShape heads;
  AttentionKernel kernel;
  std::vector<std::int64_t> documents;
  std::int64_t task = 0;
  bool backward = false;
  config::Attention attention;
  bool rotates = false;
  std::int64_t slashes = 0;
  std::int64_t columns = 0;
  std::int64_t block = 0;

  explicit Shape(const Json& request)
      : heads{request.at("heads"), request.at("kv_heads"), request.at("head_dim")},
        kernel(kernel_of(request)),
        documents(request.at("documents").get<std::vector<std::int64_t>>()),
        task(request.value("task", 0)),
        backward(request.at("pass") == "backward"),
        rotates(request.value("rotate", false)),
        slashes(request.value("slashes", std::int64_t{0})),
        columns(request.value("columns", std::int64_t{0})),
        block(request.value("block", std::int64_t{64})) {
    attention.window = request.value("window", std::int64_t{0});
    if (attention.window > 0) attention.kind = config::AttentionKind::window;
    attention.chunk = request.value("chunk", std::int64_t{0});
    attention.local = request.value("local", std::int64_t{0});
    if (attention.chunk > 0) attention.kind = config::AttentionKind::dual_chunk;
    if (attention.chunk > 0 && attention.local >= attention.chunk) {
      fail(ExitCode::usage, "local: found {}; valid: less than chunk = {}", attention.local,
           attention.chunk);
    }
    const std::string pass = request.at("pass");
    if (pass != "forward" && pass != "backward") {
      fail(ExitCode::usage, "pass: found {}; valid: forward, backward", pass);
    }
    if (heads.heads < 1 || heads.kv_heads < 1 || heads.head_dim < 1 ||
        heads.heads % heads.kv_heads != 0) {
      fail(ExitCode::usage,
           "heads, kv_heads, head_dim: found {}, {}, {}; valid: positive, with "
           "kv_heads a divisor of heads",
           heads.heads, heads.kv_heads, heads.head_dim);
    }
    const auto empty = [](std::int64_t length) { return length < 1; };
    if (documents.empty() || std::any_of(documents.begin(), documents.end(), empty) || task < 0) {
      fail(ExitCode::usage, "documents are lengths of at least 1 token, task is 0 or more");
    }
  }
  std::int64_t tokens() const {
    std::int64_t sum = 0;
    for (const std::int64_t length : documents) sum += length;
    return sum;
  }
  bool sparse() const { return slashes > 0 || columns > 0; }
  /// Slash k of K lies k^3 / K^3 of the document back, as distances of attention do: near ones are
  /// denser. Each head has other columns.
  SparsePattern pattern(std::int64_t length, int head) const {
    std::vector<std::int64_t> diagonals, keys;
    const double count = static_cast<double>(slashes);
    for (std::int64_t k = 0; k < slashes; ++k) {
      const double share = static_cast<double>(k) / count;
      diagonals.push_back(
          static_cast<std::int64_t>(share * share * share * static_cast<double>(length)));
    }
    for (std::int64_t k = 0; k < columns; ++k) {
      keys.push_back((k * 7919 + head * 101) % length);
    }
    return SparsePattern::vertical_slash(length, block, diagonals, keys);
  }
  SparseIndex index() const {
    std::vector<SparsePattern> patterns;
    for (const std::int64_t length : documents) {
      for (int head = 0; head < heads.heads; ++head) patterns.push_back(pattern(length, head));
    }
    return {heads.heads, std::move(patterns)};
  }
  double flops() const {
    double pairs = 0;  // of all heads
    for (const std::int64_t length : documents) {
      for (int head = 0; head < heads.heads; ++head) pairs += pairs_of(length, head);
    }
    return 4.0 * pairs * heads.head_dim * (backward ? kBackwardFlopsRatio : 1.0);
  }
  /// Of causal attention S^2 / 2: the half pairs on the diagonal do not count.
  double pairs_of(std::int64_t length, int head) const {
    if (sparse()) return static_cast<double>(pattern(length, head).pairs());
    return static_cast<double>(attention.mask().pairs({0, length})) -
           0.5 * static_cast<double>(length);
  }
};

template <typename T>
struct SetZero {
  Array<T> values;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    values(static_cast<std::size_t>(i)) = T(0);
  }
};

/// The sum of four uniform numbers of 16 bits: nearly normal, and quick for long documents.
template <typename T>
struct SetRandom {
  Array<T> values;
  std::uint64_t stream;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::uint64_t bits = random_bits(kSeed, stream, static_cast<std::uint64_t>(i));
    const auto sum = static_cast<double>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                         (bits >> 32 & 0xffff) + (bits >> 48));
    constexpr double kRootOfThree = 1.7320508075688772;
    values(static_cast<std::size_t>(i)) = static_cast<T>((sum / 65536 - 2) * kRootOfThree);
  }
};

template <typename T>
void set_zero(const Array<T>& values) {
  launch("set_zero", Kokkos::RangePolicy<Device>(0, values.extent(0)), SetZero<T>{values});
}

template <typename Real>
class AttentionWork final : public Work {
 public:
  using Sum = Accumulator<Real>;

  /// @throws Error(usage) where the kernel that was asked for is not available here
  explicit AttentionWork(const Shape& shape)
      : kernel_(kernels::attention_kernel<Real>(shape.heads, shape.kernel)),
        shape_(shape),
        q_(random("q", shape.heads.heads)),
        k_(random("k", shape.heads.kv_heads)),
        v_(random("v", shape.heads.kv_heads)),
        out_(zeros("out", shape.heads.heads, shape.heads.head_dim)),
        lse_(zeros("lse", shape.heads.heads, 1)) {
    if (shape_.backward) {
      dout_ = random("dout", shape.heads.heads);
      delta_ = zeros("delta", shape.heads.heads, 1);
      dq_ = zeros("dq", shape.heads.heads, shape.heads.head_dim);
      dk_ = zeros("dk", shape.heads.kv_heads, shape.heads.head_dim);
      dv_ = zeros("dv", shape.heads.kv_heads, shape.heads.head_dim);
    }
    if (shape_.rotates) {
      config::Rope rope;
      const std::int64_t longest = std::ranges::max(shape.documents);
      rotation_ =
          attention::make_rotary_table<Sum>(ledger_, shape.attention.mask().positions(longest),
                                            model::rotary_frequencies(rope, shape.heads.head_dim));
    }
    list_tasks();
    if (shape_.sparse()) {
      index_ = shape_.index();
      list_.index = &index_;
    }
    if (shape_.backward) forward();
  }

  void run() override {
    if (shape_.backward) {
      backward();
    } else {
      forward();
    }
  }
  void finish() override { fence(); }
  double flops() const override { return shape_.flops(); }
  Json report() const override { return {{"kernel", word(kernel_)}}; }

 private:
  Array<Real> random(const std::string& label, int heads) {
    const std::int64_t count = shape_.tokens() * heads * shape_.heads.head_dim;
    const Array<Real> values(Kokkos::view_alloc(label, Kokkos::WithoutInitializing),
                             static_cast<std::size_t>(count));
    launch("set_random", Kokkos::RangePolicy<Device>(0, values.extent(0)),
           SetRandom<Real>{values, Hasher().add(label).value()});
    return values;
  }
  Array<Sum> zeros(const std::string& label, int heads, int width) {
    return Array<Sum>(label, static_cast<std::size_t>(shape_.tokens() * heads * width));
  }

  void list_tasks() {
    list_.kernel = shape_.kernel;
    const int width = shape_.heads.head_dim;
    const std::int64_t query = static_cast<std::int64_t>(shape_.heads.heads) * width;
    const std::int64_t key = static_cast<std::int64_t>(shape_.heads.kv_heads) * width;
    const auto at = [](const auto& array, std::int64_t offset) {
      return array.data() == nullptr ? nullptr : array.data() + offset;
    };
    std::int64_t row = 0;
    for (std::size_t document = 0; document < shape_.documents.size(); ++document) {
      const std::int64_t length = shape_.documents[document];
      const Range tokens{0, length};
      const int index = static_cast<int>(document);
      const std::int64_t statistic = row * shape_.heads.heads;
      list_.queries.push_back({tokens, at(q_, row * query), at(out_, row * query),
                               at(lse_, statistic), at(dout_, row * query), at(delta_, statistic),
                               at(dq_, row * query)});
      list_.keys.push_back(
          {tokens, at(k_, row * key), at(v_, row * key), at(dk_, row * key), at(dv_, row * key)});
      const std::int64_t step = shape_.task > 0 ? shape_.task : length;
      for (std::int64_t begin = 0; begin < length; begin += step) {
        const std::int64_t end = std::min(length, begin + step);
        const Task rectangle{index, {begin, end}, {0, end}, {0, shape_.heads.heads}};
        shape_.attention.mask().for_each_task(rectangle, [&](const Task& task) {
          list_.tasks.push_back({task, index, index});
        });
      }
      row += length;
    }
  }

  void forward() {
    attention::initialise(out_.data(), lse_.data(), shape_.tokens(), shape_.heads.heads,
                          shape_.heads.head_dim);
    kernels::attention_forward(shape_.heads, rotation_, list_);
  }
  void backward() {
    attention::delta(out_.data(), dout_.data(), shape_.tokens(), shape_.heads.heads,
                     shape_.heads.head_dim, delta_.data());
    set_zero(dq_);
    set_zero(dk_);
    set_zero(dv_);
    kernels::attention_backward(shape_.heads, rotation_, list_);
  }

  AttentionKernel kernel_;
  Shape shape_;
  Array<Real> q_, k_, v_;
  Array<Sum> out_, lse_;
  Array<Real> dout_;
  Array<Sum> delta_, dq_, dk_, dv_;
  MemoryLedger ledger_;
  kernels::RotaryTable<Sum> rotation_;
  kernels::TaskList<Real> list_;
  SparseIndex index_;
};

}  // namespace

std::unique_ptr<Work> make_attention(const Json& request) {
  const Shape shape(request);
  const std::string dtype = request.at("dtype");
  if (dtype == "float32") return std::make_unique<AttentionWork<float>>(shape);
  if (dtype == "bfloat16") {
    require_bfloat16();
    return std::make_unique<AttentionWork<bfloat16>>(shape);
  }
  fail(ExitCode::usage, "dtype: found {}; valid: float32, bfloat16", dtype);
}

}  // namespace cadenza::bench
