// SPDX-License-Identifier: Apache-2.0
// The groups of ranks that an executor talks to.
#pragma once

#include <memory>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/program/layout.hpp"

namespace cadenza::exec {

/// All splits of one world; made by all ranks together. Dedicated servers have groups of their own
/// that nobody uses, but for the pool.
struct Groups {
  Groups(comm::Communicator& world, const program::Layout& layout);

  std::unique_ptr<comm::Communicator> pool;      ///< the ranks that this rank's plans speak of
  std::unique_ptr<comm::Communicator> trainers;  ///< all of them
  std::unique_ptr<comm::Communicator> replicas;  ///< trainers with the same parameters
  std::unique_ptr<comm::Communicator> model;     ///< trainers that hold one model together
  std::unique_ptr<comm::Communicator> tensor;    ///< trainers with slices of the same layers
};

}  // namespace cadenza::exec
