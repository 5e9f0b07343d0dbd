// SPDX-License-Identifier: Apache-2.0
// A machine: how fast one rank computes and how ranks are connected. One YAML file each
// (inputs/machines, docs/simulation.md); `cadenza calibrate` writes one for the machine at hand.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cadenza/config/experiment.hpp"

namespace cadenza::config {

/// A row of a table in a machine file: [a, b, c] or [a, b, c, d].
template <std::size_t N>
using Row = std::array<double, N>;

/// Pairs of sparse attention: the time of one over that of a pair of dense attention.
struct SparsePairs {
  double pair = 1.25;         ///< where the table is empty, both passes
  std::vector<Row<3>> table;  ///< tokens of a side of a block, forward, backward
};

/// What makes the index of sparse attention. The default is nominal.
struct IndexRates {
  double flops_per_second = 5e10;  ///< logits
  double scores_per_second = 1e9;  ///< logits that a pass over them in memory goes through
  double masses_per_second = 1e8;  ///< numbers that patterns are chosen from
};

/// Times of core attention: a document's last `queries` tokens see all of its `keys` tokens
/// (causal), on one rank. The default is a nominal 5e10 FLOP/s everywhere.
struct AttentionTimes {
  std::int64_t heads = 1;  ///< query heads, key heads and width of the measurements
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 128;
  std::int64_t tile = 1;           ///< queries and keys that the kernel takes at a time
  double tile_overhead = 0;        ///< fixed cost of a tile of queries, in tiles of keys
  double launch_seconds = 0;       ///< of a call, whatever its tasks
  double flops_per_second = 5e10;  ///< where the tables are empty, both passes
  std::vector<Row<3>> forward;     ///< queries, keys, seconds
  std::vector<Row<3>> backward;
  SparsePairs sparse;
  IndexRates index;
};

/// Rates of matrix products: rows x columns x depth.
struct ProductRates {
  double flops_per_second = 5e10;  ///< where the table is empty
  std::vector<Row<4>> table;       ///< rows, columns, depth, FLOP/s
};

/// Bytes per second of an operation's element-wise part, by pass; 0: as ElementWise says.
struct PassRates {
  double forward = 0;
  double backward = 0;
};

/// Bytes per second of rows into messages and of messages into rows; 0: as ElementWise says.
struct CopyRates {
  double pack = 0;
  double unpack = 0;
};

/// All work that is no matrix product and no attention, by the bytes it reads and writes.
struct ElementWise {
  double bytes_per_second = 1e30;
  PassRates attention_inputs;   ///< norm, rotation
  PassRates attention_outputs;  ///< norm, SwiGLU, residuals
  double attention_delta = 0;   ///< rowsum(dO * O)
  PassRates embedding;
  double loss = 0;   ///< softmax, cross entropy; both passes at once
  CopyRates copies;  ///< by the message's bytes
  CopyRates slices;  ///< the same where messages have some heads of their rows; 0: as copies
  double optimizer = 0;
};

struct Link {
  double latency_seconds = 2e-6;
  double bytes_per_second = 5e9;  ///< in each direction
  /// Of what a rank sends in a ring that gathers or sums; 0: as bytes_per_second.
  double gather_bytes_per_second = 0;
  double reduce_bytes_per_second = 0;
};

struct Links {
  Link inside;                ///< of a node, per rank
  Link between;               ///< nodes, per network adapter
  std::int64_t adapters = 0;  ///< of a node, shared evenly by its ranks; 0: one per rank
};

struct Machine {
  std::string name = "nominal";
  std::string source = "not measured, only to compare plans";  ///< of the numbers
  Dtype dtype = Dtype::float32;                                ///< that they were measured with
  std::int64_t ranks_per_node = 0;                             ///< 0: all ranks on one
  std::int64_t memory = 0;                                     ///< bytes of a rank; 0: not known
  double peak_flops_per_second = 0;  ///< of a rank, for utilization; 0: not known
  AttentionTimes attention;
  ProductRates products;
  ElementWise element_wise;
  Links links;
};

/// Parses a machine file, as strictly as an experiment.
/// @throws Error(usage) with "file:line: key.path: found ...; valid: ..."
Machine parse_machine(const std::string& text, const std::string& file);

/// The machine as YAML that parse_machine reads back to the same.
std::string to_yaml(const Machine& machine);

}  // namespace cadenza::config
