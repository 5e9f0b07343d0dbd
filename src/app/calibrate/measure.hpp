// SPDX-License-Identifier: Apache-2.0
// Measurements of calibrate: seconds of work that all ranks do at the same time, repeated until
// they agree; steps, links, products.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/kernels/device.hpp"
#include "cadenza/program/operation_work.hpp"
#include "cadenza/trace/events/event.hpp"

namespace cadenza::app {

/// Returns the median of at least one value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

inline double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Returns the mean over the ranks of `world`. Collective.
inline double mean_over_ranks(comm::Communicator& world, double value) {
  world.all_reduce(std::span(&value, 1), comm::Reduction::sum);
  return value / world.size();
}

template <typename Body>
double seconds_of(const Body& body) {
  const std::int64_t begin = trace::now_ns();
  body();
  fence();
  return static_cast<double>(trace::now_ns() - begin) * 1e-9;
}

/// Returns the median over repetitions, mean over ranks. The first call warms up; if it takes long,
/// it is the measurement. Collective.
template <typename Body>
double measure(comm::Communicator& world, const Body& body) {
  constexpr double kEnough = 0.1;  // seconds of all repetitions
  constexpr int kMost = 9;
  world.barrier();
  const double first = mean_over_ranks(world, seconds_of(body));
  if (first > kEnough) return first;
  const int repetitions = std::clamp(static_cast<int>(kEnough / std::max(first, 1e-9)), 3, kMost);
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    world.barrier();
    seconds.push_back(seconds_of(body));
  }
  return mean_over_ranks(world, median(seconds));
}

// --- A measurement that is repeated until its times agree ---

/// Too short to matter in a step.
inline constexpr double kUnnoticedSeconds = 20e-6;

/// Seconds of one measurement by round. Disturbances only make a measurement longer, so the two
/// fastest rounds count.
class Rounds {
 public:
  void add(double seconds) {
    seconds_.insert(std::ranges::upper_bound(seconds_, seconds), seconds);
  }
  bool empty() const { return seconds_.empty(); }
  /// Returns the mean of the two fastest rounds; needs at least one round.
  double seconds() const {
    return seconds_.size() < 2 ? seconds_.front() : (seconds_[0] + seconds_[1]) / 2;
  }
  /// Returns by how much the second fastest round took longer, as a share of the fastest.
  double spread() const { return seconds_.size() < 2 ? 0.0 : seconds_[1] / seconds_[0] - 1; }
  /// Whether the two fastest rounds do not agree.
  bool noisy() const {
    constexpr double kMost = 0.1;
    if (seconds_.size() < 2 || !(seconds_[1] - seconds_[0] > kUnnoticedSeconds)) return false;
    return spread() > kMost;
  }

 private:
  std::vector<double> seconds_;  ///< ascending
};

/// Joins the first names of `all` and the number of the others.
std::string some_of(const std::vector<std::string>& all);

// --- Times of the operations of real training steps, from their events ---

struct OperationTime {
  std::string name;  ///< name of the event
  Phase phase = Phase::other;
  std::int64_t bytes = 0;
  double seconds = 0;
};

/// Runs one warm-up step and `steps` more on `group`, whose ranks are those of the experiment; the
/// ranks of `world` (one or several groups) begin each step together. Returns the events of this
/// rank's compute lane, in order. Collective over `world`.
template <typename Real>
std::vector<OperationTime> run_steps(comm::Communicator& world, comm::Communicator& group,
                                     const config::Experiment& experiment, int steps);

/// Returns the median over events of this name and phase, mean over ranks; 0 without any.
/// Collective.
double median_seconds(comm::Communicator& world, const std::vector<OperationTime>& events,
                      const std::string& name, Phase phase);

/// Returns all bytes / all seconds, mean over ranks; 0 without any. Collective.
double bytes_per_second(comm::Communicator& world, const std::vector<OperationTime>& events);

std::vector<OperationTime> named(const std::vector<OperationTime>& events, const std::string& name);

/// Returns every other copy: inputs and results of attention are copied in turns.
std::vector<OperationTime> every_other(const std::vector<OperationTime>& copies, bool inputs);

// --- Messages and collectives of ranks, as training sends them ---

/// Measures links: between ranks 0 and 1 the latency of small messages there and back and the
/// bandwidth of large ones in both directions at once; over all ranks the rates of rings that
/// gather and sum. Collective; needs two ranks.
config::Link measure_link(comm::Communicator& world);

// --- Matrix products, through the call that the model's layers make ---

/// Returns the seconds of the product. Collective.
template <typename Real>
double product_seconds(comm::Communicator& world, const program::Product& product);

}  // namespace cadenza::app
