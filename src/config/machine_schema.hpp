// SPDX-License-Identifier: Apache-2.0
// The schema of a machine file, in the form of schema.hpp.
#pragma once

#include "cadenza/config/machine.hpp"
#include "config/schema.hpp"

namespace cadenza::config {

// A rate per second; the upper end means "costs nothing".
inline constexpr Numbers kRate{1.0, 1e30};
inline constexpr Numbers kRateOrNone{0.0, 1e30};
inline constexpr Numbers kSeconds{0.0, 1e6};
// Time of a pair of sparse attention divided by that of a pair of dense attention.
inline constexpr Numbers kPair{0.1, 1e3};
// Numbers in rows of tables: tokens and seconds, or sides of a product and FLOP/s.
inline constexpr Numbers kMeasured{0.0, 1e18, true};

template <typename Visitor>
void describe(Visitor& visit, DataSheet& sheet) {
  visit.key("flops_per_second", sheet.flops_per_second, kRateOrNone);
  visit.key("memory_bytes_per_second", sheet.memory_bytes_per_second, kRateOrNone);
  visit.key("link_bytes_per_second", sheet.link_bytes_per_second, kRateOrNone);
  visit.key("network_bytes_per_second", sheet.network_bytes_per_second, kRateOrNone);
}

template <typename Visitor>
void describe(Visitor& visit, SparsePairs& sparse) {
  visit.key("pair", sparse.pair, kPair);
  visit.key("table", sparse.table, kMeasured);
  visit.key("adjoining", sparse.adjoining, kMeasured);
}

template <typename Visitor>
void describe(Visitor& visit, IndexRates& index) {
  visit.key("flops_per_second", index.flops_per_second, kRate);
  visit.key("scores_per_second", index.scores_per_second, kRate);
  visit.key("masses_per_second", index.masses_per_second, kRate);
}

template <typename Visitor>
void describe(Visitor& visit, PassRates& rates) {
  visit.key("forward", rates.forward, kRateOrNone);
  visit.key("backward", rates.backward, kRateOrNone);
}

template <typename Visitor>
void describe(Visitor& visit, AttentionTimes& attention) {
  visit.key("heads", attention.heads, Integers{1, kMaxSize});
  visit.key("kv_heads", attention.kv_heads, Integers{1, kMaxSize});
  visit.key("head_dim", attention.head_dim, Integers{1, kMaxSize});
  visit.key("tile", attention.tile, Integers{1, 1 << 16});
  visit.key("tile_overhead", attention.tile_overhead, Numbers{0.0, 1e6});
  visit.key("launch_seconds", attention.launch_seconds, kSeconds);
  visit.key("flops_per_second", attention.flops_per_second, kRate);
  visit.block("fastest", attention.fastest);
  visit.key("forward", attention.forward, kMeasured);
  visit.key("backward", attention.backward, kMeasured);
  visit.block("sparse", attention.sparse);
  visit.block("index", attention.index);
}

template <typename Visitor>
void describe(Visitor& visit, ProductRates& products) {
  visit.key("flops_per_second", products.flops_per_second, kRate);
  visit.key("bytes_per_second", products.bytes_per_second, kRateOrNone);
  visit.key("table", products.table, kMeasured);
}

template <typename Visitor>
void describe(Visitor& visit, CopyRates& rates) {
  visit.key("pack", rates.pack, kRateOrNone);
  visit.key("unpack", rates.unpack, kRateOrNone);
}

template <typename Visitor>
void describe(Visitor& visit, ElementWise& work) {
  visit.key("bytes_per_second", work.bytes_per_second, kRate);
  visit.block("attention_inputs", work.attention_inputs);
  visit.block("attention_outputs", work.attention_outputs);
  visit.key("attention_delta", work.attention_delta, kRateOrNone);
  visit.block("embedding", work.embedding);
  visit.key("loss", work.loss, kRateOrNone);
  visit.block("copies", work.copies);
  visit.block("slices", work.slices);
  visit.block("streams", work.streams);
  visit.key("optimizer", work.optimizer, kRateOrNone);
}

template <typename Visitor>
void describe(Visitor& visit, Link& link) {
  visit.key("latency_seconds", link.latency_seconds, kSeconds);
  visit.key("bytes_per_second", link.bytes_per_second, kRate);
  visit.key("gather_bytes_per_second", link.gather_bytes_per_second, kRateOrNone);
  visit.key("reduce_bytes_per_second", link.reduce_bytes_per_second, kRateOrNone);
}

template <typename Visitor>
void describe(Visitor& visit, Fabric& fabric) {
  visit.key("nodes", fabric.nodes, Integers{0, kMostRanks});
  visit.key("share", fabric.share, Numbers{0.0, 1.0, true});
}

template <typename Visitor>
void describe(Visitor& visit, Links& links) {
  visit.block("inside", links.inside);
  visit.block("between", links.between);
  visit.key("adapters", links.adapters, Integers{0, 4096});
  visit.key("compute_share", links.compute_share, Numbers{0.0, 1.0});
  visit.key("host_bytes_per_second", links.host_bytes_per_second, kPositive);
  visit.block("fabric", links.fabric);
}

template <typename Visitor>
void describe(Visitor& visit, Machine& machine) {
  visit.required("name", machine.name, "what tables and plots call the machine");
  visit.required("source", machine.source, "where its numbers come from");
  visit.key("dtype", machine.dtype);
  visit.key("ranks_per_node", machine.ranks_per_node, Integers{0, kMostRanks});
  visit.key("memory", machine.memory, kBytes);
  visit.key("peak_flops_per_second", machine.peak_flops_per_second, kRateOrNone);
  visit.block("sheet", machine.sheet);
  visit.block("attention", machine.attention);
  visit.block("products", machine.products);
  visit.block("element_wise", machine.element_wise);
  visit.block("links", machine.links);
}

}  // namespace cadenza::config
