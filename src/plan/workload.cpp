// SPDX-License-Identifier: Apache-2.0
#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"

namespace cadenza::plan {
namespace {

AttentionShape attention_shape(const config::Experiment& experiment) {
  AttentionShape shape;
  shape.heads = static_cast<int>(experiment.model.heads);
  shape.kv_heads = static_cast<int>(experiment.model.kv_heads);
  shape.head_dim = static_cast<int>(experiment.model.head_dim());
  const config::ElementBytes bytes = config::element_bytes(experiment.run.dtype);
  shape.element_bytes = bytes.element;
  shape.accumulator_bytes = bytes.accumulator;
  return shape;
}

}  // namespace

std::vector<Rank> attention_servers(const config::Experiment& experiment) {
  const bool in_place = experiment.attention.servers == 0;
  std::vector<Rank> servers;
  for (std::int64_t rank = in_place ? 0 : experiment.parallel.trainers(); rank < experiment.ranks();
       ++rank) {
    servers.push_back(static_cast<Rank>(rank));
  }
  return servers;
}

Workload make_workload(const config::Experiment& experiment, const data::Batch& batch, int tick) {
  const std::int64_t data_ranks = experiment.parallel.data;
  const auto ticks = static_cast<std::int64_t>(batch.microbatches.size()) / data_ranks;
  if (tick < 0 || tick >= ticks) {
    fail(ExitCode::usage, "plan: found tick {}, step {} has ticks [0, {})", tick, batch.step,
         ticks);
  }
  Workload workload;
  workload.ranks = static_cast<int>(experiment.ranks());
  workload.shape = attention_shape(experiment);
  workload.servers = attention_servers(experiment);
  for (std::int64_t rank = 0; rank < data_ranks; ++rank) {
    const auto microbatch = static_cast<std::size_t>(tick * data_ranks + rank);
    for (const data::BatchDocument& document : batch.microbatches[microbatch].documents) {
      const int index = static_cast<int>(workload.lengths.size());
      workload.lengths.push_back(document.length());
      workload.homes.push_back({static_cast<Rank>(rank), index, {0, document.length()}});
    }
  }
  return workload;
}

}  // namespace cadenza::plan
