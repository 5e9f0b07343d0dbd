// SPDX-License-Identifier: Apache-2.0
// Why attention's tile products are our own: the library's bare products of a tile beside a whole
// step of the tile kernels, softmax included, and the limit; and how far the limit is from what
// AMX can do at most. One thread; prints JSON.
#include <oneapi/dnnl/dnnl.h>

#include <memory>
#include <string>
#include <vector>

#include "../kernels/cpu/attention.hpp"
#include "../kernels/cpu/thread_state.hpp"
#include "amx_rate.hpp"
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
        scores_(2 * cpu::kKeyRows * table.panel),
        probabilities_(table.depth == 1 ? 0 : cpu::kKeyRows * table.panel),
        rows_(keys_) {}
  void run() override {
    const cpu::ForwardHead head{queries_.data(), out_.data(), peak_.data(), sum_.data(),
                                lost_.data()};
    const cpu::ForwardKeys tile{keys_.data(), values_.data(), scores_.data(),
                                table_.depth == 1 ? scores_.data() : probabilities_.data(),
                                rows_.data()};
    const cpu::ThreadState state(table_);
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
  Floats queries_, out_, peak_, sum_, lost_, keys_, values_, scores_, probabilities_, rows_;
};

/// Tile products alone: of factors in registers, or loaded from the first-level cache.
class AmxProducts final : public Work {
 public:
  explicit AmxProducts(bool from_cache)
      : from_cache_(from_cache), data_((kAmxCacheBytes + kLine) / sizeof(float)) {
    void* begin = data_.data();
    std::size_t space = data_.size() * sizeof(float);
    aligned_ = std::align(kLine, kAmxCacheBytes, begin, space);
  }
  void run() override {
    if (from_cache_) {
      multiply_from_cache(aligned_, kBlocks);
    } else {
      multiply_in_registers(kBlocks);
    }
  }
  double flops() const override { return kAmxBlockFlops * kBlocks; }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr int kBlocks = 1 << 18;  // some milliseconds
  bool from_cache_;
  Floats data_;
  const void* aligned_ = nullptr;
};

/// The fastest table for data of a type.
const cpu::TileKernels& table_of(const std::string& dtype) {
  const cpu::TileKernels* table =
      dtype == "float32" ? cpu::best_kernels<float>() : cpu::best_kernels<bfloat16>();
  if (table == nullptr) fail(ExitCode::usage, "this processor has no tuned {} kernels", dtype);
  return *table;
}

std::unique_ptr<Work> make_tile(const Json& request) {
  const int dim = request.at("head_dim");
  if (dim < cpu::kDimStep || !cpu::fits({1, 1, dim})) {
    fail(ExitCode::usage, "head_dim: found {}; valid: a multiple of {} up to {}", dim,
         cpu::kDimStep, cpu::kLargestDim);
  }
  const std::string by = request.at("by"), dtype = request.at("dtype");
  if (by == "cadenza") return std::make_unique<ForwardStep>(table_of(dtype), dim);
  if (by == "oneDNN") {
    if (dtype != "float32") fail(ExitCode::usage, "--by oneDNN: valid: --dtype float32");
    return std::make_unique<LibraryProducts>(dim);
  }
  if (dtype != "bfloat16") fail(ExitCode::usage, "--by {}: valid: --dtype bfloat16", by);
  if (cpu::amx_bfloat16_kernels() == nullptr) fail(ExitCode::usage, "this processor has no AMX");
  return std::make_unique<AmxProducts>(by == "L1");
}

}  // namespace
}  // namespace cadenza::bench

int main(int argc, char** argv) {
  using cadenza::bench::Json;
  CLI::App app(
      "Times a tile of attention (128 queries, 128 keys) beside the limit and prints "
      "JSON; run it with OMP_NUM_THREADS=1.",
      "bench_tile");
  int head_dim = 64;
  std::string by = "cadenza";
  app.add_option("--head-dim", head_dim, "Elements of a head")->capture_default_str();
  std::string dtype = "float32";
  app.add_option("--by", by,
                 "cadenza: a step of the kernel; oneDNN: its two products alone (float32); "
                 "registers, L1: AMX products alone, of tiles that are there (bfloat16)")
      ->check(CLI::IsMember({"cadenza", "oneDNN", "registers", "L1"}))
      ->capture_default_str();
  app.add_option("--dtype", dtype, "float32 or bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  cadenza::bench::Repetitions repetitions;
  add_repetitions(app, repetitions);
  return run(app, argc, argv, repetitions, cadenza::bench::make_tile, [&] {
    return Json{{"by", by}, {"head_dim", head_dim}, {"dtype", dtype}};
  });
}
