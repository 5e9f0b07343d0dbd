// SPDX-License-Identifier: Apache-2.0
#include "config/data_sheet.hpp"

#include <fmt/ranges.h>

namespace cadenza::config {
namespace {

// What programs reach of a data sheet's numbers, on clusters that were measured: products and links
// of h200.yaml, attention of FlashAttention-2 on A100 (arXiv 2307.08691: 50 to 73 %), which newer
// processors reach with kernels of their own (FlashAttention-3 on H100, arXiv 2407.08608: 75 %
// forward).
constexpr double kProducts = 0.705;
constexpr double kAttention = 0.61;
constexpr double kMemory = 0.8;
constexpr double kLinks = 0.807;
// Scattered rows of attention are copied at this part of memory's rate, as fitted in h200.yaml.
constexpr double kCopies = 1.0 / 24;
// Of computing beside collectives, fitted to published steps on H100 (docs/software.md).
constexpr double kComputeShare = 0.5;
constexpr double kInsideLatency = 3e-6, kBetweenLatency = 5e-6, kLaunch = 2e-5;  // seconds
// Sparse attention: assumed, as no kernel of it was measured (inputs/machines/h100.yaml).
constexpr double kSparsePair = 1.4;
constexpr double kLogitFlops = 32;  // FLOPs of logits in the time of a byte of memory
constexpr double kScoreBytes = 6;   // bytes in the time of a pass over a logit
constexpr double kMassBytes = 320;  // bytes in the time of a choice among masses

/// Blocks of fewer than 64 tokens leave tiles partly empty.
std::vector<Row<3>> sparse_table() {
  std::vector<Row<3>> rows;
  for (const double block : {1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0}) {
    const double pair = kSparsePair * 64 / block;
    rows.push_back({block, pair, pair});
  }
  return rows;
}

void require_numbers(const Value& root, const Machine& machine) {
  std::vector<std::string> missing;
  const auto require = [&](const char* key, double number) {
    if (number == 0) missing.emplace_back(key);
  };
  const DataSheet& sheet = machine.sheet;
  require("flops_per_second", sheet.flops_per_second);
  require("memory_bytes_per_second", sheet.memory_bytes_per_second);
  require("link_bytes_per_second", sheet.link_bytes_per_second);
  if (machine.ranks_per_node > 0) {
    require("network_bytes_per_second", sheet.network_bytes_per_second);
  }
  if (missing.empty()) return;
  fail_at(place_of(root, "sheet"), "sheet",
          fmt::format("found no {}; valid: all numbers of the data sheet, per rank",
                      fmt::join(missing, ", no ")));
}

}  // namespace

bool has_sheet(const Machine& machine) {
  const DataSheet& sheet = machine.sheet;
  return sheet.flops_per_second + sheet.memory_bytes_per_second + sheet.link_bytes_per_second +
             sheet.network_bytes_per_second >
         0;
}

void complete_from_sheet(const Value& root, Machine& machine) {
  require_numbers(root, machine);
  const auto derive = [&](const char* path, auto& field, auto value) {
    if (!gives(root, path)) field = value;
  };
  const DataSheet& sheet = machine.sheet;
  const double memory = kMemory * sheet.memory_bytes_per_second;
  const double copies = kCopies * sheet.memory_bytes_per_second;
  derive("dtype", machine.dtype, Dtype::bfloat16);  // the type of the sheet's dense products
  derive("peak_flops_per_second", machine.peak_flops_per_second, sheet.flops_per_second);

  AttentionTimes& attention = machine.attention;
  derive("attention.flops_per_second", attention.flops_per_second,
         kAttention * sheet.flops_per_second);
  derive("attention.tile", attention.tile, 128);
  derive("attention.tile_overhead", attention.tile_overhead, 1.0);
  derive("attention.launch_seconds", attention.launch_seconds, kLaunch);
  derive("attention.sparse.pair", attention.sparse.pair, kSparsePair);
  derive("attention.sparse.table", attention.sparse.table, sparse_table());
  IndexRates& index = attention.index;
  derive("attention.index.flops_per_second", index.flops_per_second, memory * kLogitFlops);
  derive("attention.index.scores_per_second", index.scores_per_second, memory / kScoreBytes);
  derive("attention.index.masses_per_second", index.masses_per_second, memory / kMassBytes);

  derive("products.flops_per_second", machine.products.flops_per_second,
         kProducts * sheet.flops_per_second);
  derive("element_wise.bytes_per_second", machine.element_wise.bytes_per_second, memory);
  derive("element_wise.copies.pack", machine.element_wise.copies.pack, copies);
  derive("element_wise.copies.unpack", machine.element_wise.copies.unpack, copies);

  Links& links = machine.links;
  derive("links.inside.bytes_per_second", links.inside.bytes_per_second,
         kLinks * sheet.link_bytes_per_second);
  derive("links.inside.latency_seconds", links.inside.latency_seconds, kInsideLatency);
  derive("links.compute_share", links.compute_share, kComputeShare);
  if (machine.ranks_per_node == 0) return;
  derive("links.between.bytes_per_second", links.between.bytes_per_second,
         sheet.network_bytes_per_second);
  derive("links.between.latency_seconds", links.between.latency_seconds, kBetweenLatency);
}

}  // namespace cadenza::config
