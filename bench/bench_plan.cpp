// SPDX-License-Identifier: Apache-2.0
// How planning grows: CAD over servers and documents, on one core.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "cadenza/base/random.hpp"
#include "cadenza/plan/placement.hpp"
#include "cadenza/plan/validate.hpp"

namespace {

using namespace cadenza;

constexpr std::int64_t kTokens = 65536;  // of a server

/// Mostly some thousand tokens, a few of a whole server's or more: the shape of pretraining
/// corpora, where one document of 200 is longer than 64K and those hold most of the pairs.
std::int64_t draw_length(std::uint64_t seed, std::uint64_t i) {
  const double median = random_uniform(seed, 0, i) < 0.015 ? 40000 : 2500;
  const double length = median * std::exp(0.9 * random_normal(seed, 1, i));
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(length), 16, 131072);
}

/// Documents of a mean of servers * kTokens / documents tokens, laid one after another so that
/// every server has kTokens of them; what spans servers is cut, as packing does.
plan::Workload make_workload(int servers, int documents, std::uint64_t seed) {
  plan::Workload w;
  w.ranks = servers;
  w.shape = {32, 8, 128, 2, 4};
  for (Rank rank = 0; rank < servers; ++rank) w.servers.push_back(rank);
  std::vector<double> lengths(static_cast<std::size_t>(documents));
  double sum = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    sum += lengths[i] = static_cast<double>(draw_length(seed, i));
  }
  const double scale = static_cast<double>(kTokens) * servers / sum;
  std::int64_t used = 0;
  for (const double length : lengths) {
    std::int64_t left = std::max<std::int64_t>(1, static_cast<std::int64_t>(length * scale));
    while (left > 0 && used < kTokens * servers) {
      const std::int64_t piece = std::min(left, kTokens - used % kTokens);
      w.homes.push_back(
          {static_cast<Rank>(used / kTokens), static_cast<int>(w.lengths.size()), {0, piece}});
      w.lengths.push_back(piece);
      left -= piece;
      used += piece;
    }
  }
  return w;
}

template <typename Call>
double best_ms(int repeats, Call call) {
  double best = 1e300;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  return best;
}

/// Bytes that a plan holds.
std::size_t bytes(const plan::Plan& plan) {
  std::size_t total = plan.merges.capacity() * sizeof(plan::Merge);
  for (const plan::Merge& merge : plan.merges)
    total += merge.contributors.capacity() * sizeof(Rank);
  for (const plan::Stage& stage : plan.stages) {
    total += stage.moves.capacity() * sizeof(plan::Move) +
             stage.tasks.capacity() * sizeof(plan::PlacedTask);
  }
  return total;
}

void print_row(int servers, int documents, const config::Attention& attention, int repeats) {
  const plan::Workload workload = make_workload(servers, documents, 1);
  plan::Plan forward, backward;
  const double plan_ms = best_ms(repeats, [&] { forward = plan::cad(workload, attention); });
  const double mirror_ms = best_ms(repeats, [&] { backward = plan::mirror(forward); });
  bool valid = false;
  const double validate_ms = best_ms(repeats, [&] {
    valid = plan::violations(forward).empty() && plan::mirror_violations(forward, backward).empty();
  });
  std::size_t tasks = 0;
  std::size_t moves = 0;
  double sent = 0;
  for (const std::int64_t of_rank : forward.bytes_sent_per_rank) {
    sent += static_cast<double>(of_rank);
  }
  for (const plan::Stage& stage : forward.stages) {
    tasks += stage.tasks.size();
    moves += stage.moves.size();
  }
  const std::size_t held = bytes(forward);
  fmt::print(
      "{:>7}  {:>9}  {:>7}  {:>7}  {:>9.3f}  {:>9.3f}  {:>9.1f}  {:>9.2f}  {:>9.2f}  {:>11.2f}  "
      "{:>9}  {:>8}{}\n",
      servers, workload.lengths.size(), tasks, moves, imbalance(plan::colocated(workload)),
      imbalance(forward), sent / 1e6 / servers, plan_ms, mirror_ms, validate_ms, held, held / tasks,
      valid ? "" : "  INVALID");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Milliseconds to plan a tick with cad: the fastest of some repetitions.");
  int repeats = 5;
  config::Attention attention;
  attention.tolerance = 0.1;
  app.add_option("--repeats", repeats);
  app.add_option("--tolerance", attention.tolerance);
  app.add_option("--split-keys", attention.split_keys);
  std::vector<int> sizes = {8, 64, 512, 4096};
  app.add_option("--servers", sizes, "each with 8 documents per server");
  CLI11_PARSE(app, argc, argv);
  fmt::print(
      "{:>7}  {:>9}  {:>7}  {:>7}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>11}  {:>9}  {:>8}\n",
      "servers", "documents", "tasks", "moves", "imbalance", "with cad", "MB / rank", "plan ms",
      "mirror ms", "validate ms", "bytes", "per task");
  for (const int servers : sizes) print_row(servers, 8 * servers, attention, repeats);
  return 0;
}
