// SPDX-License-Identifier: Apache-2.0
#include "app/calibrate/measure.hpp"

#include <algorithm>
#include <iterator>

#include "cadenza/data/corpus.hpp"
#include "cadenza/exec/executor.hpp"
#include "cadenza/kernels/matmul.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::app {

template <typename Real>
std::vector<OperationTime> run_steps(comm::Communicator& world, comm::Communicator& group,
                                     const config::Experiment& given, int steps) {
  constexpr std::size_t kEvents = 1 << 16;
  config::Experiment experiment = given;
  experiment.run.steps = steps + 1;  // after its end a schedule has no learning rate
  experiment.optimizer.warmup = 0;
  const auto corpus = data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
  const data::Packer packer(*corpus, experiment);
  MemoryLedger ledger;
  trace::Recorder recorder(kEvents);
  exec::Tracer tracer(recorder, ledger, true, false);
  exec::Executor<Real> executor(experiment, group, *corpus, tracer, ledger);
  for (int step = 0; step <= steps; ++step) {
    const program::StepPlan plan = program::plan_step(experiment, packer, group.rank(), step);
    world.barrier();
    if (step == 1) recorder.clear();
    tracer.begin_step(step);
    executor.run(plan);
  }
  std::vector<OperationTime> times;
  for (const trace::Event& event : recorder.events()) {
    if (event.lane != trace::Lane::compute) continue;
    times.push_back({recorder.names()[event.name_id], event.phase, event.bytes,
                     static_cast<double>(event.end_ns - event.begin_ns) * 1e-9});
  }
  return times;
}

double median_seconds(comm::Communicator& world, const std::vector<OperationTime>& events,
                      const std::string& name, Phase phase) {
  std::vector<double> seconds;
  for (const OperationTime& event : named(events, name)) {
    if (event.phase == phase) seconds.push_back(event.seconds);
  }
  return mean_over_ranks(world, seconds.empty() ? 0.0 : median(seconds));
}

double bytes_per_second(comm::Communicator& world, const std::vector<OperationTime>& events) {
  double bytes = 0, seconds = 0;
  for (const OperationTime& event : events) {
    bytes += static_cast<double>(event.bytes);
    seconds += event.seconds;
  }
  return mean_over_ranks(world, seconds > 0 ? bytes / seconds : 0.0);
}

std::vector<OperationTime> named(const std::vector<OperationTime>& events,
                                 const std::string& name) {
  std::vector<OperationTime> found;
  std::ranges::copy_if(events, std::back_inserter(found),
                       [&](const OperationTime& event) { return event.name == name; });
  return found;
}

std::vector<OperationTime> every_other(const std::vector<OperationTime>& copies, bool inputs) {
  std::vector<OperationTime> found;
  for (std::size_t i = inputs ? 0 : 1; i < copies.size(); i += 2) found.push_back(copies[i]);
  return found;
}

template std::vector<OperationTime> run_steps<bfloat16>(comm::Communicator&, comm::Communicator&,
                                                        const config::Experiment&, int);
template std::vector<OperationTime> run_steps<float>(comm::Communicator&, comm::Communicator&,
                                                     const config::Experiment&, int);
template std::vector<OperationTime> run_steps<double>(comm::Communicator&, comm::Communicator&,
                                                      const config::Experiment&, int);

namespace {

constexpr int kTag = 1;
constexpr int kChannel = 0;
constexpr std::size_t kSmall = 8;
constexpr std::size_t kLarge = std::size_t{16} << 20;

/// Exchanges messages between ranks 0 and 1 at the same time; the others return at once.
void swap(comm::Communicator& world, std::span<std::byte> out, std::span<std::byte> in) {
  if (world.rank() > 1) return;
  const int peer = 1 - world.rank();
  world.post_receive(in, peer, kTag, kChannel);
  world.post_send(out, peer, kTag, kChannel);
  world.wait(kChannel);
}

double swap_seconds(comm::Communicator& world, std::size_t bytes, int times) {
  std::vector<std::byte> out(bytes), in(bytes);
  const double seconds = measure(world, [&] {
    for (int i = 0; i < times; ++i) swap(world, out, in);
  });
  return seconds * world.size() / 2 / times;  // ranks above 1 took no time
}

/// Returns the bytes per second that each rank sends in a ring over all ranks.
/// @param collective  runs on (one rank's part, all parts)
template <typename Collective>
double ring_rate(comm::Communicator& world, double latency, const Collective& collective) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<float> part(kLarge / sizeof(float) / ranks), all(part.size() * ranks);
  const double seconds = measure(world, [&] { collective(part, all); });
  const auto hops = static_cast<double>(ranks - 1);
  return hops * static_cast<double>(part.size() * sizeof(float)) / (seconds - hops * latency);
}

}  // namespace

config::Link measure_link(comm::Communicator& world) {
  constexpr int kTimes = 100;
  config::Link link;
  link.latency_seconds = swap_seconds(world, kSmall, kTimes);
  link.bytes_per_second =
      static_cast<double>(kLarge) / (swap_seconds(world, kLarge, 1) - link.latency_seconds);
  link.gather_bytes_per_second =
      ring_rate(world, link.latency_seconds, [&](std::span<float> part, std::span<float> all) {
        world.all_gather(std::as_bytes(part), std::as_writable_bytes(all));
      });
  link.reduce_bytes_per_second = ring_rate(
      world, link.latency_seconds,
      [&](std::span<float> part, std::span<float> all) { world.reduce_scatter(all, part); });
  return link;
}

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
