// SPDX-License-Identifier: Apache-2.0
// Measures core attention over a grid of queries and keys.
#include <fmt/format.h>

#include <algorithm>

#include "app/calibrate/calibration.hpp"
#include "app/calibrate/measure.hpp"
#include "cadenza/plan/plan.hpp"
#include "cadenza/simulate/costs.hpp"

namespace cadenza::app {
namespace {

using program::Pass;

constexpr std::int64_t kTile = 128;     // of the tuned kernels (kernels/README.md)
constexpr std::int64_t kTokens = 4096;  // of a call with short documents: many of them
constexpr double kLongest = 8;          // seconds of a call; longer ones are skipped
constexpr std::int64_t kLongestSparse = 8192;
constexpr std::int64_t kBlocks[] = {4, 16, 32, 64, 128};  // stripes have a part of each block
constexpr std::int64_t kBlockBetween = 48;                // for the check
constexpr Pass kPasses[] = {Pass::forward, Pass::backward};

/// Returns 128, 512, 2048, ... and the longest document.
std::vector<std::int64_t> grid(std::int64_t longest) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = kTile; size < longest; size *= 4) sizes.push_back(size);
  sizes.push_back(longest);
  return sizes;
}

AttentionCase filled(std::int64_t queries, std::int64_t keys, Band band = Band::causal()) {
  return {queries, keys, std::max<std::int64_t>(1, kTokens / keys), band};
}

Task task_of(const AttentionCase& work, std::int64_t heads) {
  return {0, {work.keys - work.queries, work.keys}, {0, work.keys}, {0, heads}, work.band};
}

/// Returns the kept share of the task's pairs.
double kept_share(const AttentionCase& work) {
  if (work.block == 0) return 1;
  return static_cast<double>(pattern_of(work).pairs()) /
         static_cast<double>(Mask{}.pairs({0, work.keys}));
}

double flops_of(const AttentionCase& work) {
  return forward_flops(task_of(work, 1), 1) * static_cast<double>(work.count) * kept_share(work);
}

std::vector<AttentionCase> cases(std::int64_t longest) {
  std::vector<AttentionCase> found;
  for (const std::int64_t keys : grid(longest)) {
    for (const std::int64_t queries : grid(longest)) {
      if (queries <= keys) found.push_back(filled(queries, keys));
    }
  }
  return found;
}

/// Returns a sparse document whose dense attention is in the table.
AttentionCase sparse(std::int64_t longest, std::int64_t block, bool adjoining) {
  std::int64_t keys = 0;
  for (const std::int64_t size : grid(longest)) {
    if (size <= kLongestSparse) keys = size;
  }
  return {keys, keys, 1, Band::causal(), block, adjoining};
}

std::vector<AttentionCase> sparse_cases(std::int64_t longest, bool adjoining) {
  std::vector<AttentionCase> found;
  for (const std::int64_t block : kBlocks) found.push_back(sparse(longest, block, adjoining));
  return found;
}

/// Returns cases for the check: shapes between those of the grid, and other forms of tasks.
std::vector<AttentionCase> checks(std::int64_t longest) {
  std::vector<AttentionCase> found;
  for (const AttentionCase& work :
       {filled(256, 256), filled(1024, 1024), filled(256, 4096), filled(1000, 3000),
        filled(4096, 4096), filled(1024, 1024, Band::full()), filled(1024, 8192, Band::full())}) {
    if (work.keys <= longest) found.push_back(work);
  }
  for (const bool adjoining : {false, true}) {
    found.push_back(sparse(longest, kBlockBetween, adjoining));
  }
  return found;
}

const AttentionCase kOneTile{kTile, kTile, 1};

std::string name_of(const AttentionCase& work, Pass pass) {
  return fmt::format("attention {} {} x {} x {}{}", pass == Pass::forward ? "forward" : "backward",
                     work.count, work.queries, work.keys,
                     work.block > 0        ? fmt::format(" in {}blocks of {}",
                                                  work.adjoining ? "adjoining " : "", work.block)
                     : work.band.is_full() ? " full"
                                           : "");
}

}  // namespace

template <typename Real>
void Calibration<Real>::add_attention() {
  std::vector<AttentionCase> all = cases(longest_);
  for (const AttentionCase& work : checks(longest_)) all.push_back(work);
  for (const bool adjoining : {false, true}) {
    for (const AttentionCase& work : sparse_cases(longest_, adjoining)) all.push_back(work);
  }
  all.push_back(kOneTile);
  std::ranges::sort(all, {}, flops_of);
  for (const Pass pass : kPasses) {
    for (const AttentionCase& work : all) {
      works_.push_back({name_of(work, pass),
                        [this, work, pass] { measure_attention(work, pass); },
                        {&attention_rounds_[{work, pass}]}});
    }
  }
}

