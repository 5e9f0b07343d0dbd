// SPDX-License-Identifier: Apache-2.0
// How much of a message's time attention hides, by who lets MPI work meanwhile: nobody, the
// kernels' progress hook, or a thread of its own. Run it on two ranks or more; prints a table.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/kernels/attention.hpp"

namespace cadenza::bench {
namespace {

using Floats = std::vector<float>;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Causal attention of one document, as long as takes about `seconds`.
class Compute {
 public:
  explicit Compute(double seconds) {
    make(2048);
    run({});
    const double took = run({});
    make(static_cast<std::int64_t>(2048 * std::sqrt(seconds / took)));
    run({});
  }

  /// @return seconds
  double run(kernels::ProgressHook progress) {
    list_.progress = progress;
    std::fill(lse_.begin(), lse_.end(), -INFINITY);
    const double begin = now();
    kernels::attention_forward({kHeads, kHeads, kDim}, {}, list_);
    fence();
    return now() - begin;
  }

 private:
  static constexpr int kHeads = 4, kDim = 128;

  void make(std::int64_t tokens) {
    const auto rows = static_cast<std::size_t>(tokens);
    input_.assign(rows * kHeads * kDim, 0.1f);
    out_.assign(rows * kHeads * kDim, 0.0f);
    lse_.assign(rows * kHeads, 0.0f);
    list_ = {};
    list_.queries.push_back(
        {.tokens = {0, tokens}, .q = input_.data(), .out = out_.data(), .lse = lse_.data()});
    list_.keys.push_back({.tokens = {0, tokens}, .k = input_.data(), .v = input_.data()});
    list_.tasks.push_back({{0, {0, tokens}, {0, tokens}, {0, kHeads}}, 0, 0});
  }

  Floats input_, out_, lse_;
  kernels::TaskList<float> list_;
};

/// Messages in both directions of a ring, or a sum over all ranks.
class Messages {
 public:
  Messages(comm::Communicator& world, bool sum, std::size_t bytes)
      : world_(world), sum_(sum), sent_(bytes / sizeof(float), 1.0f), received_(sent_) {}

  void post() {
    if (sum_) return world_.post_all_reduce(std::span(sent_), 0);
    const int ranks = world_.size(), rank = world_.rank();
    world_.post_receive(std::as_writable_bytes(std::span(received_)), (rank + ranks - 1) % ranks, 0,
                        0);
    world_.post_send(std::as_bytes(std::span(sent_)), (rank + 1) % ranks, 0, 0);
  }
  void wait() { world_.wait(0); }

 private:
  comm::Communicator& world_;
  bool sum_;
  Floats sent_, received_;
};

/// Lets MPI work every `period` from a thread of its own.
class ProgressThread {
 public:
  ProgressThread(comm::Communicator& world, std::chrono::microseconds period)
      : thread_([this, &world, period] {
          while (!stop_.load(std::memory_order_relaxed)) {
            world.progress();
            std::this_thread::sleep_for(period);
          }
        }) {}
  ~ProgressThread() {
    stop_.store(true, std::memory_order_relaxed);
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct Sample {
  double compute = 0;  ///< seconds
  double total = 0;    ///< seconds from the post to the end of the wait, compute included
};

enum class Way { nobody, hook, thread };

Sample overlapped(comm::Communicator& world, Messages& messages, Compute& compute, Way way) {
  world.barrier();
  Sample sample;
  const double begin = now();
  messages.post();
  kernels::ProgressHook hook;
  if (way == Way::hook) {
    hook = {[](void* context) { static_cast<comm::Communicator*>(context)->progress(); }, &world};
  }
  if (way == Way::thread) {
    const ProgressThread thread(world, std::chrono::microseconds(500));
    sample.compute = compute.run(hook);
  } else {
    sample.compute = compute.run(hook);
  }
  messages.wait();
  sample.total = now() - begin;
  return sample;
}

/// The slowest rank's time.
double slowest(comm::Communicator& world, double seconds) {
  world.all_reduce(std::span(&seconds, 1), comm::Reduction::max);
  return seconds;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Options {
  std::vector<int> mebibytes = {1, 4, 16, 64};
  int compute_ms = 200;
  int repetitions = 5;
  bool sum = false;
};

/// Median over repetitions of what `measure` returns, slowest rank of each.
template <typename Measure>
double repeated(comm::Communicator& world, int repetitions, Measure measure) {
  std::vector<double> samples;
  for (int i = 0; i < repetitions; ++i) samples.push_back(slowest(world, measure()));
  return median(samples);
}

void measure(comm::Communicator& world, const Options& options) {
  Compute compute(options.compute_ms * 1e-3);
  const auto print = [&](const std::string& line) {
    if (world.rank() == 0) fmt::print("{}\n", line);
  };
  print("  MiB  messages ms  compute ms  progress by  exposed ms  slow-down %");
  for (const int size : options.mebibytes) {
    Messages messages(world, options.sum, static_cast<std::size_t>(size) << 20);
    const double alone = repeated(world, options.repetitions, [&] {
      world.barrier();
      return compute.run({});
    });
    const double bare = repeated(world, options.repetitions, [&] {
      world.barrier();
      const double begin = now();
      messages.post();
      messages.wait();
      return now() - begin;
    });
    for (const auto& [way, name] : {std::pair{Way::nobody, "nobody"}, std::pair{Way::hook, "hook"},
                                    std::pair{Way::thread, "thread"}}) {
      std::vector<double> totals, computes;
      for (int i = 0; i < options.repetitions; ++i) {
        const Sample sample = overlapped(world, messages, compute, way);
        totals.push_back(slowest(world, sample.total - sample.compute));
        computes.push_back(slowest(world, sample.compute));
      }
      print(fmt::format("{:5} {:12.2f} {:11.2f}  {:11} {:11.2f} {:12.2f}", size, bare * 1e3,
                        alone * 1e3, name, median(totals) * 1e3,
                        (median(computes) / alone - 1) * 100));
    }
  }
}

}  // namespace
}  // namespace cadenza::bench

int main(int argc, char** argv) {
  using cadenza::bench::Options;
  CLI::App app("Times messages behind attention, by who lets MPI work meanwhile.", "bench_overlap");
  Options options;
  app.add_option("--mebibytes", options.mebibytes, "Sizes of a message")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--compute-ms", options.compute_ms, "Length of the attention call")
      ->capture_default_str();
  app.add_option("--repetitions", options.repetitions)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--sum", options.sum, "Sum over all ranks in place of messages in a ring");
  CLI11_PARSE(app, argc, argv);
  try {  // the progress thread calls MPI too
    const cadenza::comm::MpiSession mpi(argc, argv, cadenza::comm::MpiThreads::all);
    const Kokkos::ScopeGuard kokkos(argc, argv);
    cadenza::bench::measure(*cadenza::comm::make_world(), options);
  } catch (const cadenza::Error& error) {
    fmt::print(stderr, "bench_overlap: {}\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
