// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/least_time.hpp"

#include <algorithm>
#include <numeric>

#include "cadenza/program/operation_time.hpp"
#include "dense.hpp"

namespace cadenza::simulate {
namespace {

using config::Recompute;
using program::Operation;
using program::Pass;
using program::Step;

/// Of the pairs of a document, as plans weigh them before anything has been measured.
double kept_share(const SparseRule& rule, std::int64_t length) {
  const Weights weights(Mask{}, SparseDensity::of_budgets(rule, length), length);
  return static_cast<double>(weights.pairs({0, length})) /
         static_cast<double>(Weights(Mask{}, weights.unit()).pairs({0, length}));
}

/// Kernel time of one head of all documents of a microbatch.
double head_seconds(const data::Microbatch& microbatch, const config::Attention& attention,
                    Pass pass, const Costs& costs) {
  const Mask mask = attention.mask();
  const SparseRule rule = attention.sparse_rule();
  std::vector<plan::PlacedTask> tasks;
  for (const data::BatchDocument& document : microbatch.documents) {
    const std::int64_t length = document.length();
    const bool dense = rule.is_dense(length);
    mask.for_each_task({0, {0, length}, {0, length}, {0, 1}}, [&](const Task& task) {
      tasks.push_back(
          {0, task, 0.0, dense ? 1.0 : kept_share(rule, length), dense ? 0 : rule.block});
    });
  }
  std::vector<const plan::PlacedTask*> all;
  for (const plan::PlacedTask& task : tasks) all.push_back(&task);
  return all.empty() ? 0.0 : costs.attend(all, pass);
}

bool attention_again(const config::Experiment& e) {
  return e.run.recompute == Recompute::attention || e.run.recompute == Recompute::layer;
}

/// Hops of one kind that end at the first position of a ring.
struct Hops {
  std::int64_t positions = 1;
  std::int64_t sources = 0;  ///< positions whose keys come this way
  std::int64_t slices = 1;   ///< ranks of a position: each gets the keys of its heads
  std::int64_t span = 1;     ///< ranks from one end to the other
};

/// The slowest kinds of hops that every key but a position's own takes.
std::vector<Hops> key_hops(const config::Experiment& e) {
  const config::Attention& a = e.attention;
  const std::int64_t context = e.parallel.context;
  // Of other shares nothing is known without a plan.
  if (a.shard_unit != config::ShardUnit::document || !a.capacity.empty()) return {};
  switch (a.placement) {
    case config::PlacementKind::zigzag:
    case config::PlacementKind::striped:
      return {{context, context - 1, 1, context}};
    case config::PlacementKind::ulysses_ring: {
      const std::int64_t positions = context / a.head_parallel;
      return {{positions, positions - 1, a.head_parallel, context}};
    }
    case config::PlacementKind::double_ring: {
      const std::int64_t nodes = context / a.inner_ring;
      return {{context, nodes - 1, 1, context}, {context, context - nodes, 1, a.inner_ring}};
    }
    case config::PlacementKind::colocated:
    case config::PlacementKind::all_gather:
    case config::PlacementKind::ring:
    case config::PlacementKind::block_striped:
    case config::PlacementKind::ulysses:
    case config::PlacementKind::cad:
    case config::PlacementKind::automatic:
      break;
  }
  return {};
}

/// Keys of a document that come over such hops, at least: those that the last queries of the first
/// position see.
std::int64_t keys_over(const Hops& hops, const config::Attention& attention, std::int64_t length) {
  const bool striped = attention.placement == config::PlacementKind::striped;
  const std::int64_t chunk = length / (striped ? hops.positions : 2 * hops.positions);
  if (chunk == 0) return 0;
  const std::int64_t first = length - (striped ? hops.positions : chunk);
  const Range last{first, striped ? first + 1 : length};
  const std::int64_t unseen = length - attention.mask().within(length).key_rows(last, {0, length});
  return std::max<std::int64_t>(0, hops.sources * (striped ? chunk : 2 * chunk) - unseen);
}

/// Of a microbatch on a rank of any stage.
double stage_seconds(const config::Experiment& e, Dense& dense, std::int64_t rows) {
  double seconds = 0;
  for (const Step& step : program::layer_steps(e)) {
    const DenseTime& time = dense.time(step, 0, rows);
    seconds += time.compute + time.collective_seconds();
  }
  return seconds * static_cast<double>(e.model.layers / e.parallel.pipeline);
}

/// Of a microbatch on the last stage beside its layers.
double loss_seconds(Dense& dense, std::int64_t rows) {
  Step loss;
  loss.operation = Operation::loss;
  loss.pass = Pass::backward;
  loss.tick = 0;
  const DenseTime& time = dense.time(loss, 0, rows);
  return time.compute + time.collective_seconds();
}

double update_seconds(const config::Experiment& e, Dense& dense) {
  Step optimize;
  optimize.operation = Operation::optimize;
  double seconds = dense.time(optimize, 0, 0).compute + dense.gradient_sum(0, 0).seconds;
  if (e.parallel.shard == config::Shard::optimizer) seconds += dense.gather_parameters(0);
  return seconds;
}

}  // namespace

LeastTime::LeastTime(const data::Batch& batch, const config::Attention& attention,
                     const Costs& costs)
    : machine_(costs.machine()), tokens_(batch.tokens()) {
  for (const data::Microbatch& microbatch : batch.microbatches) {
    microbatches_.push_back({head_seconds(microbatch, attention, Pass::forward, costs),
                             head_seconds(microbatch, attention, Pass::backward, costs),
                             {}});
    for (const data::BatchDocument& document : microbatch.documents) {
      microbatches_.back().lengths.push_back(document.length());
    }
  }
}

double LeastTime::seconds(const config::Experiment& e) const {
  const program::StepShape outline(e);
  const Costs costs(machine_, e, outline.layout);
  Dense dense(e, outline, costs);
  const int microbatches = outline.pipeline.microbatches;
  const std::int64_t rows = tokens_ / (microbatches * e.parallel.data * e.parallel.context);
  const double layers = stage_seconds(e, dense, rows);
  const double fill = (static_cast<double>(e.parallel.pipeline) - 1.0) / outline.pipeline.chunks;
  const double dense_seconds = microbatches * (layers + loss_seconds(dense, rows));
  const double update = update_seconds(e, dense);
  const double attention = attention_seconds(e, costs);
  if (e.attention.overlap != config::Overlap::ping_pong) {
    return dense_seconds + fill * layers + attention + update;
  }
  // In ping-pong other ranks may compute a half's attention while this one has the other half.
  const double served = e.attention.servers == 0 ? attention : 0.0;
  return dense_seconds + std::max(fill * layers, served) + update;
}

std::vector<double> LeastTime::attention() const {
  std::vector<double> seconds;
  for (const Attention& a : microbatches_) seconds.push_back(a.forward + a.backward);
  return seconds;
}

/// What the keys and values of one layer take to go round a context group, at the rank that is
/// last: a ring over several nodes has a hop between nodes.
double LeastTime::key_seconds(const config::Experiment& e, const Costs& costs) const {
  if (e.attention.overlap == config::Overlap::ping_pong || e.cluster.varies()) return 0;
  const double bytes =
      2.0 * static_cast<double>(e.model.kv_heads * e.model.head_dim() / e.parallel.tensor) *
      config::element_bytes(e.run.dtype).element;
  double seconds = 0;
  for (const Hops& hops : key_hops(e)) {
    std::vector<std::int64_t> keys(static_cast<std::size_t>(e.parallel.data), 0);
    for (std::size_t i = 0; i < microbatches_.size(); ++i) {
      for (const std::int64_t length : microbatches_[i].lengths) {
        keys[i % keys.size()] += keys_over(hops, e.attention, length);
      }
    }
    const auto last = static_cast<Rank>(hops.span * e.parallel.tensor - 1);
    seconds = std::max(seconds, static_cast<double>(*std::ranges::max_element(keys)) * bytes /
                                    static_cast<double>(hops.slices) /
                                    costs.way(0, last).bytes_per_second);
  }
  return seconds;
}

/// Of the rank with most of it, in all layers of its stage: computing, or waiting for keys.
double LeastTime::attention_seconds(const config::Experiment& e, const Costs& costs) const {
  const config::Parallel& p = e.parallel;
  const double forwards = attention_again(e) ? 2 : 1;
  std::vector<double> of_data(static_cast<std::size_t>(p.data), 0.0);
  for (std::size_t i = 0; i < microbatches_.size(); ++i) {
    const Attention& a = microbatches_[i];
    of_data[i % of_data.size()] += forwards * a.forward + a.backward;
  }
  const double heads = static_cast<double>(e.model.heads) / static_cast<double>(p.tensor);
  const double layers = static_cast<double>(e.model.layers);
  const double group = static_cast<double>(p.pipeline * p.context);
  const bool stays = e.attention.placement != config::PlacementKind::cad;
  if (stays && e.attention.servers == 0) {
    const double computing = *std::ranges::max_element(of_data) * heads * layers / group;
    const double passes = forwards + (e.attention.inputs == config::Inputs::keep ? 0 : 1);
    return std::max(computing,
                    passes * layers / static_cast<double>(p.pipeline) * key_seconds(e, costs));
  }
  const double all = std::accumulate(of_data.begin(), of_data.end(), 0.0) * heads * layers;
  const double servers = static_cast<double>(e.attention.servers) / static_cast<double>(p.tensor);
  return all / (group * static_cast<double>(p.data) + servers);
}

}  // namespace cadenza::simulate
