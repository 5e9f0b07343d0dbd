// SPDX-License-Identifier: Apache-2.0
// The schema of an experiment, which reading, writing and the list of known keys all visit.
// A visitor has
//   key(name, field, spec...)                 a key with a default
//   required(name, field, meaning, spec...)   a required key
//   stand_in(name)                            a key that others have replaced before they are read
//   block(name, struct)                       a nested block, which it describes in turn
//   blocks(name, list of structs)             a list of blocks, empty by default
#pragma once

#include <cstdint>
#include <limits>
#include <tuple>

#include "cadenza/config/experiment.hpp"
#include "cadenza/config/limits.hpp"

namespace cadenza::config {

/// Spec of a number: the interval of valid values.
template <typename T>
struct Interval {
  T low;
  T high;
  bool low_open = false;
  bool high_open = false;
  constexpr bool contains(T value) const {
    return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
  }
};

/// Spec of a text that may be empty.
struct MayBeEmpty {};

/// Spec of attention.servers: `in_place` (stored as 0) or a number of ranks.
struct ServerCount {
  Interval<std::int64_t> ranks;
};

/// Spec of an optional value: `auto`, stored as none, or a value by `spec`.
template <typename... Spec>
struct AutoOr {
  std::tuple<Spec...> spec;
};
template <typename... Spec>
AutoOr<Spec...> auto_or(Spec... spec) {
  return {{spec...}};
}

/// Spec of a key that placement auto may choose: `auto`, or a value by `spec`.
template <typename... Spec>
struct OrAuto {
  bool& open;
  std::tuple<Spec...> spec;
};
template <typename... Spec>
OrAuto<Spec...> or_auto(bool& open, Spec... spec) {
  return {open, {spec...}};
}

using Integers = Interval<std::int64_t>;
using Numbers = Interval<double>;

/// Spec of a number of bytes: an integer, or a size such as `40GB` or `1.5GiB`.
struct Bytes {
  Integers range;
};

// Widths, heads and token ids are passed on as 32-bit integers (BLAS, token buffers).
inline constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;
inline constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;
inline constexpr Bytes kBytes{{0, kMaxBytes}};

inline constexpr double kMaxNumber = std::numeric_limits<double>::max();
inline constexpr Numbers kPositive{0.0, kMaxNumber, true};
inline constexpr Numbers kNotNegative{0.0, kMaxNumber};
// Rotations of a rotary pair in training; a wider range would give numbers that are not finite.
inline constexpr Numbers kRotations{1e-6, 1e6};
// Standard deviation of a logarithm.
inline constexpr Numbers kSpread{0.0, 10.0};

template <typename Visitor>
void describe(Visitor& visit, RopeScaling& scaling) {
  visit.key("kind", scaling.kind);
  visit.key("factor", scaling.factor, Numbers{1.0, 1e6});
  visit.key("original_context", scaling.original_context, Integers{0, kMaxCount});
  visit.key("beta_fast", scaling.beta_fast, kRotations);
  visit.key("beta_slow", scaling.beta_slow, kRotations);
  visit.key("mscale", scaling.mscale, Numbers{0.0, 1e6});
  visit.key("mscale_all_dim", scaling.mscale_all_dim, Numbers{0.0, 1e6});
  visit.key("low_frequency", scaling.low_frequency, kRotations);
  visit.key("high_frequency", scaling.high_frequency, kRotations);
  visit.key("attention_factor", scaling.attention_factor, Numbers{0.0, 1e6});
  visit.key("truncate", scaling.truncate);
}

template <typename Visitor>
void describe(Visitor& visit, Rope& rope) {
  visit.key("theta", rope.theta, Numbers{1.0, kMaxNumber});
  visit.block("scaling", rope.scaling);
}

template <typename Visitor>
void describe(Visitor& visit, Model& model) {
  visit.required("layers", model.layers, "transformer layers", Integers{1, 100000});
  visit.required("d_model", model.d_model, "width of the model", Integers{1, kMaxSize});
  visit.required("heads", model.heads, "query heads", Integers{1, kMaxSize});
  visit.key("kv_heads", model.kv_heads, Integers{1, kMaxSize});
  visit.key("head_dim", model.own_head_dim, Integers{0, kMaxSize});
  visit.required("ffn", model.ffn, "width of the SwiGLU branch", Integers{1, kMaxSize});
  visit.required("vocab", model.vocab, "tokens in the vocabulary", Integers{1, kMaxSize});
  visit.key("norm_eps", model.norm_eps, kPositive);
  visit.block("rope", model.rope);
  visit.key("tie_embeddings", model.tie_embeddings);
  visit.key("qkv_bias", model.qkv_bias);
  visit.key("qk_norm", model.qk_norm);
  visit.stand_in("config");
}

template <typename Visitor>
void describe(Visitor& visit, Lengths& lengths) {
  visit.key("distribution", lengths.distribution);
  visit.key("min", lengths.min, Integers{1, kMaxCount});
  visit.key("max", lengths.max, Integers{0, kMaxCount});
  visit.key("median", lengths.median, Numbers{1.0, static_cast<double>(kMaxCount)});
  visit.key("sigma", lengths.sigma, kNotNegative);
  visit.key("alpha", lengths.alpha, kPositive);
  visit.key("values", lengths.values, Integers{1, kMaxCount});
  visit.key("path", lengths.path, MayBeEmpty{});
  visit.key("rule", lengths.rule);
  visit.key("stretch", lengths.stretch, Numbers{0.0, 1e6, true});
}

template <typename Visitor>
void describe(Visitor& visit, Retrieval& retrieval) {
  visit.key("task", retrieval.task);
  visit.key("answers", retrieval.answers, Integers{1, kMaxAnswers});
  visit.key("hops", retrieval.hops, Integers{1, kMaxAnswers});
  visit.key("facts", retrieval.facts, Integers{1, kMaxFacts});
  visit.key("questions", retrieval.questions, Integers{1, kMaxFacts});
  visit.key("depth_min", retrieval.depth_min, Numbers{0.0, 1.0});
  visit.key("depth_max", retrieval.depth_max, Numbers{0.0, 1.0});
  visit.key("phrase", retrieval.phrase, Integers{1, kMaxSize});
}

template <typename Visitor>
void describe(Visitor& visit, Data& data) {
  visit.required("source", data.source, "where documents come from");
  visit.key("path", data.path);
  visit.key("weights", data.weights, kPositive);
  visit.key("tokenizer", data.tokenizer);
  visit.key("max_document", data.max_document, Integers{0, kMaxCount});
  visit.key("shuffle", data.shuffle);
  visit.key("dtype", data.dtype);
  visit.key("document_end", data.document_end, Integers{-1, kMaxSize});
  visit.key("documents", data.documents, Integers{1, kMostDocuments});
  visit.key("validation", data.validation);
  visit.block("lengths", data.lengths);
  visit.block("retrieval", data.retrieval);
}

template <typename Visitor>
void describe(Visitor& visit, Batch& batch) {
  visit.required("tokens", batch.tokens, "tokens per step over all ranks", Integers{1, kMaxCount});
  visit.required("microbatch", batch.microbatch, "tokens per microbatch of one data-parallel rank",
                 or_auto(batch.microbatch_open, Integers{2, kMaxSize}));
  visit.key("packing", batch.packing);
  visit.key("longest", batch.longest, or_auto(batch.longest_open, Numbers{1.0, kMaxNumber}));
  visit.key("break_even", batch.break_even, Integers{0, kMaxCount});
  visit.key("outliers", batch.outliers, Integers{1, kMaxCount});
}

template <typename Visitor>
void describe(Visitor& visit, Parallel& parallel) {
  visit.key("data", parallel.data, Integers{1, kMostRanks});
  const Integers ranks{1, kMostRanks};
  visit.key("pipeline", parallel.pipeline, or_auto(parallel.open.pipeline, ranks));
  visit.key("tensor", parallel.tensor, or_auto(parallel.open.tensor, ranks));
  visit.key("context", parallel.context, or_auto(parallel.open.context, ranks));
  visit.key("schedule", parallel.schedule);
  visit.key("chunks", parallel.chunks, or_auto(parallel.open.chunks, Integers{1, kMostRanks}));
  visit.key("stages", parallel.stages, Integers{1, 100000});
  visit.key("shard", parallel.shard, or_auto(parallel.open.shard));
  visit.key("tensor_sums", parallel.tensor_sums);
}

template <typename Visitor>
void describe(Visitor& visit, HeadBudget& head) {
  visit.key("columns", head.columns, Integers{0, kMaxCount});
  visit.key("slashes", head.slashes, Integers{0, kMaxCount});
  visit.key("top_p", head.top_p, Numbers{0.0, 1.0});
}

template <typename Visitor>
void describe(Visitor& visit, SparseAttention& sparse) {
  visit.key("block", sparse.block, auto_or(Integers{1, kMaxSize}));
  visit.key("columns", sparse.columns, Integers{0, kMaxCount});
  visit.key("slashes", sparse.slashes, Integers{0, kMaxCount});
  visit.key("top_p", sparse.top_p, Numbers{0.0, 1.0});
  visit.key("sinks", sparse.sinks, Integers{0, kMaxCount});
  visit.key("window", sparse.window, Integers{0, kMaxCount});
  visit.key("dense_below", sparse.dense_below, Integers{0, kMaxCount});
  visit.key("dense_steps", sparse.dense_steps, Integers{0, kMaxCount});
  visit.key("refresh", sparse.refresh, Integers{0, kMaxCount});
  visit.key("stride", sparse.stride, Integers{1, kMaxSize});
  visit.key("threshold", sparse.threshold, Numbers{0.0, 1.0, true});
  visit.key("budgets", sparse.budgets, MayBeEmpty{});
}

template <typename Visitor>
void describe(Visitor& visit, Attention& attention) {
  visit.key("kind", attention.kind);
  visit.key("layers", attention.layers);
  visit.key("window", attention.window, Integers{0, kMaxCount});
  visit.key("sinks", attention.sinks, Integers{0, kMaxCount});
  visit.key("prefix", attention.prefix, Integers{0, kMaxCount});
  visit.key("chunk", attention.chunk, Integers{1, kMaxSize});
  visit.key("local", attention.local, Integers{0, kMaxSize});
  visit.key("cap", attention.cap);
  visit.block("sparse", attention.sparse);
  visit.key("placement", attention.placement);
  visit.key("sharding", attention.sharding, auto_or());
  visit.key("shard_unit", attention.shard_unit);
  visit.key("head_parallel", attention.head_parallel, Integers{1, kMostRanks});
  visit.key("inner_ring", attention.inner_ring, Integers{1, kMostRanks});
  visit.key("servers", attention.servers,
            or_auto(attention.open.servers, ServerCount{{1, kMostRanks}}));
  visit.key("mixed", attention.mixed, or_auto(attention.open.mixed));
  visit.key("capacity", attention.capacity, kNotNegative);
  visit.key("block", attention.block, Integers{1, kMaxSize});
  visit.key("tolerance", attention.tolerance, auto_or(Numbers{0.0, 1e4}));
  visit.key("bound", attention.bound);
  visit.key("priority", attention.priority);
  visit.key("split_keys", attention.split_keys);
  visit.key("inputs", attention.inputs);
  visit.key("gather", attention.gather);
  visit.key("overlap", attention.overlap);
  visit.key("kernel", attention.kernel);
}

template <typename Visitor>
void describe(Visitor& visit, Optimizer& optimizer) {
  visit.key("kind", optimizer.kind);
  visit.key("lr", optimizer.lr, kNotNegative);
  visit.key("betas", optimizer.betas, Numbers{0.0, 1.0, false, true});
  visit.key("eps", optimizer.eps, kPositive);
  visit.key("weight_decay", optimizer.weight_decay, kNotNegative);
  visit.key("clip", optimizer.clip, kNotNegative);
  visit.key("warmup", optimizer.warmup, Integers{0, kMaxCount});
  visit.key("schedule", optimizer.schedule);
}

template <typename Visitor>
void describe(Visitor& visit, Validate& validate) {
  visit.key("every", validate.every, Integers{0, kMaxCount});
  visit.key("steps", validate.steps, Integers{0, kMaxCount});
}

template <typename Visitor>
void describe(Visitor& visit, Checkpoint& checkpoint) {
  visit.key("every", checkpoint.every, Integers{0, kMaxCount});
  visit.key("keep", checkpoint.keep, Integers{0, kMaxCount});
}

template <typename Visitor>
void describe(Visitor& visit, Run& run) {
  visit.key("steps", run.steps, Integers{0, kMaxCount});
  visit.key("device", run.device);
  visit.key("share_device", run.share_device);
  visit.key("transport", run.transport);
  visit.key("dtype", run.dtype);
  visit.key("residual", run.residual);
  visit.key("recompute", run.recompute, or_auto(run.recompute_open));
  visit.key("offload", run.offload);
  visit.key("memory", run.memory, kBytes);
  visit.key("timeout", run.timeout, Numbers{0.0, 1e6});
  visit.block("checkpoint", run.checkpoint);
  visit.block("validate", run.validate);
}

template <typename Visitor>
void describe(Visitor& visit, Trace& trace) {
  visit.key("events", trace.events);
  visit.key("memory", trace.memory);
}

template <typename Visitor>
void describe(Visitor& visit, Fault& fault) {
  visit.required("rank", fault.rank, "the rank that it is about", Integers{0, kMostRanks});
  visit.key("speed", fault.speed, Numbers{0.0, 1.0, true});
  visit.key("pause", fault.pause, Numbers{0.0, 1e6});
  visit.key("core", fault.core, Numbers{0.0, 1.0, true});
  visit.key("between", fault.between, Numbers{0.0, 1e6});
  visit.key("clock", fault.clock, Numbers{-1e6, 1e6});
  visit.key("phase", fault.phase);
  visit.key("work", fault.work);
  visit.key("steps", fault.steps, Integers{0, kMaxCount});
}

template <typename Visitor>
void describe(Visitor& visit, KeptBytes& kept) {
  visit.key("width", kept.width, kNotNegative);
  visit.key("whole_width", kept.whole_width, kNotNegative);
  visit.key("queries", kept.queries, kNotNegative);
  visit.key("keys", kept.keys, kNotNegative);
  visit.key("ffn", kept.ffn, kNotNegative);
  visit.key("logits", kept.logits, kNotNegative);
  visit.key("whole_logits", kept.whole_logits, kNotNegative);
}

template <typename Visitor>
void describe(Visitor& visit, Software& software) {
  visit.stand_in("file");
  visit.key("name", software.name);
  visit.key("source", software.source);
  visit.key("residual", software.residual);
  visit.key("gradients", software.gradients);
  visit.key("copies_streams", software.copies_streams);
  visit.key("copies_rows", software.copies_rows);
  visit.key("attention", software.attention);
  visit.key("attention_rate", software.attention_rate, Numbers{1e-3, 1e3});
  visit.key("element_wise_rate", software.element_wise_rate, Numbers{1e-3, 1e3});
  visit.key("loss_rate", software.loss_rate, Numbers{1e-3, 1e3});
  visit.key("overlaps_tensor", software.overlaps_tensor);
  visit.key("overlaps_gradients", software.overlaps_gradients);
  visit.key("overlaps_gathers", software.overlaps_gathers);
  visit.key("layer_seconds", software.layer_seconds, Numbers{0.0, 1e6});
  visit.key("sequence_parallel", software.sequence_parallel);
  visit.block("kept", software.kept);
  visit.key("spread", software.spread, Numbers{1.0, 1e3});
  visit.key("reserved", software.reserved, kBytes);
}

template <typename Visitor>
void describe(Visitor& visit, Cluster& cluster) {
  visit.key("machine", cluster.machine, MayBeEmpty{});
  visit.key("ranks_per_node", cluster.ranks_per_node, Integers{0, kMostRanks});
  visit.key("bandwidth", cluster.bandwidth, Numbers{0.0, 1e9, true});
  visit.block("software", cluster.software);
  visit.key("speed_spread", cluster.speed_spread, kSpread);
  visit.key("jitter", cluster.jitter, kSpread);
  visit.key("slow_ranks", cluster.slow_ranks, kNotNegative);
  visit.key("slow_links", cluster.slow_links, kNotNegative);
  visit.key("slow_adapters", cluster.slow_adapters, kNotNegative);
  visit.blocks("faults", cluster.faults);
}

template <typename Visitor>
void describe(Visitor& visit, Experiment& experiment) {
  visit.key("name", experiment.name);
  visit.key("seed", experiment.seed,
            Interval<std::uint64_t>{0, std::numeric_limits<std::uint64_t>::max()});
  visit.block("model", experiment.model);
  visit.block("data", experiment.data);
  visit.block("batch", experiment.batch);
  visit.block("parallel", experiment.parallel);
  visit.block("attention", experiment.attention);
  visit.block("optimizer", experiment.optimizer);
  visit.block("run", experiment.run);
  visit.block("trace", experiment.trace);
  visit.block("cluster", experiment.cluster);
}

}  // namespace cadenza::config
