// SPDX-License-Identifier: Apache-2.0
#include "config/check.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cadenza/base/text.hpp"
#include "cadenza/config/limits.hpp"
#include "config/checker.hpp"
#include "config/schema.hpp"
#include "config/words.hpp"

namespace cadenza::config {
namespace {

// The byte tokenizer's vocabulary: 256 bytes and begin, end, padding.
constexpr std::int64_t kByteVocabulary = 259;

/// Limits on products of the experiment's numbers, which decide how much memory it needs. Each
/// number may be in range while their product is not.
constexpr double kMostParameters = 0x1p50;
constexpr double kMostActivations = 0x1p52;  ///< activations of a microbatch, in all layers
constexpr double kMostPasses = 0x1p23;       ///< per step: microbatches through layers, on ranks
constexpr double kMostPairs = 0x1p22;        ///< per step: pairs of ranks of a context group
constexpr double kMostBlocks = 0x1p26;       ///< per step: blocks that CAD or PTRR places

double real(std::int64_t number) {
  return static_cast<double>(number);
}

void check_size(const Checker& check, const Experiment& e) {
  const Model& m = e.model;
  const double dim = m.own_head_dim > 0 ? real(m.own_head_dim) : real(m.d_model) / real(m.heads);
  const double queries = real(m.heads) * dim;
  const double layer =
      real(m.d_model) * (2 * queries + 2 * real(m.kv_heads) * dim + 3 * real(m.ffn));
  const double parameters = real(m.layers) * layer + 2 * real(m.vocab) * real(m.d_model);
  check.require(
      parameters <= kMostParameters, "model",
      "found {:.3g} parameters (layers, d_model, heads, ffn, vocab); valid: at most {:.3g}",
      parameters, kMostParameters);
  const double activations =
      real(e.batch.microbatch) *
      (real(m.layers) * (std::max(real(m.d_model), queries) + real(m.ffn)) + real(m.vocab));
  check.require(activations <= kMostActivations, "batch.microbatch",
                "found {}, which makes {:.3g} activations with this model; valid: at most {:.3g}",
                e.batch.microbatch, activations, kMostActivations);
  const double angles = real(e.data.max_document) * real(m.head_dim());
  check.require(angles <= kMostActivations, "data.max_document",
                "found {}, which with {} dimensions to rotate makes {:.3g} rotary angles; valid: "
                "at most {:.3g}",
                e.data.max_document, m.head_dim(), angles, kMostActivations);
}

void check_rank_count(const Checker& check, const Parallel& p, std::int64_t servers) {
  const double ranks =
      real(p.data) * real(p.pipeline) * real(p.tensor) * real(p.context) + real(servers);
  check.require(
      ranks <= real(kMostRanks), "parallel",
      "found data {} x pipeline {} x tensor {} x context {} + {} attention servers, {:.3g} "
      "ranks; valid: at most {}",
      p.data, p.pipeline, p.tensor, p.context, servers, ranks, kMostRanks);
}

void check_step(const Checker& check, const Experiment& e) {
  const Parallel& p = e.parallel;
  const double microbatches = real(e.batch.tokens) / real(e.batch.microbatch);
  const double passes = microbatches * real(e.model.layers) * real(p.tensor) * real(p.context);
  check.require(passes <= kMostPasses, "batch.tokens",
                "found {}, a step of {:.3g} microbatches x {} layers x tensor {} x context {} = "
                "{:.3g} passes; valid: at most {:.3g}",
                e.batch.tokens, microbatches, e.model.layers, p.tensor, p.context, passes,
                kMostPasses);
  const double pairs = microbatches * real(p.context) * real(p.context);
  check.require(pairs <= kMostPairs, "parallel.context",
                "found {} with {:.3g} microbatches, in each of which all pairs of ranks exchange "
                "messages; valid: at most {:.3g} pairs in a step",
                p.context, microbatches, kMostPairs);
  const double blocks = real(e.batch.tokens) / real(e.attention.block);
  const bool places_blocks =
      disaggregates(e.attention.placement) || e.attention.shares() == Shares::ptrr;
  check.require(!places_blocks || blocks <= kMostBlocks, "attention.block",
                "found {}: {:.3g} blocks in a step; valid: at most {:.3g}", e.attention.block,
                blocks, kMostBlocks);
}

void check_rope(const Checker& check, const Rope& rope) {
  const RopeScaling& s = rope.scaling;
  check.require(s.kind != RopeScalingKind::yarn || rope.theta > 1, "model.rope.theta",
                "found {} with model.rope.scaling.kind = yarn, which tells pairs apart by how fast "
                "they turn; valid: a number > 1",
                rope.theta);
  const bool trained = s.kind == RopeScalingKind::yarn || s.kind == RopeScalingKind::llama3;
  check.require(
      !trained || s.original_context > 0, "model.rope.scaling.original_context",
      "found {}, but model.rope.scaling.kind = {} requires it; valid: the tokens that the "
      "model was trained with",
      s.original_context, word(s.kind));
  check.require(s.beta_slow < s.beta_fast, "model.rope.scaling.beta_slow",
                "found {} with beta_fast = {}; valid: less", s.beta_slow, s.beta_fast);
  check.require(s.low_frequency < s.high_frequency, "model.rope.scaling.low_frequency",
                "found {} with high_frequency = {}; valid: less", s.low_frequency,
                s.high_frequency);
  check.require((s.mscale > 0) == (s.mscale_all_dim > 0), "model.rope.scaling.mscale",
                "found {} with mscale_all_dim = {}; valid: both above 0, or neither", s.mscale,
                s.mscale_all_dim);
}

void check_model(const Checker& check, const Model& m) {
  check_rope(check, m.rope);
  check.require(
      m.own_head_dim > 0 || m.d_model % m.heads == 0, "model.heads",
      "found {}, which does not divide model.d_model = {}; valid: a divisor of it, or any "
      "number with model.head_dim",
      m.heads, m.d_model);
  check.require(m.own_head_dim % 2 == 0, "model.head_dim",
                "found {}; valid: an even number (rotary embedding rotates pairs)", m.own_head_dim);
  check.require(m.head_dim() % 2 == 0, "model.heads",
                "found {}, so that head_dim = model.d_model / model.heads = {}; valid: an even "
                "head_dim (rotary embedding rotates pairs)",
                m.heads, m.head_dim());
  check.require(m.heads % m.kv_heads == 0, "model.kv_heads",
                "found {}, which does not divide model.heads = {}; valid: a divisor of it",
                m.kv_heads, m.heads);
}

void check_divides(const Checker& check, std::int64_t parts, const char* key, std::int64_t whole,
                   const char* of) {
  check.require(whole % parts == 0, key, "found {}, which does not divide {} = {}; valid: {}",
                parts, of, whole, divisors(whole));
}

void check_tensor(const Checker& check, const Parallel& p, const Model& m) {
  check_divides(check, p.tensor, "parallel.tensor", m.heads, "model.heads");
  check_divides(check, p.tensor, "parallel.tensor", m.kv_heads, "model.kv_heads");
  check_divides(check, p.tensor, "parallel.tensor", m.ffn, "model.ffn");
  check.require(p.tensor <= m.vocab, "parallel.tensor",
                "found {}, more than model.vocab = {}; valid: at most model.vocab", p.tensor,
                m.vocab);
}

void check_context(const Checker& check, const Experiment& e, HeadsOf heads_of) {
  const std::int64_t context = e.parallel.context;
  const Attention& a = e.attention;
  const std::int64_t heads = e.model.heads / e.parallel.tensor;
  const PlacementTraits& placement = traits_of(a.placement);
  const auto shares_documents = [](const PlacementTraits& other) {
    return other.reach == Reach::group || other.reach == Reach::pool;
  };
  check.require(context == 1 || placement.reach != Reach::rank, "attention.placement",
                "found {} with parallel.context = {}: no rank has all tokens of a document; "
                "valid: {}",
                placement.word, context, fmt::join(words_in(kPlacements, shares_documents), ", "));
  const bool known = heads_of == HeadsOf::model;
  if (known && placement.keys == KeyPath::heads) {
    const auto splits_some = [](const PlacementTraits& other) {
      return other.keys == KeyPath::head_groups;
    };
    check.require(heads % context == 0, "parallel.context",
                  "found {}, which does not divide the {} heads (model.heads / parallel.tensor) "
                  "that {} splits; valid: {}, or placement {}",
                  context, heads, placement.word, divisors(heads),
                  fmt::join(words_in(kPlacements, splits_some), " or "));
  }
  if (placement.keys == KeyPath::head_groups) {
    check_divides(check, a.head_parallel, "attention.head_parallel", context, "parallel.context");
    if (known) {
      check_divides(check, a.head_parallel, "attention.head_parallel", heads,
                    "model.heads / parallel.tensor");
    }
  }
  if (placement.keys == KeyPath::ring) {
    check_divides(check, a.inner_ring, "attention.inner_ring", context, "parallel.context");
  }
}

void check_rank(const Checker& check, const char* path, double rank, std::int64_t ranks) {
  check.require(rank == std::floor(rank) && rank < static_cast<double>(ranks), path,
                "found rank {}; valid: an integer in [0, {}), as the layout has {}", rank, ranks,
                counted(ranks, "rank"));
}

void check_capacity(const Checker& check, const Experiment& e) {
  constexpr const char* kPath = "attention.capacity";
  constexpr double kMost = 10000;
  const auto& rows = e.attention.capacity;
  const PlacementKind placement = e.attention.placement;
  const bool moves = disaggregates(placement) || placement == PlacementKind::automatic;
  check.require(rows.empty() || moves || packs_by_cost(e.batch.packing) ||
                    (e.parallel.context > 1 && !deals_stripes(placement) &&
                     e.attention.shares() != Shares::ptrr),
                kPath,
                "found {} with placement {}, packing {} and context {}, which give all ranks "
                "the same; valid: with placement cad or auto, packing balanced or pooled, or a "
                "context group without stripes or sharding ptrr",
                counted(std::ssize(rows), "rank"), word(placement), word(e.batch.packing),
                e.parallel.context);
  const Parallel::Open& open = e.parallel.open;
  const bool known = !open.pipeline && !open.tensor && !open.context;
  check.require(rows.empty() || !packs_by_cost(e.batch.packing) || known, kPath,
                "found {} with packing {} and a layout left to placement auto: documents are "
                "packed for a replica's ranks before the layout is chosen; valid: packing fixed or "
                "best_fit, or "
                "parallel.pipeline, tensor and context given",
                counted(std::ssize(rows), "rank"), word(e.batch.packing));
  std::set<double> seen;
  for (const auto& [rank, percent] : rows) {
    check_rank(check, kPath, rank, e.ranks());
    check.require(percent == std::floor(percent) && percent >= 1 && percent <= kMost, kPath,
                  "found {} % for rank {}; valid: an integer in [1, {}]", percent, rank, kMost);
    check.require(seen.insert(rank).second, kPath, "found rank {} twice; valid: once", rank);
  }
}

void check_kind(const Checker& check, const Attention& a) {
  check.require(a.kind != AttentionKind::window || a.window > 0, "attention.window",
                "found {}, but attention.kind = window requires it; valid: 1 or more tokens, the "
                "query's own among them",
                a.window);
  check.require(a.kind != AttentionKind::dual_chunk || a.local < a.chunk, "attention.local",
                "found {} of attention.chunk = {} tokens; valid: fewer, as chunk - local is the "
                "stride",
                a.local, a.chunk);
}

/// Checks that sinks and window are within their budgets. A default may exceed a budget: it is then
/// cut to it.
void check_budgets(const Checker& check, const SparseAttention& s) {
  const SparseAttention defaults;
  const auto within = [&](std::int64_t forced, std::int64_t usual, std::int64_t budget,
                          const char* path, const char* what) {
    check.require(s.top_p > 0 || forced == usual || forced <= budget, path,
                  "found {}, but attention.sparse.{} keeps only {}; valid: at most as many", forced,
                  what, budget);
  };
  within(s.sinks, defaults.sinks, s.columns, "attention.sparse.sinks", "columns");
  within(s.window, defaults.window, s.slashes, "attention.sparse.window", "slashes");
  check.require(s.columns + s.slashes > 0, "attention.sparse.columns",
                "found 0 with attention.sparse.slashes = 0, which leaves nothing but the blocks of "
                "the diagonal; valid: 1 or more of either");
}

void check_antidiagonals(const Checker& check, const SparseRule& rule) {
  check.require(rule.block % rule.stride == 0 && rule.block / rule.stride <= SparseRule::kObserved,
                "attention.sparse.stride",
                "found {} with attention.sparse.block = {}; valid: a divisor of the block, at most "
                "{} times smaller",
                rule.stride, rule.block, SparseRule::kObserved);
}

void check_sparse(const Checker& check, const Experiment& e) {
  const Attention& a = e.attention;
  const SparseAttention& s = a.sparse;
  const SparseRule rule = a.sparse_rule();
  if (rule.block == 0) return;
  const AttentionTraits& kind = traits_of(a.kind);
  if (kind.takes("attention.sparse.columns")) check_budgets(check, s);
  if (kind.takes("attention.sparse.stride")) check_antidiagonals(check, rule);
  check.require(a.overlap != Overlap::ping_pong, "attention.overlap",
                "found ping_pong with attention.kind {}: the index needs whole documents, and each "
                "half of a microbatch has a part of them; valid: none",
                word(a.kind));
  const bool pooled =
      e.parallel.pipeline > 1 && e.pipeline_schedule() == PipelineSchedule::phase_aligned;
  check.require(s.refresh == 1 || !pooled, "attention.sparse.refresh",
                "found {} with schedule phase_aligned, where servers compute layers of several "
                "stages at once; valid: 1, or another parallel.schedule",
                s.refresh);
}

/// Whether the first layers of all pipeline stages are of the same kind, their second ones, ...
bool stages_are_alike(const Experiment& e) {
  if (e.model.layers % e.parallel.pipeline != 0) return false;
  const std::int64_t layers = e.model.layers / e.parallel.pipeline;
  for (std::int64_t layer = 0; layer < e.model.layers; ++layer) {
    if (e.attention.is_full(layer) != e.attention.is_full(layer % layers)) return false;
  }
  return true;
}

void check_layers(const Checker& check, const Experiment& e) {
  const Attention& a = e.attention;
  if (a.layers.empty()) return;
  for (const AttentionKind each : a.layers) {
    check.require(each == a.kind || each == AttentionKind::full, "attention.layers",
                  "found {} with attention.kind {}; valid: {} and full", word(each), word(a.kind),
                  word(a.kind));
  }
  const std::int64_t full = a.full_layers({0, e.model.layers});
  check.require(full < e.model.layers, "attention.layers",
                "found no {} for any of {} layers; valid: at least one, or attention.kind full",
                word(a.kind), e.model.layers);
  if (full == 0) return;
  check.require(a.kind != AttentionKind::dual_chunk, "attention.layers",
                "found full with attention.kind dual_chunk, whose keys lie at other positions; "
                "valid: dual_chunk alone");
  const bool pooled =
      e.parallel.pipeline > 1 && e.pipeline_schedule() == PipelineSchedule::phase_aligned;
  const bool sparse = traits_of(a.kind).sparse.has_value();
  check.require(!pooled || (!sparse && stages_are_alike(e)), "attention.layers",
                "found {} with schedule phase_aligned (of cad with pipelines, unless "
                "parallel.schedule says otherwise), where servers compute the same layer of "
                "several stages at once; valid: {}{}",
                sparse ? "full and sparse layers" : "stages that differ",
                sparse ? "one kind" : "the same kinds in the same order in all stages",
                a.servers > 0 ? "" : ", or another parallel.schedule");
}

void check_attention(const Checker& check, const Experiment& e) {
  check_capacity(check, e);
  check_kind(check, e.attention);
  check_sparse(check, e);
  check_layers(check, e);
  const Attention& a = e.attention;
  const Parallel& p = e.parallel;
  check.require(a.servers == 0 || traits_of(a.placement).reach != Reach::group, "attention.servers",
                "found {} dedicated servers with placement {}, which computes on the ranks that "
                "share a sequence; valid: in_place",
                a.servers, word(a.placement));
  check.require(a.servers % p.tensor == 0, "attention.servers",
                "found {} dedicated ranks; valid: a multiple of parallel.tensor = {}, whose ranks "
                "serve together",
                a.servers, p.tensor);
  check.require(
      !a.mixed || a.placement == PlacementKind::automatic ||
          (a.servers > 0 && disaggregates(a.placement)),
      "attention.mixed",
      "found true with {} dedicated servers and placement {}; valid: only with placement auto, or "
      "cad and attention.servers >= 1",
      a.servers, word(a.placement));
  const bool aligned = p.pipeline > 1 && e.pipeline_schedule() == PipelineSchedule::phase_aligned;
  const bool recomputes_attention =
      e.run.recompute == Recompute::attention || e.run.recompute == Recompute::layer;
  check.require(a.inputs == Inputs::resend || !aligned, "attention.inputs",
                "found keep with schedule phase_aligned: the backward pass of a microbatch may run "
                "on other servers than its forward pass; valid: resend");
  check.require(a.inputs == Inputs::resend || !recomputes_attention, "attention.inputs",
                "found keep with run.recompute = {}, which recomputes Q, K and V; valid: resend",
                word(e.run.recompute));
  check.require(a.overlap != Overlap::ping_pong || !deals_stripes(a.placement), "attention.overlap",
                "found ping_pong with placement {}: the first half of a striped sequence sees keys "
                "of the second; valid: none",
                word(a.placement));
  check.require(a.overlap != Overlap::ping_pong || a.mask().is_causal(), "attention.overlap",
                "found ping_pong with attention.kind {}: the first half of a microbatch sees keys "
                "of the second; valid: none",
                word(a.kind));
  check.require(std::ranges::is_sorted(e.batch.outliers), "batch.outliers",
                "found lengths that do not ascend; valid: ascending lengths");
}

/// Checks batch.microbatch = auto, by which the search takes so many sequences at once.
void check_open_microbatch(const Checker& check, const Experiment& e) {
  if (!e.batch.microbatch_open) return;
  check.require(e.attention.placement == PlacementKind::automatic, "attention.placement",
                "found {} with batch.microbatch = auto, which placement auto alone decides; valid: "
                "auto, or an integer for batch.microbatch",
                word(e.attention.placement));
  const std::int64_t sequence = e.data.max_document;
  check.require(sequence >= 2 && sequence <= kMaxSize, "batch.microbatch",
                "found auto with data.max_document = {}, whose multiples it tries; valid: an "
                "integer, or data.max_document in [2, {}]",
                sequence, kMaxSize);
}

/// Checks batch.tokens. Placement auto chooses the data ranks itself, such that the batch feeds all
/// of them, so parallel.data does not count there.
void check_batch(const Checker& check, const Batch& b, const Parallel& p, PlacementKind placement) {
  const bool open = placement == PlacementKind::automatic;
  const std::int64_t unit = b.microbatch * (open ? 1 : p.data);
  const std::string what = b.microbatch_open
                               ? fmt::format("data.max_document = {} (batch.microbatch auto)", unit)
                           : open ? fmt::format("batch.microbatch = {}", unit)
                                  : fmt::format("batch.microbatch x parallel.data = {} x {} = {}",
                                                b.microbatch, p.data, unit);
  check.require(b.tokens >= b.microbatch, "batch.tokens",
                "found {}, a batch smaller than one microbatch (batch.microbatch = {}); valid: a "
                "multiple of {}",
                b.tokens, b.microbatch, what);
  check.require(b.tokens % unit == 0, "batch.tokens", "found {}, no multiple of {}; valid: e.g. {}",
                b.tokens, what, (b.tokens / unit + 1) * unit);
}

void check_share(const Checker& check, const char* path, double share) {
  check.require(share > 0 && share <= 1, path, "found a share of {}; valid: a number in (0, 1]",
                share);
}

void check_slow_adapters(const Checker& check, const Experiment& e) {
  constexpr const char* kPath = "cluster.slow_adapters";
  if (e.cluster.slow_adapters.empty()) return;
  const std::int64_t each = e.cluster.ranks_per_node;
  check.require(each > 0 && each < e.ranks(), kPath,
                "found cluster.ranks_per_node = {} and {}; valid: two nodes or more", each,
                counted(e.ranks(), "rank"));
  const std::int64_t nodes = (e.ranks() + each - 1) / each;
  for (const auto& [node, out, in] : e.cluster.slow_adapters) {
    check.require(node == std::floor(node) && node < real(nodes), kPath,
                  "found node {}; valid: an integer in [0, {})", node, nodes);
    check_share(check, kPath, out);
    check_share(check, kPath, in);
    check.require(out < 1 || in < 1, kPath,
                  "found a row of node {} that changes nothing; valid: a share below 1", node);
  }
}

void check_fault(const Checker& check, const Fault& fault) {
  constexpr const char* kPath = "cluster.faults";
  const auto require = [&](bool holds, const char* what) {
    check.require(holds, kPath, "found a fault of rank {} {}", fault.rank, what);
  };
  const bool operates = fault.is_of_operations();
  require(operates || fault.between > 0 || fault.clock != 0,
          "that changes nothing; valid: a speed or core below 1, a pause, between or clock");
  require(operates || (fault.phase == FaultPhase::all && fault.work == FaultWork::all),
          "with phase or work, but without speed, pause and core; valid: one of them");
  require(fault.clock == 0 || fault.steps.empty(),
          "with clock and steps; valid: two blocks, as a clock is wrong in every step");
  check.require(fault.phase != FaultPhase::optimizer || fault.work == FaultWork::all, kPath,
                "found a fault of rank {} with phase optimizer and work {}, of which there is none "
                "in that phase; valid: work all",
                fault.rank, word(fault.work));
}

void check_cluster(const Checker& check, const Experiment& e) {
  for (const auto& [rank, share] : e.cluster.slow_ranks) {
    check_rank(check, "cluster.slow_ranks", rank, e.ranks());
    check_share(check, "cluster.slow_ranks", share);
  }
  for (const auto& [one, other, share] : e.cluster.slow_links) {
    check_rank(check, "cluster.slow_links", one, e.ranks());
    check_rank(check, "cluster.slow_links", other, e.ranks());
    check_share(check, "cluster.slow_links", share);
    check.require(one != other, "cluster.slow_links",
                  "found a link from rank {} to itself; valid: two ranks", one);
  }
  check_slow_adapters(check, e);
  for (const Fault& fault : e.cluster.faults) {
    check_rank(check, "cluster.faults", real(fault.rank), e.ranks());
    check_fault(check, fault);
  }
}

void check_run(const Checker& check, const Experiment& e) {
  check.require(e.run.validate.every == 0 || !e.data.validation.empty(), "run.validate.every",
                "found {}, but data.validation names no documents; valid: 0, or with "
                "data.validation",
                e.run.validate.every);
  const Run& run = e.run;
  check.require(run.transport != Transport::mpi || run.device == DeviceKind::host, "run.transport",
                "found mpi with run.device = {}, whose memory MPI is not given; valid: auto, nccl, "
                "staged",
                word(run.device));
  check.require(run.offload == Offload::none || !e.cluster.software.says_kept(), "run.offload",
                "found {} with cluster.software = {}, of whose layers only the bytes in all are "
                "known; valid: none",
                word(run.offload), e.cluster.software.name);
}

}  // namespace

void check_consistency(const Experiment& experiment, const Value& root, HeadsOf heads) {
  const Checker check(root);
  refuse_strangers(experiment, root);
  check.require(names_folder(experiment.name), "name",
                "found {}; valid: {} (the run goes to runs/<name>; --output names any folder)",
                one_line(experiment.name), kValidName);
  check_rank_count(check, experiment.parallel, experiment.attention.servers);
  check_model(check, experiment.model);
  check_open_microbatch(check, experiment);
  check_size(check, experiment);
  check_step(check, experiment);
  check_tensor(check, experiment.parallel, experiment.model);
  check_batch(check, experiment.batch, experiment.parallel, experiment.attention.placement);
  check_pipeline(check, experiment);
  check_context(check, experiment, heads);
  check_attention(check, experiment);
  check_data(check, experiment.data, experiment.model);
  check_cluster(check, experiment);
  check_run(check, experiment);
  check.require(experiment.optimizer.betas.size() == 2, "optimizer.betas",
                "found {} in the list; valid: two numbers, e.g. [0.9, 0.95]",
                experiment.optimizer.betas.size());
}

void check_faults(const Experiment& experiment, std::int64_t first, std::int64_t steps) {
  for (std::size_t i = 0; i < experiment.cluster.faults.size(); ++i) {
    for (const std::int64_t step : experiment.cluster.faults[i].steps) {
      if (step >= first && step < first + steps) continue;
      fail(ExitCode::usage, "cluster.faults[{}].steps: found {}; valid: steps in [{}, {})", i, step,
           first, first + steps);
    }
  }
}

void check_ranks(const Experiment& experiment, int ranks) {
  if (experiment.ranks() == ranks) return;
  const Parallel& p = experiment.parallel;
  const std::int64_t servers = experiment.attention.servers;
  const std::string trainers =
      fmt::format("data {} × pipeline {} × tensor {} × context {} = {}", p.data, p.pipeline,
                  p.tensor, p.context, counted(p.trainers(), "trainer"));
  const std::string dedicated =
      servers == 0 ? "" : ", " + counted(servers, "dedicated attention server");
  fail(ExitCode::usage, "this experiment needs {} ({}{}); found {}: start it with mpirun -n {}",
       counted(experiment.ranks(), "rank"), trainers, dedicated, ranks, experiment.ranks());
}

}  // namespace cadenza::config
