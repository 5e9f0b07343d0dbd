// SPDX-License-Identifier: Apache-2.0
// What tracing costs: two executors of one experiment take turns, one that records and writes
// events and memory, one that does not, step by step in one process. Seconds are a rank's processor
// time, which other programs on the machine hardly change. And what a trace leaves out: the share
// of a step, by the clock, in which no event is open.
#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "cadenza/base/error.hpp"
#include "cadenza/exec/executor.hpp"
#include "cadenza/trace/writer.hpp"

namespace cadenza::bench {
namespace {

constexpr std::size_t kEvents = 1 << 16;

struct Options {
  int rounds = 15;
  std::int64_t tokens = 8192;
  std::int64_t layers = 8;
  std::int64_t width = 256;
};

config::Experiment experiment_of(const Options& options) {
  config::Experiment e;
  e.model.layers = options.layers;
  e.model.d_model = options.width;
  e.model.heads = 4;
  e.model.kv_heads = 2;
  e.model.ffn = 3 * options.width;
  e.model.vocab = 512;
  e.data.source = config::Source::synthetic;
  e.data.documents = 4000;
  e.data.max_document = 1024;
  e.data.lengths.median = 200;
  e.data.lengths.max = 1024;
  e.batch.tokens = options.tokens;
  e.batch.microbatch = 1024;
  e.run.steps = 1'000'000;
  return e;
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Nanoseconds of [begin, end) in which no event of the compute or host lane is open.
std::int64_t untraced(std::vector<trace::Event> events, std::int64_t begin, std::int64_t end) {
  std::ranges::sort(events, {}, &trace::Event::begin_ns);
  std::int64_t sum = 0;
  std::int64_t seen = begin;
  for (const trace::Event& event : events) {
    if (event.lane == trace::Lane::communication) continue;
    sum += std::max<std::int64_t>(0, std::min(event.begin_ns, end) - seen);
    seen = std::max(seen, event.end_ns);
  }
  return sum + std::max<std::int64_t>(0, end - seen);
}

/// An experiment's executor with or without a trace.
class Side {
 public:
  Side(const config::Experiment& experiment, const data::Corpus& corpus, bool traced,
       const std::string& path)
      : world_(comm::make_self()),
        recorder_(kEvents),
        tracer_(recorder_, ledger_, traced, traced),
        executor_(experiment, *world_, corpus, tracer_, ledger_) {
    if (traced) writer_.emplace(path, trace::RunInfo{}, trace::RankInfo{});
  }

  /// @return processor seconds of a step and what is written of it
  double run(const program::StepPlan& plan) {
    const double begin = processor_seconds();
    const std::int64_t begin_ns = trace::now_ns();
    tracer_.begin_step(plan.batch.step);
    tracer_.sample_memory();
    executor_.run(plan);
    fence();
    const std::int64_t end_ns = trace::now_ns();
    const double measuring = processor_seconds();
    const auto events = recorder_.events();
    events_ += events.size();
    untraced_ = untraced({events.begin(), events.end()}, begin_ns, end_ns);
    share_ = static_cast<double>(untraced_) / static_cast<double>(end_ns - begin_ns);
    const double measured = processor_seconds() - measuring;
    const auto step = static_cast<std::uint32_t>(plan.batch.step);
    if (writer_) writer_->write_step({.step = step}, {.step = step}, recorder_);
    return processor_seconds() - begin - measured;
  }
  std::size_t events() const { return events_; }
  /// Of the last step: nanoseconds without an event, and their share of it.
  std::int64_t untraced_ns() const { return untraced_; }
  double untraced_share() const { return share_; }

 private:
  std::unique_ptr<comm::Communicator> world_;
  MemoryLedger ledger_;
  trace::Recorder recorder_;
  exec::Tracer tracer_;
  exec::Executor<float> executor_;
  std::optional<trace::Writer> writer_;
  std::size_t events_ = 0;
  std::int64_t untraced_ = 0;
  double share_ = 0;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void run(const Options& options) {
  const config::Experiment experiment = experiment_of(options);
  const auto corpus = data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
  const data::Packer packer(*corpus, experiment);
  std::string folder = std::filesystem::temp_directory_path() / "cadenza-bench-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) fail(ExitCode::data, "{}: cannot be made", folder);
  const std::string path = folder + "/trace.h5";
  Side with(experiment, *corpus, true, path);
  Side without(experiment, *corpus, false, path);
  std::vector<double> ratios, traced, microseconds, shares;
  for (int round = -1; round < options.rounds; ++round) {  // the first one allocates
    const program::StepPlan plan = program::plan_step(experiment, packer, 0, round + 1);
    const bool first = round % 2 == 0;  // who goes first takes turns too
    const double a = first ? with.run(plan) : without.run(plan);
    const double b = first ? without.run(plan) : with.run(plan);
    if (round < 0) continue;
    traced.push_back(first ? a : b);
    ratios.push_back(first ? a / b : b / a);
    microseconds.push_back(1e-3 * static_cast<double>(with.untraced_ns()));
    shares.push_back(with.untraced_share());
  }
  std::filesystem::remove_all(folder);
  const auto [least, most] = std::ranges::minmax(ratios);
  fmt::print(
      "{} events a step of {:.0f} ms; with a trace it takes {:.4f} times as long as without "
      "(median of {}; {:.4f} to {:.4f})\n",
      with.events() / static_cast<std::size_t>(options.rounds + 1), 1e3 * median(traced),
      median(ratios), options.rounds, least, most);
  fmt::print("no event is open in {:.0f} us of a step, {:.3f} % of it (medians)\n",
             median(microseconds), 100 * median(shares));
}

}  // namespace
}  // namespace cadenza::bench

int main(int argc, char** argv) {
  using namespace cadenza;
  CLI::App app("What tracing costs: steps with and without a trace, in turns");
  bench::Options options;
  app.add_option("--rounds", options.rounds, "Pairs of steps")->check(CLI::PositiveNumber);
  app.add_option("--tokens", options.tokens, "Of a step: a multiple of 1024");
  app.add_option("--layers", options.layers, "Of the model");
  app.add_option("--width", options.width, "Of the model");
  CLI11_PARSE(app, argc, argv);
  const Kokkos::ScopeGuard kokkos(argc, argv);
  try {
    bench::run(options);
  } catch (const Error& error) {
    fmt::print(stderr, "bench_trace: {}\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
