// SPDX-License-Identifier: Apache-2.0
// A machine file, described once, as schema.hpp describes an experiment.
#pragma once

#include "cadenza/config/machine.hpp"
#include "schema.hpp"

namespace cadenza::config {

template <typename Visitor>
void describe(Visitor& visit, AttentionTimes& attention) {
  visit.key("heads", attention.heads, Integers{1, kMaxSize});
  visit.key("kv_heads", attention.kv_heads, Integers{1, kMaxSize});
  visit.key("head_dim", attention.head_dim, Integers{1, kMaxSize});
  visit.key("tile", attention.tile, Integers{1, kMaxSize});
  visit.key("tile_overhead", attention.tile_overhead, kNotNegative);
  visit.key("launch_seconds", attention.launch_seconds, kNotNegative);
  visit.key("flops_per_second", attention.flops_per_second, kPositive);
  visit.key("forward", attention.forward, kPositive);
  visit.key("backward", attention.backward, kPositive);
}

template <typename Visitor>
void describe(Visitor& visit, ProductRates& products) {
  visit.key("flops_per_second", products.flops_per_second, kPositive);
  visit.key("table", products.table, kPositive);
}

template <typename Visitor>
void describe(Visitor& visit, PassRates& rates) {
  visit.key("forward", rates.forward, kNotNegative);
  visit.key("backward", rates.backward, kNotNegative);
}

template <typename Visitor>
void describe(Visitor& visit, CopyRates& rates) {
  visit.key("pack", rates.pack, kNotNegative);
  visit.key("unpack", rates.unpack, kNotNegative);
}

template <typename Visitor>
void describe(Visitor& visit, ElementWise& work) {
  visit.key("bytes_per_second", work.bytes_per_second, kPositive);
  visit.block("attention_inputs", work.attention_inputs);
  visit.block("attention_outputs", work.attention_outputs);
  visit.key("attention_delta", work.attention_delta, kNotNegative);
  visit.block("embedding", work.embedding);
  visit.key("loss", work.loss, kNotNegative);
  visit.block("copies", work.copies);
  visit.block("slices", work.slices);
  visit.key("optimizer", work.optimizer, kNotNegative);
}

template <typename Visitor>
void describe(Visitor& visit, Link& link) {
  visit.key("latency_seconds", link.latency_seconds, kNotNegative);
  visit.key("bytes_per_second", link.bytes_per_second, kPositive);
  visit.key("gather_bytes_per_second", link.gather_bytes_per_second, kNotNegative);
  visit.key("reduce_bytes_per_second", link.reduce_bytes_per_second, kNotNegative);
}

template <typename Visitor>
void describe(Visitor& visit, Links& links) {
  visit.block("inside", links.inside);
  visit.block("between", links.between);
  visit.key("adapters", links.adapters, Integers{0, kMaxRanks});
}

template <typename Visitor>
void describe(Visitor& visit, Machine& machine) {
  visit.required("name", machine.name, "what tables and plots call the machine");
  visit.required("source", machine.source, "where its numbers come from");
  visit.key("dtype", machine.dtype);
  visit.key("ranks_per_node", machine.ranks_per_node, Integers{0, kMaxRanks});
  visit.key("memory", machine.memory, Integers{0, kMaxBytes});
  visit.key("peak_flops_per_second", machine.peak_flops_per_second, kNotNegative);
  visit.block("attention", machine.attention);
  visit.block("products", machine.products);
  visit.block("element_wise", machine.element_wise);
  visit.block("links", machine.links);
}

}  // namespace cadenza::config
