// SPDX-License-Identifier: Apache-2.0
// The groups of ranks with which an executor communicates, and the sums of gradients over them.
#pragma once

#include <memory>
#include <vector>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/exec/device_communicator.hpp"
#include "cadenza/exec/memory/shards.hpp"
#include "cadenza/exec/tracer.hpp"
#include "cadenza/model/parameters.hpp"
#include "cadenza/program/program.hpp"
#include "exec/collectives/pipeline_p2p.hpp"

namespace cadenza::exec {

/// All splits of the world, made collectively. A dedicated server uses only the pool; its other
/// groups are idle.
struct Groups {
  /// @param transport  for device memory
  Groups(comm::Communicator& world, const program::StepShape& shape, config::Transport transport);

  std::unique_ptr<comm::Communicator> pool;      ///< the ranks that this rank's plans name
  std::unique_ptr<comm::Communicator> trainers;  ///< all trainers
  std::unique_ptr<comm::Communicator> replicas;  ///< trainers with the same parameters
  std::unique_ptr<comm::Communicator> model;  ///< trainers that together hold one copy of the model
  std::unique_ptr<comm::Communicator> context;  ///< trainers that share documents
  std::unique_ptr<comm::Communicator> tensor;   ///< trainers with slices of the same layers

  /// Inputs and results of attention in the pool, by half of the microbatch.
  std::vector<std::unique_ptr<DeviceCommunicator>> inputs, results;
  std::unique_ptr<DeviceCommunicator> gradients;  ///< gradients and parameters, among replicas
  std::unique_ptr<DeviceCommunicator> slices;     ///< among the tensor group
  std::unique_ptr<PipelineEdges> streams;         ///< between neighbouring pipeline stages
};

// --- Sums of gradients ---

// Sums gradients over the ranks that hold the same parameters, layer by layer while the backward
// pass runs, and gathers updated weights if every rank updates a share (ZeRO-1, arXiv 1910.02054:
// masters and moments are sharded, weights and gradients are whole).

template <typename Real>
class GradientReducer {
 public:
  using Sum = Accumulator<Real>;

  /// @param replicas  ranks with the same parameters
  /// @param shards    whether every rank owns a share: parameters.owned is GradientShards::owned
  GradientReducer(model::Parameters<Real>& parameters, DeviceCommunicator& replicas, bool shards,
                  Tracer& tracer, MemoryLedger& ledger);

  /// Starts the sum of a layer whose gradients are complete on this rank.
  void post_layer(int layer);
  /// Sums the gradients outside layers and completes all sums.
  void finish();
  /// Gathers updated weights from their owners.
  void gather_parameters();
  /// Returns the masters or a moment of all elements, gathered from their owners, in host memory.
  /// Collective.
  std::vector<Sum> gather_owned(const Array<Sum>& owned);
  std::vector<Sum> gather_masters();

 private:
  int rank() const { return replicas_.rank(); }
  void post(std::size_t bucket);
  void complete(std::size_t bucket);

  model::Parameters<Real>& parameters_;
  DeviceCommunicator& replicas_;
  bool shards_;
  Tracer& tracer_;
  GradientShards shares_;
  std::vector<Array<Sum>> sums_;         ///< this rank's share, by bucket; empty without shards
  std::vector<std::int64_t> posted_ns_;  ///< by bucket; 0: not posted
};

}  // namespace cadenza::exec
