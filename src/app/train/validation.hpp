// SPDX-License-Identifier: Apache-2.0
// Validation during training: the loss of documents that training does not see (data.validation).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/exec/executor.hpp"
#include "cadenza/exec/memory/estimate.hpp"

namespace cadenza::app {

class Validation {
 public:
  /// Opens the documents.
  /// @param speaks  whether this process prints for the user
  /// @throws Error(data), Error(usage)
  Validation(const config::Experiment& training, const config::Machine& machine,
             const exec::MemoryLimit& memory_limit, bool speaks);

  /// Whether losses are measured after this many updates.
  bool is_due(std::int64_t updates) const;

  /// Measures the mean loss over all targets, by forward passes on what the executor trains.
  /// Collective. @return nothing if a signal asks the run to stop
  template <typename Real>
  std::optional<double> measure(comm::Communicator& world, exec::Executor<Real>& executor,
                                const SparseEstimate& estimate) const;

 private:
  program::StepPlan plan(comm::Communicator& world, std::int64_t step,
                         const SparseEstimate& estimate) const;

  config::Experiment training_;
  config::Experiment experiment_;  ///< whose steps are forward passes
  config::Machine machine_;
  exec::MemoryLimit memory_limit_;
  std::unique_ptr<data::Corpus> corpus_;
  data::Packer packer_;
  std::int64_t steps_;
};

}  // namespace cadenza::app
