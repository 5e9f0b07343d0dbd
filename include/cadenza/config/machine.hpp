// SPDX-License-Identifier: Apache-2.0
// A machine: the speed of one rank and the links between ranks, in one YAML file per machine
// (inputs/machines, docs/simulation.md). `cadenza calibrate` writes that of the present machine.
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

/// The time of a pair of sparse attention divided by that of a pair of dense attention.
struct SparsePairs {
  double pair = 1.25;         ///< both passes, where the table is empty
  std::vector<Row<3>> table;  ///< side of a block in tokens, forward, backward
  std::vector<Row<3>>
      adjoining;  ///< the same where the active blocks of a row adjoin; empty: table
};

/// Rates of making the index of sparse attention. The defaults are nominal.
struct IndexRates {
  double flops_per_second = 5e10;  ///< products that give logits
  double scores_per_second = 1e9;  ///< logits visited by a pass over them in memory
  double masses_per_second = 1e8;  ///< masses visited when patterns are chosen
};

/// Rates by pass; of an operation's element-wise part, bytes per second (0:
/// ElementWise::bytes_per_second).
struct PassRates {
  double forward = 0;
  double backward = 0;
};

/// Times of core attention on one rank: the last `queries` tokens of a document of `keys` tokens,
/// causal. The default is a nominal 5e10 FLOP/s everywhere.
struct AttentionTimes {
  std::int64_t heads = 1;  ///< query heads, key heads and width of the measurements
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 128;
  std::int64_t tile = 1;           ///< queries and keys of a tile of the kernel
  double tile_overhead = 0;        ///< fixed cost of a tile of queries, in tiles of keys
  double launch_seconds = 0;       ///< fixed cost of a call
  double flops_per_second = 5e10;  ///< both passes, where the tables are empty
  PassRates fastest{1, 1};         ///< rates of the fastest known kernels, over those given here
  std::vector<Row<3>> forward;     ///< queries, keys, seconds
  std::vector<Row<3>> backward;
  SparsePairs sparse;
  IndexRates index;
};

/// Rates of matrix products: rows x columns x depth.
struct ProductRates {
  double flops_per_second = 5e10;  ///< where the table is empty, of products of any size
  /// Where the table is empty: of reading the factors and writing the result, which small products
  /// take longer for; 0: no time.
  double bytes_per_second = 0;
  std::vector<Row<4>> table;  ///< rows, columns, depth, FLOP/s
};

/// Bytes of a message per second of copying them into it and out of it.
struct CopyRates {
  double pack = 0;
  double unpack = 0;
};

/// Rates of all work other than matrix products and attention, by the bytes read and written.
struct ElementWise {
  double bytes_per_second = 1e30;
  PassRates attention_inputs;   ///< norm, rotation
  PassRates attention_outputs;  ///< norm, SwiGLU, residuals
  double attention_delta = 0;   ///< rowsum(dO * O)
  PassRates embedding;
  double loss = 0;    ///< softmax, cross entropy; both passes together
  CopyRates copies;   ///< rows of attention; 0: as bytes_per_second
  CopyRates slices;   ///< some heads of rows; 0: as `copies`
  CopyRates streams;  ///< residual streams between pipeline stages; 0: half of bytes_per_second
  double optimizer = 0;
};

struct Link {
  double latency_seconds = 2e-6;
  double bytes_per_second = 5e9;  ///< in each direction
  /// Bytes per second that a rank sends in a ring that gathers or sums; 0: as bytes_per_second.
  double gather_bytes_per_second = 0;
  double reduce_bytes_per_second = 0;
};

/// What is left of the adapters' bandwidth in rings over many nodes, whose messages meet in the
/// upper switches.
struct Fabric {
  std::int64_t nodes = 0;  ///< without such a loss; 0: any number
  double share = 1;        ///< of a ring over more nodes
};

struct Links {
  Link inside;                ///< inside a node, per rank
  Link between;               ///< between nodes, per network adapter
  std::int64_t adapters = 0;  ///< adapters of a node, shared evenly by its ranks; 0: one per rank
  /// Share of a rank's computing that is lost while a collective runs beside products: all of a
  /// processor's, whose cores copy its messages; on a device what its multiprocessors and memory
  /// give to messages.
  double compute_share = 1;
  /// Of a rank's memory from and to the host's: 16 lanes of PCI Express 4 where nothing is said.
  double host_bytes_per_second = 2.5e10;
  Fabric fabric;
};

/// What a data sheet says of a rank, from which rates that a file leaves out are derived.
struct DataSheet {
  double flops_per_second = 0;          ///< dense products in the machine's type; 0: no sheet
  double memory_bytes_per_second = 0;   ///< of its memory
  double link_bytes_per_second = 0;     ///< to the ranks of its node, in each direction
  double network_bytes_per_second = 0;  ///< of a network adapter, in each direction
};

struct Machine {
  std::string name = "nominal";
  std::string source = "not measured, only to compare plans";  ///< source of the numbers
  Dtype dtype = Dtype::float32;                                ///< type of the measurements
  std::int64_t ranks_per_node = 0;                             ///< 0: all ranks on one node
  std::int64_t memory = 0;                                     ///< bytes of a rank; 0: unknown
  double peak_flops_per_second = 0;  ///< peak of a rank, for utilization; 0: unknown
  DataSheet sheet;
  AttentionTimes attention;
  ProductRates products;
  ElementWise element_wise;
  Links links;
};

/// Parses a machine file, as strictly as an experiment.
/// @throws Error(usage) with "file:line: key.path: found ...; valid: ..."
Machine parse_machine(const std::string& text, const std::string& file);

/// Writes the machine as YAML that parse_machine reads back exactly.
std::string to_yaml(const Machine& machine);

}  // namespace cadenza::config