/// Measures a case, unless it would take too long.
template <typename Real>
void Calibration<Real>::measure_attention(const AttentionCase& work, Pass pass) {
  double& seconds_per_flop = seconds_per_flop_[pass];
  if (flops_of(work) * seconds_per_flop > kLongest) return;
  const double seconds = attention_.seconds(work, pass);
  seconds_per_flop = seconds / flops_of(work);
  attention_rounds_.at({work, pass}).add(seconds);
}

/// Returns the seconds of a case; 0 if it was skipped.
template <typename Real>
double Calibration<Real>::attention_seconds(const AttentionCase& work, Pass pass) const {
  const Rounds& rounds = attention_rounds_.at({work, pass});
  return rounds.empty() ? 0.0 : rounds.seconds();
}

template <typename Real>
void Calibration<Real>::fit_attention() {
  config::AttentionTimes& times = machine_.attention;
  times.tile = kTile;
  const AttentionCase tiles = filled(kTile, kTile);
  const double one = attention_seconds(kOneTile, Pass::forward);
  const double all = attention_seconds(tiles, Pass::forward);
  const auto others = static_cast<double>(tiles.count - 1);
  times.launch_seconds = rounded(std::max(0.0, one - (all - one) / others));
  for (const Pass pass : kPasses) {
    auto& table = pass == Pass::forward ? times.forward : times.backward;
    for (const AttentionCase& work : cases(longest_)) {
      const double seconds = attention_seconds(work, pass);
      if (seconds == 0) continue;
      // Time of one document: the constant cost of the call counts once.
      const double each =
          times.launch_seconds + (seconds - times.launch_seconds) / static_cast<double>(work.count);
      table.push_back(
          {static_cast<double>(work.queries), static_cast<double>(work.keys), rounded(each)});
    }
    std::ranges::sort(table);
  }
  fit_tile_overhead(times);
}

template <typename Real>
void Calibration<Real>::fit_sparse() {
  config::SparsePairs& sparse = machine_.attention.sparse;
  auto apart = sparse_rows(false);
  auto adjoining = sparse_rows(true);
  sparse.table = std::move(apart);
  sparse.adjoining = std::move(adjoining);
}

/// Fits the times of a pair relative to one of the longest dense tasks.
template <typename Real>
std::vector<config::Row<3>> Calibration<Real>::sparse_rows(bool adjoining) const {
  const simulate::Costs costs(machine_, experiment_, program::Layout(one_rank(experiment_, rows_)));
  const double nominal = machine_.attention.sparse.pair;
  std::vector<config::Row<3>> rows;
  for (const AttentionCase& work : sparse_cases(longest_, adjoining)) {
    const double forward = attention_seconds(work, Pass::forward);
    const double backward = attention_seconds(work, Pass::backward);
    if (forward == 0 || backward == 0) continue;
    const auto pairs = static_cast<double>(pattern_of(work).pairs() * machine_.attention.heads);
    const auto pair = [&](double seconds, Pass pass) {
      // The machine has no table yet, so it prices every pair as the same number of dense ones.
      const double dense = costs.sparse_pair(work.block, 0, pass) / nominal;
      return rounded((seconds - costs.launch_seconds()) / (pairs * dense));
    };
    rows.push_back({static_cast<double>(work.block), pair(forward, Pass::forward),
                    pair(backward, Pass::backward)});
  }
  return rows;
}

template <typename Real>
void Calibration<Real>::check_attention() {
  const program::Layout layout(one_rank(experiment_, rows_));
  const simulate::Costs costs(machine_, experiment_, layout);
  for (const Pass pass : kPasses) {
    for (const AttentionCase& work : checks(longest_)) {
      const double seconds = attention_seconds(work, pass);
      if (seconds == 0) continue;
      const plan::PlacedTask task{0,          task_of(work, machine_.attention.heads),
                                  0,          kept_share(work),
                                  work.block, work.adjoining ? 1.0 : 0.0};
      const std::vector<const plan::PlacedTask*> tasks(static_cast<std::size_t>(work.count), &task);
      const double predicted = costs.attend(tasks, pass);
      attention_error_.add(name_of(work, pass), predicted, seconds);
    }
  }
}

#define CADENZA_INSTANTIATE(Real)                   \
  template void Calibration<Real>::add_attention(); \
  template void Calibration<Real>::fit_attention(); \
  template void Calibration<Real>::fit_sparse();    \
  template void Calibration<Real>::check_attention();
CADENZA_INSTANTIATE(bfloat16)
CADENZA_INSTANTIATE(float)
CADENZA_INSTANTIATE(double)
#undef CADENZA_INSTANTIATE

}  // namespace cadenza::app
