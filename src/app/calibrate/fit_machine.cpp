// SPDX-License-Identifier: Apache-2.0
#include "app/calibrate/fit_machine.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "app/calibrate/measure.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/program/layout.hpp"
#include "cadenza/program/operation_work.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::app {
namespace {

using program::Operation;
using program::Pass;

/// Returns how much the seconds of a tile differ over a table: variance of their logarithm.
double spread(const config::AttentionTimes& attention, const std::vector<config::Row<3>>& rows) {
  double sum = 0, squares = 0;
  for (const auto& [queries, keys, seconds] : rows) {
    const auto end = static_cast<std::int64_t>(keys);
    const Task task{0, {end - static_cast<std::int64_t>(queries), end}, {0, end}, {0, 1}};
    const double weight = cost::tile_weight(task, attention.tile, attention.tile_overhead);
    const double log = std::log(std::max(seconds - attention.launch_seconds, 1e-9) / weight);
    sum += log;
    squares += log * log;
  }
  const auto count = static_cast<double>(std::max<std::size_t>(rows.size(), 1));
  return squares / count - sum * sum / count / count;
}

/// Fits seconds per byte s with the least squared relative error of products + s x bytes.
class RateFit {
 public:
  void add(double products, double bytes, double seconds) {
    bytes_ += bytes * (seconds - products) / (seconds * seconds);
    squares_ += bytes * bytes / (seconds * seconds);
  }
  /// Returns bytes per second; almost infinite if the products alone take longer than was measured.
  double rate() const {
    constexpr double kNoTime = 1e15;
    return bytes_ > 0 ? std::min(squares_ / bytes_, kNoTime) : kNoTime;
  }

 private:
  double bytes_ = 0;
  double squares_ = 0;
};

}  // namespace

void fit_tile_overhead(config::AttentionTimes& attention) {
  config::AttentionTimes best = attention;
  double least = std::numeric_limits<double>::max();
  for (int percent = 0; percent <= 300; percent += 5) {
    attention.tile_overhead = percent / 100.0;
    const double found =
        spread(attention, attention.forward) + spread(attention, attention.backward);
    if (found < least) {
      least = found;
      best = attention;
    }
  }
  attention = best;
}

void fit_element_wise(const config::Experiment& alone, const std::vector<OperationSample>& samples,
                      config::Machine& machine) {
  const program::Layout layout(alone);
  const program::OperationShapes shapes(alone, layout);
  config::Machine products = machine;
  products.element_wise = {};
  products.element_wise.bytes_per_second = 1e30;
  const simulate::Costs costs(products, alone, layout);
  std::map<double*, RateFit> fits;
  for (const OperationSample& sample : samples) {
    double* const rate = program::rate_of(machine.element_wise, sample.instruction);
    if (rate == nullptr || sample.seconds <= 0) continue;
    fits[rate].add(costs.compute(sample.instruction, 0, sample.rows),
                   shapes.work(sample.instruction, 0, sample.rows).bytes, sample.seconds);
  }
  for (const auto& [rate, fit] : fits) *rate = rounded(fit.rate());
}

void FitError::add(const std::string& what, double predicted, double measured) {
  constexpr double kFar = 0.3;  // three times the usual error on an idle machine
  spdlog::debug("{}: {:.2f} ms, predicted {:.2f} ms", what, 1e3 * measured, 1e3 * predicted);
  const double error = predicted / measured - 1;
  errors_.push_back(error);
  if (std::abs(error) > kFar && std::abs(predicted - measured) > kUnnoticedSeconds) {
    far_.push_back(fmt::format("{} ({:+.0f} %)", what, 100 * error));
  }
}

std::string FitError::text() const {
  if (errors_.empty()) return "not checked";
  std::vector<double> sizes;
  for (const double error : errors_) sizes.push_back(std::abs(error));
  return fmt::format("{:.1f} % median, {:.1f} % at most", 100 * median(sizes),
                     100 * *std::ranges::max_element(sizes));
}

double rounded(double value) {
  if (value == 0) return 0;
  const double unit = std::pow(10.0, std::floor(std::log10(std::abs(value))) - 3);
  return std::stod(fmt::format("{:.4g}", std::round(value / unit) * unit));
}

}  // namespace cadenza::app
