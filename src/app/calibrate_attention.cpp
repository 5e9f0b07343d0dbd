// SPDX-License-Identifier: Apache-2.0
// Core attention over a grid of queries and keys.
#include <fmt/format.h>

#include <algorithm>

#include "cadenza/plan/plan.hpp"
#include "cadenza/simulate/costs.hpp"
#include "calibration.hpp"
#include "measure_attention.hpp"

namespace cadenza::app {
namespace {

using program::Pass;

constexpr std::int64_t kTile = 128;     // of the tuned kernels (kernels/README.md)
constexpr std::int64_t kTokens = 4096;  // of a call of short documents: many of them
constexpr double kLongest = 8;          // seconds of a call; larger ones are left out
constexpr Pass kPasses[] = {Pass::forward, Pass::backward};

/// 128, 512, 2048, ... and the longest document.
std::vector<std::int64_t> grid(std::int64_t longest) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = kTile; size < longest; size *= 4) sizes.push_back(size);
  sizes.push_back(longest);
  return sizes;
}

AttentionCase filled(std::int64_t queries, std::int64_t keys, Rule rule = Rule::causal) {
  return {queries, keys, std::max<std::int64_t>(1, kTokens / keys), rule};
}

Task task_of(const AttentionCase& work, std::int64_t heads) {
  return {0, {work.keys - work.queries, work.keys}, {0, work.keys}, {0, heads}, work.rule};
}

/// Ascending by what a call takes.
std::vector<AttentionCase> cases(std::int64_t longest) {
  std::vector<AttentionCase> found;
  for (const std::int64_t keys : grid(longest)) {
    for (const std::int64_t queries : grid(longest)) {
      if (queries <= keys) found.push_back(filled(queries, keys));
    }
  }
  const auto pairs = [](const AttentionCase& work) {
    return forward_flops(task_of(work, 1), 1) * static_cast<double>(work.count);
  };
  std::ranges::sort(found, {}, pairs);
  return found;
}

/// Shapes between those of the grid, and tasks of other forms.
std::vector<AttentionCase> checks(std::int64_t longest) {
  std::vector<AttentionCase> found;
  for (const AttentionCase& work :
       {filled(256, 256), filled(1024, 1024), filled(256, 4096), filled(1000, 3000),
        filled(4096, 4096), filled(1024, 1024, Rule::full), filled(1024, 8192, Rule::full)}) {
    if (work.keys <= longest) found.push_back(work);
  }
  return found;
}

}  // namespace

template <typename Real>
void Calibration<Real>::measure_attention() {
  config::AttentionTimes& times = machine_.attention;
  const std::int64_t longest = std::max(experiment_.data.max_document, kTile);
  MemoryLedger ledger;
  AttentionMeasurement<Real> measured(world_, experiment_.model, std::max(longest, kTokens),
                                      ledger);
  times.tile = kTile;
  const double one = measured.seconds({kTile, kTile, 1}, Pass::forward);
  const double many = measured.seconds(filled(kTile, kTile), Pass::forward);
  const auto count = static_cast<double>(filled(kTile, kTile).count);
  times.launch_seconds = rounded(std::max(0.0, one - (many - one) / (count - 1)));
  for (const Pass pass : kPasses) {
    auto& table = pass == Pass::forward ? times.forward : times.backward;
    double seconds_per_flop = 0;
    for (const AttentionCase& work : cases(longest)) {
      const auto count = static_cast<double>(work.count);
      const double flops = count * forward_flops(task_of(work, times.heads), 1);
      if (flops * seconds_per_flop > kLongest) break;
      const double seconds = measured.seconds(work, pass);
      seconds_per_flop = seconds / flops;
      // A document's own time: the call's floor counts once.
      const double each = times.launch_seconds + (seconds - times.launch_seconds) / count;
      table.push_back(
          {static_cast<double>(work.queries), static_cast<double>(work.keys), rounded(each)});
    }
    std::ranges::sort(table);
    say(fmt::format("attention {}: {} shapes up to {} x {}",
                    pass == Pass::forward ? "forward" : "backward", table.size(), table.back()[0],
                    table.back()[1]));
  }
  fit_tile_overhead(times);
  const program::Layout layout(one_rank(experiment_, rows_));
  const simulate::Costs costs(machine_, experiment_, layout);
  for (const Pass pass : kPasses) {
    for (const AttentionCase& work : checks(longest)) {
      const plan::PlacedTask task{0, task_of(work, times.heads), 0};
      const std::vector<const plan::PlacedTask*> tasks(static_cast<std::size_t>(work.count), &task);
      attention_error_.add(costs.attend(tasks, pass), measured.seconds(work, pass));
    }
  }
  say("attention: " + attention_error_.text());
}

template void Calibration<bfloat16>::measure_attention();
template void Calibration<float>::measure_attention();
template void Calibration<double>::measure_attention();

}  // namespace cadenza::app
