// SPDX-License-Identifier: Apache-2.0
// A file of budgets of heads, and a step simulated with them.
#include "cadenza/config/load.hpp"
#include "readers.hpp"
#include "small.hpp"

namespace cadenza::fuzz {
namespace {

config::Experiment sparse_experiment() {
  config::Experiment e;
  e.model = {
      .layers = 2, .d_model = 64, .heads = 4, .kv_heads = 2, .ffn = 96, .vocab = 64, .rope = {}};
  e.data.source = config::Source::synthetic;
  e.data.documents = 20;
  e.data.max_document = 256;
  e.data.lengths.median = 60;
  e.data.lengths.max = 256;
  e.batch.tokens = 1024;
  e.batch.microbatch = 256;
  e.parallel.data = 2;
  e.parallel.tensor = 2;
  e.attention.kind = config::AttentionKind::vertical_slash;
  e.attention.overlap = config::Overlap::none;
  e.attention.sparse.block = 8;
  e.attention.sparse.columns = 40;
  e.attention.sparse.dense_below = 32;
  e.attention.block = 16;
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
