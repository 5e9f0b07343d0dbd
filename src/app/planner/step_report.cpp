// SPDX-License-Identifier: Apache-2.0
#include "app/planner/step_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/planner/version.hpp"
#include "cadenza/base/at.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/cost/flops.hpp"

namespace cadenza::app {
namespace {

double seconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

double sum_of_squares(const std::vector<std::int64_t>& lengths) {
  double sum = 0;
  for (const std::int64_t length : lengths) {
    sum += static_cast<double>(length) * static_cast<double>(length);
  }
  return sum;
}

double model_flops(const config::Experiment& e, std::span<const std::int64_t> lengths) {
  return cost::model_flops(e.model, e.attention, lengths, e.run.evaluates);
}

double dense_attention_flops(const config::Experiment& e, std::span<const std::int64_t> lengths) {
  return cost::attention_flops(e.model, e.attention, lengths, e.run.recompute, e.run.evaluates);
}

std::int64_t attention_time(std::span<const RankStep> ranks, std::span<const Rank> servers) {
  std::int64_t sum = 0;
  for (const Rank server : servers) sum += ranks[at(server)].attention_ns;
  return sum;
}

}  // namespace

std::vector<Rank> attention_servers(const config::Experiment& e) {
  const program::Layout layout(e);
  std::vector<Rank> servers;
  for (Rank rank = 0; rank < layout.ranks(); ++rank) {
    if (layout.serves(rank)) servers.push_back(rank);
  }
  return servers;
}

double attention_imbalance(std::span<const RankStep> ranks, std::span<const Rank> servers) {
  std::int64_t largest = 0;
  for (const Rank server : servers) {
    largest = std::max(largest, ranks[at(server)].attention_ns);
  }
  const std::int64_t sum = attention_time(ranks, servers);
  if (sum == 0) return 1.0;
  return static_cast<double>(largest) * static_cast<double>(servers.size()) /
         static_cast<double>(sum);
}

double attention_imbalance_by_layer(const program::StepShape& step_shape,
                                    std::span<const RankStep> ranks,
                                    std::span<const Rank> servers) {
  const std::int64_t sum = attention_time(ranks, servers);
  if (sum == 0) return 1.0;
  return static_cast<double>(ranks.front().slowest_attention_ns) * step_shape.servers_of_pass() /
         static_cast<double>(sum);
}

StepMetrics step_metrics(const config::Experiment& experiment, const data::Batch& batch,
                         std::span<const RankStep> ranks, double peak_flops) {
  StepMetrics metrics;
  metrics.step = batch.step;
  metrics.tokens = batch.tokens();
  if (experiment.batch.packing == config::Packing::best_fit) {
    metrics.filled =
        static_cast<double>(metrics.tokens) / static_cast<double>(experiment.batch.tokens);
  }
  metrics.seconds = seconds(ranks[0].step_ns);
  metrics.tokens_per_second = static_cast<double>(metrics.tokens) / metrics.seconds;
  metrics.model_flops_utilization =
      model_flops(experiment, batch.lengths()) / (metrics.seconds * peak_flops);
  const std::vector<Rank> servers = attention_servers(experiment);
  metrics.attention_imbalance = attention_imbalance(ranks, servers);
  metrics.attention_imbalance_by_layer =
      attention_imbalance_by_layer(program::StepShape(experiment), ranks, servers);
  metrics.dense_attention_flops = dense_attention_flops(experiment, batch.lengths());
  for (const RankStep& step : ranks) {
    metrics.attention_flops += step.attention_flops;
    metrics.bytes_moved += step.bytes_sent;
    metrics.peak_memory_bytes = std::max(metrics.peak_memory_bytes, step.peak_bytes);
    metrics.hardware_flops_utilization += step.flops / (metrics.seconds * peak_flops);
  }
  return metrics;
}

std::string describe(const StepMetrics& m) {
  const program::StepResult& result = m.result;
  std::string text;
  if (m.validation_loss) {
    text += fmt::format("validation {:.4f} (perplexity {:.4g})  ", *m.validation_loss,
                        std::exp(*m.validation_loss));
  }
  text += format_count(m.tokens_per_second) + " tokens/s";
  if (std::isfinite(m.model_flops_utilization)) {
    text += fmt::format("  MFU {:.1f} %", 100.0 * m.model_flops_utilization);
  }
  text += fmt::format("  attention imbalance {:.3f} (by layer {:.3f})", m.attention_imbalance,
                      m.attention_imbalance_by_layer);
  if (m.filled) text += fmt::format("  filled {:.1f} %", 100 * *m.filled);
  if (m.sparsity > 0) {
    text += fmt::format("  sparse {:.1f} % ({} of {} FLOPs)", 100 * *m.sparsity,
                        format_count(m.attention_flops), format_count(m.dense_attention_flops));
  }
  if (result.recall) {
    text += fmt::format("  recall {:.1f} % in layer {}",
                        100 * result.recall->recall.total().share(), result.recall->layer);
  }
  if (result.answers > 0) text += fmt::format("  answers {}/{}", result.hits, result.answers);
  return text;
}

RankStep& RankStep::operator+=(const RankStep& step) {
  attention_ns += step.attention_ns;
  busy_ns += step.busy_ns;
  wait_ns += step.wait_ns;
  communication_ns += step.communication_ns;
  slowest_attention_ns += step.slowest_attention_ns;
  flops += step.flops;
  attention_flops += step.attention_flops;
  bytes_sent += step.bytes_sent;
  peak_bytes = std::max(peak_bytes, step.peak_bytes);
  step_ns += step.step_ns;
  return *this;
}

std::string summary_table(const std::vector<std::string>& roles, std::span<const RankStep> totals) {
  constexpr const char* kRow = "  {:<14} {:>9} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8}";
  std::vector<std::string> rows;
  std::vector<double> busy;
  for (std::size_t rank = 0; rank < totals.size(); ++rank) {
    const RankStep& r = totals[rank];
    const auto share = [&](std::int64_t ns) {
      const double of_step = r.step_ns > 0 ? seconds(ns) / seconds(r.step_ns) : 0.0;
      return fmt::format("{:.1f} %", 100.0 * of_step);
    };
    rows.push_back(fmt::format(kRow, roles[rank], format_duration(seconds(r.attention_ns)),
                               share(r.busy_ns), share(r.wait_ns), share(r.communication_ns),
                               share(r.step_ns - r.busy_ns - r.wait_ns - r.communication_ns),
                               format_bytes(static_cast<double>(r.bytes_sent)),
                               format_bytes(static_cast<double>(r.peak_bytes))));
    busy.push_back(seconds(r.busy_ns));
  }
  const std::string header =
      fmt::format(kRow, "role", "attention", "busy", "waiting", "comm.", "other", "sent", "memory");
  return rank_table(header, rows, busy, "busy time");
}

std::vector<trace::DistanceRecall> recall_rows(std::int64_t step,
                                               const program::StepResult::LayerRecall& sampled) {
  std::vector<trace::DistanceRecall> rows;
  for (std::size_t i = 0; i < Recall::kFrom.size(); ++i) {
    const Recall::Distance& of = sampled.recall.distances[i];
    if (of.keys == 0) continue;
    rows.push_back({static_cast<std::uint32_t>(step), sampled.layer, Recall::kFrom[i],
                    static_cast<double>(of.kept) / Recall::kUnit,
                    static_cast<double>(of.attention) / Recall::kUnit, of.keys, of.unseen});
  }
  return rows;
}

trace::StepRecord step_record(const config::Experiment& experiment, const data::Batch& batch) {
  const std::vector<std::int64_t> lengths = batch.lengths();
  trace::StepRecord record;
  record.step = static_cast<std::uint32_t>(batch.step);
  record.documents = static_cast<std::uint32_t>(lengths.size());
  record.tokens = batch.tokens();
  record.sum_length2 = sum_of_squares(lengths);
  record.model_flops = model_flops(experiment, lengths);
  record.dense_attention_flops = dense_attention_flops(experiment, lengths);
  return record;
}

trace::RankInfo rank_info(const config::Experiment& experiment, Rank rank) {
  const program::Layout layout(experiment);
  const bool trainer = layout.trains(rank);
  const bool in_place = layout.trainers_serve();
  trace::RankInfo info;
  info.rank = rank;
  info.world = layout.ranks();
  info.role = !trainer   ? trace::Role::attention_server
              : in_place ? trace::Role::both
                         : trace::Role::trainer;
  info.data = info.pipeline = info.tensor = info.context = -1;
  if (trainer) {
    const program::Coordinates at = layout.coordinates(rank);
    info.data = at.data;
    info.pipeline = at.pipeline;
    info.tensor = at.tensor;
    info.context = at.context;
  }
  info.server = in_place ? rank : (trainer ? -1 : rank - layout.trainers());
  return info;
}

trace::RunInfo run_info(const config::Experiment& experiment, const std::string& created_utc) {
  trace::RunInfo info;
  if (experiment.run.evaluates) info.producer = "evaluator";
  info.config_yaml = config::to_yaml(experiment);
  info.code_version = kVersion;
  info.code_revision = revision();
  info.build = build_options();
  info.seed = experiment.seed;
  info.created_utc = created_utc;
  info.run_id = experiment.name + "-" + created_utc;
  return info;
}

std::string never_sparse(const config::Experiment& experiment) {
  const SparseRule rule = experiment.attention.sparse_rule();
  if (rule.block == 0) return "";  // not sparse
  const std::int64_t longest = experiment.data.max_document;
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
