// SPDX-License-Identifier: Apache-2.0
#include "cadenza/simulate/least_time.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>

#include "cadenza/cost/flops.hpp"
#include "cadenza/plan/predict.hpp"
#include "cadenza/program/operation_work.hpp"
#include "cadenza/program/step_plan.hpp"
#include "simulate/dense.hpp"

namespace cadenza::simulate {
namespace {

using config::Recompute;
using program::Instruction;
using program::Operation;
using program::Pass;

/// No size is slower than a smaller one: work that is cut into pieces takes no less on this machine
/// than on the given one. Measured tables are not like that: matrices of half the rows may be
/// multiplied in less than half the time.
config::Machine at_best(const config::Machine& given) {
  config::Machine best = given;
  const config::AttentionTimes& a = given.attention;
  const auto by_tile = [&](const config::Row<3>& row) {
    const auto keys = static_cast<std::int64_t>(row[1]);
    const Task task{0, {keys - static_cast<std::int64_t>(row[0]), keys}, {0, keys}, {0, 1}};
    return cost::tile_weight(task, a.tile, a.tile_overhead) * static_cast<double>(a.heads);
  };
  for (const auto table : {&config::AttentionTimes::forward, &config::AttentionTimes::backward}) {
    for (config::Row<3>& row : best.attention.*table) {
      double least = std::numeric_limits<double>::infinity();
      for (const config::Row<3>& other : a.*table) {
        if (other[0] > row[0] || other[1] > row[1]) continue;
        least = std::min(least, std::max(0.0, other[2] - a.launch_seconds) / by_tile(other));
      }
      row[2] = a.launch_seconds + least * by_tile(row);
    }
  }
  for (config::Row<4>& row : best.products.table) {
    for (const auto& [rows, columns, depth, rate] : given.products.table) {
      if (rows > row[0] || columns != row[1] || depth > row[2]) continue;
      row[3] = std::max(row[3], rate);
    }
  }
  return best;
}

/// Of the pairs of a document.
double kept_share(const SparseDensity& density, std::int64_t length) {
  const Weights weights(Mask{}, &density, length);
  return static_cast<double>(weights.pairs({0, length})) /
         static_cast<double>(Weights(Mask{}, weights.unit()).pairs({0, length}));
}

/// A dense task of a document that has several, however it is cut: where bands meet, other cuts may
/// lie better for the kernel's tiles. Of all tiles the part that its pairs would fill.
double cut_seconds(const Task& task, Pass pass, const Costs& costs) {
  const config::AttentionTimes& a = costs.machine().attention;
  const double weight = cost::tile_weight(task, a.tile, a.tile_overhead);
  if (weight == 0) return 0;
  const auto tile = static_cast<double>(a.tile);
  const double filled = static_cast<double>(allowed_pairs(task)) / (tile * tile) +
                        a.tile_overhead * static_cast<double>(task.q.size()) / tile;
  return costs.task_seconds(task, pass) * std::min(1.0, filled / weight);
}

/// Of one head and all documents of a microbatch, without launches.
/// @param cut  documents may be cut anywhere
double head_seconds(const data::Microbatch& microbatch, const Mask& mask, const SparseRule& rule,
                    const SparseEstimate& estimate, bool cut, Pass pass, const Costs& costs) {
  double seconds = 0;
  for (const data::BatchDocument& document : microbatch.documents) {
    const std::int64_t length = document.length();
    const bool asked = !rule.is_dense(length);
    const double kept = asked ? kept_share(estimate.density(rule, length, {}), length) : 1.0;
    double dense = 0, cuts = 0, sparse = 0;
    int tasks = 0;
    mask.for_each_task({0, {0, length}, {0, length}, {0, 1}}, [&](const Task& task) {
      ++tasks;
      dense += costs.task_seconds(task, pass);
      if (cut) cuts += cut_seconds(task, pass, costs);
      if (!asked) return;
      sparse +=
          plan::placed_seconds({0, task, 0.0, kept, rule.block, rule.adjoining()}, pass, costs);
    });
    if (cut && tasks > 1) dense = cuts;
    seconds += asked ? sparse : dense;
  }
  return seconds;
}

bool attention_again(const config::Experiment& e) {
  return e.run.recompute == Recompute::attention || e.run.recompute == Recompute::layer;
}

/// Keys of a document that come from so many positions of a ring to another, at least: those that
/// the last queries of the first position see.
std::int64_t keys_from(std::int64_t sources, std::int64_t positions,
                       const config::Attention& attention, std::int64_t length) {
  const bool striped = attention.shares() == config::Shares::striped;
  const std::int64_t chunk = length / (striped ? positions : 2 * positions);
  if (chunk == 0) return 0;
  const std::int64_t first = length - (striped ? positions : chunk);
  const Range last{first, striped ? first + 1 : length};
  const std::int64_t unseen = length - attention.mask().within(length).key_rows(last, {0, length});
  return std::max<std::int64_t>(0, sources * (striped ? chunk : 2 * chunk) - unseen);
}

/// An operation and its collectives in the fastest tensor group: groups that do not divide a node
/// lie on one or on two, in turns that begin again where a group begins with a node.
double fastest_seconds(const config::Experiment& e, Dense& dense, const Costs& costs,
                       const Instruction& instruction, std::int64_t rows) {
  const auto trainers = static_cast<Rank>(e.parallel.trainers());
  const bool one_node = costs.node_of(trainers - 1) == 0;
  double least = std::numeric_limits<double>::infinity();
  for (Rank first = 0; first < trainers; first += static_cast<Rank>(e.parallel.tensor)) {
    const bool again = first > 0 && costs.node_of(first) != costs.node_of(first - 1);
    if (again || (one_node && first > 0)) break;
    const DenseTime& time = dense.time(instruction, first, rows);
    least = std::min(least, time.compute + time.collective_seconds());
  }
  return least;
}

/// Of a microbatch on a rank, in one layer.
double layer_seconds(const config::Experiment& e, Dense& dense, const Costs& costs,
                     std::int64_t rows) {
  double seconds = 0;
  for (const Instruction& instruction : program::layer_instructions(e)) {
    seconds += fastest_seconds(e, dense, costs, instruction, rows);
  }
  return seconds;
}

/// Of a microbatch on the last stage beside its layers.
double loss_seconds(const config::Experiment& e, Dense& dense, const Costs& costs,
                    std::int64_t rows) {
  Instruction loss;
  loss.operation = Operation::loss;
  loss.pass = Pass::backward;
  loss.tick = 0;
  return fastest_seconds(e, dense, costs, loss, rows);
}

double update_seconds(const program::StepShape& step_shape, Dense& dense) {
  Instruction optimize;
  optimize.operation = Operation::optimize;
  double seconds = dense.time(optimize, 0, 0).compute;
  if (step_shape.gathers_after()) seconds += dense.gather_parameters(0);
  return seconds;
}

/// What has to be gathered before anything is computed.
double first_gather_seconds(const program::StepShape& step_shape, const Dense& dense) {
  if (!step_shape.shards_parameters) return 0;
  return dense.gather_layer(0, -1).seconds + dense.gather_layer(0, 0).seconds;
}

/// Of all gathers and sums of a step, which rank 0 runs one at a time, before the update.
double link_seconds(const program::StepShape& step_shape, const Dense& dense) {
  if (!step_shape.shards_parameters) return 0;
  const double passes = step_shape.pipeline.microbatches * step_shape.layers_of_rank(0);
  return dense.gather_layer(0, -1).seconds + dense.gradient_sum(0, -1).seconds +
         passes * (2 * dense.gather_layer(0, 0).seconds + dense.gradient_sum(0, 0).seconds);
}

/// Whether a rank computes the attention of whole documents, at once.
bool keeps_documents(const config::Attention& a) {
  const config::PlacementTraits& placement = config::traits_of(a.placement);
  return a.overlap != config::Overlap::ping_pong &&
         (placement.reach == config::Reach::rank || placement.keys == config::KeyPath::heads);
}

}  // namespace

LeastTime::LeastTime(const data::Batch& batch, const config::Experiment& experiment,
                     const config::Machine& machine)
    : machine_(machine), best_(at_best(machine)) {
  config::Experiment e = program::experiment_of_step(experiment, batch.step);
  e.parallel.tensor = 1;  // the mean of all heads
  model_ = {static_cast<double>(e.model.layers),
            static_cast<double>(e.attention.full_layers({0, e.model.layers}))};
  const program::Layout layout(e);
  const Costs costs(machine_, e, layout), best_costs(best_, e, layout);
  const SparseEstimate estimate = program::estimate_of_budgets(e, batch.lengths());
  for (const data::Microbatch& microbatch : batch.microbatches) {
    Microbatch& mine = microbatches_.emplace_back();
    for (const data::BatchDocument& document : microbatch.documents) {
      mine.lengths.push_back(document.length());
    }
    mine.tokens = microbatch.tokens();
    const auto heads = [&](const Mask& mask, const SparseRule& rule, bool cut) {
      const Costs& at_rates = cut ? best_costs : costs;
      const auto head = [&](Pass pass) {
        return head_seconds(microbatch, mask, rule, estimate, cut, pass, at_rates);
      };
      return Passes{head(Pass::forward), head(Pass::backward)};
    };
    for (const bool cut : {false, true}) {
      std::array<Passes, 2>& of = cut ? mine.pieces : mine.whole;
      of[0] = heads(e.attention.mask(), e.attention.sparse_rule(), cut);
      if (model_.full > 0) of[1] = heads(Mask{}, SparseRule{}, cut);
    }
  }
}

double LeastTime::seconds(const config::Experiment& experiment) {
  config::Experiment e = experiment;
  e.cluster = e.cluster.even();  // what is slow may be elsewhere
  const program::StepShape step_shape(e);
  const bool in_turns = e.attention.overlap == config::Overlap::ping_pong;
  const Rows rows = rows_of(e);
  const bool exact = rows.least == rows.most && !in_turns;
  const Costs costs(exact ? machine_ : best_, e, step_shape.layout);
  Dense dense(e, step_shape, costs);
  const auto [layer, loss] = row_seconds(e, dense, costs, rows.most, exact);
  double trainers = 0;
  Layers most;
  for (int stage = step_shape.pipeline.stages - 1; stage >= 0; --stage) {
    const int layers = step_shape.layers_of_stage(stage);
    Layers of_stage{static_cast<double>(layers)};
    if (model_.full > 0) {
      for (int layer = 0; layer < layers; ++layer) {
        of_stage.full += e.attention.is_full(step_shape.model_layer(stage, layer));
      }
    }
    // A later stage has as many, and waits longer for its first.
    if (of_stage.all <= most.all && of_stage.full <= most.full) continue;
    most = {std::max(most.all, of_stage.all), std::max(most.full, of_stage.full)};
    const bool last = stage + 1 == step_shape.pipeline.stages;
    const double row = layer * layers + (last ? loss : 0.0);
    // The first chunks of the stages before, of the first microbatch and, backward, of the last.
    const double fill = layer * static_cast<double>(rows.least) *
                        static_cast<double>(step_shape.chunk_layers(stage, 0).begin);
    const double busiest = busiest_seconds(e, costs, row, of_stage);
    // While a rank waits for its first half, it may compute attention.
    trainers = std::max(trainers,
                        in_turns ? std::max(row * mean_rows(e) + fill, busiest) : busiest + fill);
  }
  const double passes = first_gather_seconds(step_shape, dense) +
                        std::max(trainers, servers_seconds(e)) + dense.gradient_sum(0, 0).seconds;
  return std::max(passes, link_seconds(step_shape, dense)) + update_seconds(step_shape, dense);
}

std::vector<double> LeastTime::attention() const {
  std::vector<double> seconds;
  for (const Microbatch& m : microbatches_) {
    const Passes all = sum_of(m.whole, model_);
    seconds.push_back((all.forward + all.backward) / model_.all);
  }
  return seconds;
}

/// @param exact  at the machine's rates, not at its best
LeastTime::RowTime LeastTime::row_seconds(const config::Experiment& e, Dense& dense,
                                          const Costs& costs, std::int64_t rows, bool exact) {
  const config::Parallel& p = e.parallel;
  const auto [known, fresh] =
      row_times_.try_emplace({p.tensor, p.trainers(), rows, e.run.recompute, exact});
  if (fresh) {
    const auto count = static_cast<double>(rows);
    known->second = {layer_seconds(e, dense, costs, rows) / count,
                     loss_seconds(e, dense, costs, rows) / count};
  }
  return known->second;
}

/// Of a rank in a microbatch, whichever has fewest and most. Where the ranks of a context group do
/// not get documents by their cost, they share a microbatch evenly, but for what does not divide.
LeastTime::Rows LeastTime::rows_of(const config::Experiment& e) const {
  const std::int64_t context = e.parallel.context;
  Rows rows{std::numeric_limits<std::int64_t>::max(), 1};
  for (const Microbatch& m : microbatches_) {
    const std::int64_t more = context == 1 ? 0 : std::ssize(m.lengths) + 1;
    const bool even = context == 1 || !e.attention.shares_by_cost();
    rows.least = std::min(rows.least, even ? m.tokens / context : 0);
    rows.most =
        std::max(rows.most, even ? std::min(m.tokens, m.tokens / context + more) : m.tokens);
  }
  return rows;
}

/// Of a rank in all microbatches, the mean.
double LeastTime::mean_rows(const config::Experiment& e) const {
  double tokens = 0;
  for (const Microbatch& m : microbatches_) tokens += static_cast<double>(m.tokens);
  return tokens / static_cast<double>(e.parallel.data * e.parallel.context);
}

/// The slowest kinds of hops that every key but a position's own takes.
std::vector<LeastTime::Hops> LeastTime::key_hops(const config::Experiment& e) {
  const config::Attention& a = e.attention;
  const std::int64_t context = e.parallel.context;
  // Of other shares nothing is known without a plan.
  const bool known = a.shard_unit == config::ShardUnit::document && a.capacity.empty();
  if (!known || a.overlap == config::Overlap::ping_pong) return {};
  if (a.shares() != config::Shares::zigzag && a.shares() != config::Shares::striped) return {};
  switch (config::traits_of(a.placement).keys) {
    case config::KeyPath::head_groups: {
      const std::int64_t positions = context / a.head_parallel;
      return {{positions, positions - 1, a.head_parallel, context}};
    }
    case config::KeyPath::ring: {
      const std::int64_t nodes = context / a.inner_ring;
      return {{context, nodes - 1, 1, context}, {context, context - nodes, 1, a.inner_ring}};
    }
    case config::KeyPath::planned:
    case config::KeyPath::gather:
    case config::KeyPath::heads:
      break;
  }
  return {};
}

/// What the keys and values of a token take over a hop, to each rank of a position those of its
/// heads, at the rank that is last: a ring over several nodes has a hop between nodes.
double LeastTime::hop_seconds(const config::Experiment& e, const Costs& costs, const Hops& hops) {
  const double bytes =
      2.0 * static_cast<double>(e.model.kv_heads * e.model.head_dim() / e.parallel.tensor) *
      config::element_bytes(e.run.dtype).element / static_cast<double>(hops.slices);
  const auto way = [&](std::int64_t ranks) { return costs.way(0, static_cast<Rank>(ranks - 1)); };
  const std::int64_t ranks = hops.span * e.parallel.tensor;
  double rate = way(ranks).bytes_per_second;
  // Of a group on one node, others like it may lie on two.
  if (!way(ranks).between_nodes) {
    rate = std::max(rate, way(e.parallel.trainers()).bytes_per_second);
  }
  return bytes / rate;
}

/// Keys that come over such hops, at least, in each microbatch.
const std::vector<double>& LeastTime::keys_over(const Hops& hops,
                                                const config::Attention& attention) {
  const bool striped = attention.shares() == config::Shares::striped;
  const auto [known, fresh] = hop_keys_.try_emplace({hops.positions, hops.sources, striped});
  if (!fresh) return known->second;
  for (const Microbatch& m : microbatches_) {
    std::int64_t keys = 0;
    for (const std::int64_t length : m.lengths) {
      keys += keys_from(hops.sources, hops.positions, attention, length);
    }
    known->second.push_back(static_cast<double>(keys));
  }
  return known->second;
}

/// What the rank with most work of a stage computes or, in rings, waits for.
/// @param row  seconds of a row outside attention
double LeastTime::busiest_seconds(const config::Experiment& e, const Costs& costs, double row,
                                  const Layers& stage) {
  const config::Parallel& p = e.parallel;
  const config::Attention& a = e.attention;
  const double layers = stage.all;
  const double forwards = attention_again(e) ? 2 : 1;
  const double heads = static_cast<double>(e.model.heads) / static_cast<double>(p.tensor);
  const double launches = (forwards + 1) * costs.launch_seconds();
  const double sends = forwards + (a.inputs == config::Inputs::keep ? 0 : 1);
  const std::vector<Hops> hops = key_hops(e);
  std::vector<double> key_seconds;            // of a token, by kind of hop, in all layers
  std::vector<std::span<const double>> keys;  // by kind of hop and microbatch
  for (const Hops& kind : hops) {
    key_seconds.push_back(hop_seconds(e, costs, kind) * sends * layers);
    keys.emplace_back(keys_over(kind, a));
  }
  const auto context = static_cast<double>(p.context);
  std::vector<Busy> replicas(static_cast<std::size_t>(p.data));
  for (std::size_t i = 0; i < microbatches_.size(); ++i) {
    const Microbatch& m = microbatches_[i];
    const Passes head = sum_of(keeps_documents(a) ? m.whole : m.pieces, stage);
    Busy& busy = replicas[i % replicas.size()];
    busy.rows += static_cast<double>(m.tokens) / context;
    busy.attention += (forwards * head.forward + head.backward) * heads / context;
    if (m.tokens >= p.context) busy.launches += launches * layers;
    busy.keys.resize(hops.size());
    for (std::size_t kind = 0; kind < hops.size(); ++kind) {
      busy.keys[kind] += keys[kind][i] * key_seconds[kind];
    }
  }
  if (!config::disaggregates(a.placement) && a.servers == 0) {
    double most = 0;
    for (const Busy& busy : replicas) {
      double waited = busy.attention + busy.launches;
      for (const double seconds : busy.keys) waited = std::max(waited, seconds);
      most = std::max(most, busy.rows * row + waited);
    }
    return most;
  }
  // Spread evenly over a pool; a server may compute all of a layer in one call.
  const double rows = mean_rows(e) * row;
  const double attention = attention_seconds(e, stage) * static_cast<double>(p.pipeline) /
                           static_cast<double>(e.ranks() / p.tensor);
  if (a.overlap != config::Overlap::ping_pong) return rows + attention;
  // The mean of all ranks, of which servers have no rows.
  const double training = static_cast<double>(p.trainers()) / static_cast<double>(e.ranks());
  return std::max(rows, training * rows + attention);
}

/// In all of these layers.
LeastTime::Passes LeastTime::sum_of(const std::array<Passes, 2>& head, const Layers& layers) {
  const double own = layers.all - layers.full;
  return {own * head[0].forward + layers.full * head[1].forward,
          own * head[0].backward + layers.full * head[1].backward};
}

/// Of all documents in these layers, on one rank of each tensor group.
double LeastTime::attention_seconds(const config::Experiment& e, const Layers& layers) const {
  const double forwards = attention_again(e) ? 2 : 1;
  double head_seconds = 0;
  for (const Microbatch& m : microbatches_) {
    const Passes head = sum_of(keeps_documents(e.attention) ? m.whole : m.pieces, layers);
    head_seconds += forwards * head.forward + head.backward;
  }
  return head_seconds * static_cast<double>(e.model.heads / e.parallel.tensor);
}

/// What the mean dedicated server computes, where trainers compute no attention.
double LeastTime::servers_seconds(const config::Experiment& e) const {
  if (e.attention.servers == 0 || e.attention.mixed) return 0;
  return attention_seconds(e, model_) /
         static_cast<double>(e.attention.servers / e.parallel.tensor);
}

}  // namespace cadenza::simulate
