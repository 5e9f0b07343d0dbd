// SPDX-License-Identifier: Apache-2.0
#include "app/train/sparse_remark.hpp"

#include <fmt/format.h>

namespace cadenza::app {

std::string never_sparse(const config::Experiment& experiment) {
  const SparseRule rule = experiment.attention.sparse_rule();
  if (rule.block == 0) return "";  // not a sparse kind
  const std::int64_t longest =
      experiment.data.max_document > 0 ? experiment.data.max_document : experiment.batch.microbatch;
  if (rule.is_dense(longest)) {
    return fmt::format(
        "dense in all documents: they have at most {} tokens, attention.sparse.dense_below is {}",
        longest, rule.dense_below);
  }
  const std::int64_t dense = experiment.attention.sparse.dense_steps;
  if (dense >= experiment.run.steps) {
    return fmt::format("dense in all steps: attention.sparse.dense_steps is {}, run.steps {}",
                       dense, experiment.run.steps);
  }
  return "";
}

}  // namespace cadenza::app
