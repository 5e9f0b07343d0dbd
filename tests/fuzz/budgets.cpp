// SPDX-License-Identifier: Apache-2.0
// A file of budgets of heads, and a step simulated with them.
#include "cadenza/config/load.hpp"
#include "readers.hpp"
#include "small.hpp"

namespace cadenza::fuzz {
namespace {

config::Experiment sparse_experiment() {
  config::Experiment e = four_ranks();
  e.attention.kind = config::AttentionKind::vertical_slash;
  e.attention.overlap = config::Overlap::none;
  e.attention.sparse.block = 8;
  e.attention.sparse.columns = 40;
  e.attention.sparse.dense_below = 32;
  return e;
}

}  // namespace

void read_budgets(Bytes input) {
  config::Experiment experiment = sparse_experiment();
  config::read_budgets(text_of(input), experiment);
  for (std::int64_t layer = 0; layer < experiment.model.layers; ++layer) {
    for (std::int64_t head = 0; head < experiment.model.heads; ++head) {
      const SparseRule rule = experiment.attention.sparse_rule(layer, head);
      require(rule.columns >= 0 && rule.slashes >= 0 && rule.columns + rule.slashes > 0 &&
                  rule.top_p >= 0 && rule.top_p <= 1,
              "accepted {} columns, {} slashes and {}", rule.columns, rule.slashes, rule.top_p);
    }
  }
  simulate_step(experiment, {});
}

}  // namespace cadenza::fuzz
