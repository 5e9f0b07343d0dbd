// SPDX-License-Identifier: Apache-2.0
// Why attention's tile products are our own: the library's bare products of a tile beside a whole
// step of the tile kernels, softmax included, and the limit. One thread; prints JSON.
#include <oneapi/dnnl/dnnl.h>

#include <vector>

#include "../kernels/cpu/attention.hpp"
#include "cadenza/base/error.hpp"
#include "command_line.hpp"
#include "limit.hpp"

namespace cadenza::bench {
namespace {

namespace cpu = kernels::cpu;

constexpr int kTimes = 400;  // a tile takes 10 to 100 microseconds

using Floats = std::vector<float>;

/// The two products of a forward step by oneDNN: [128, D] x [D, 128] and [128, 128] x [128, D].
class LibraryProducts final : public Work {
 public:
  explicit LibraryProducts(int dim) : dim_(dim), q_(kTile * dim, 0.1f), k_(q_), s_(kTile * kTile) {}
  void run() override {
    for (int i = 0; i < kTimes; ++i) {
      dnnl_sgemm('N', 'T', kTile, kTile, dim_, 1.0f, q_.data(), dim_, k_.data(), dim_, 0.0f,
                 s_.data(), kTile);
      dnnl_sgemm('N', 'N', kTile, dim_, kTile, 1.0f, s_.data(), kTile, k_.data(), dim_, 0.0f,
                 q_.data(), dim_);
    }
  }
  double flops() const override { return 4.0 * kTile * kTile * dim_ * kTimes; }

 private:
  static constexpr int kTile = 128;
  int dim_;
  Floats q_, k_, s_;
};

/// The same tile by the forward kernel: products, maximum, exponential, sums and rescaling.
class ForwardStep final : public Work {
 public:
  ForwardStep(const cpu::TileKernels& table, int dim)
      : table_(table),
        dim_(dim),
        queries_(cpu::kQueryTile * dim, 0.1f),
        out_(queries_),
        peak_(cpu::kQueryTile),
        sum_(cpu::kQueryTile, 1.0f),
        lost_(cpu::kQueryTile),
        keys_(cpu::kKeyRows * dim, 0.1f),
        values_(keys_),
        scores_(cpu::kKeyRows * table.panel),
        rows_(keys_) {}
  void run() override {
    const cpu::ForwardHead head{queries_.data(), out_.data(), peak_.data(), sum_.data(),
                                lost_.data()};
    const cpu::ForwardKeys tile{keys_.data(), values_.data(), scores_.data(), scores_.data(),
                                rows_.data()};
    cpu::Visible visible;
    visible.last = cpu::kQueryTile;
    visible.keys = cpu::kKeyTile;
    for (int i = 0; i < kTimes; ++i) {
      table_.forward_step(head, tile, dim_, 0.1f, visible, {});
    }
  }
  double flops() const override { return 4.0 * cpu::kQueryTile * cpu::kKeyTile * dim_ * kTimes; }
  Json report() const override { return {{"kernels", table_.name}}; }

 private:
  const cpu::TileKernels& table_;
  int dim_;
  Floats queries_, out_, peak_, sum_, lost_, keys_, values_, scores_, rows_;
};

std::unique_ptr<Work> make_tile(const Json& request) {
  const int dim = request.at("head_dim");
  if (dim < cpu::kDimStep || !cpu::fits({1, 1, dim})) {
    fail(ExitCode::usage, "head_dim: found {}; valid: a multiple of {} up to {}", dim,
         cpu::kDimStep, cpu::kLargestDim);
  }
  if (request.at("by") == "oneDNN") return std::make_unique<LibraryProducts>(dim);
  const cpu::TileKernels* table = cpu::best_kernels<float>();
  if (table == nullptr) fail(ExitCode::usage, "this processor has no tuned kernels");
  return std::make_unique<ForwardStep>(*table, dim);
}

}  // namespace
}  // namespace cadenza::bench

int main(int argc, char** argv) {
  using cadenza::bench::Json;
  CLI::App app(
      "Times a tile of attention (128 queries, 128 keys, float32) beside the limit and prints "
      "JSON; run it with OMP_NUM_THREADS=1.",
      "bench_tile");
  int head_dim = 64;
  std::string by = "cadenza";
  app.add_option("--head-dim", head_dim, "Elements of a head")->capture_default_str();
  app.add_option("--by", by, "cadenza: a step of the kernel; oneDNN: its two products alone")
      ->check(CLI::IsMember({"cadenza", "oneDNN"}))
      ->capture_default_str();
  cadenza::bench::Repetitions repetitions;
  add_repetitions(app, repetitions);
  return run(app, argc, argv, repetitions, cadenza::bench::make_tile, [&] {
    return Json{{"by", by}, {"head_dim", head_dim}, {"dtype", "float32"}};
  });
}
