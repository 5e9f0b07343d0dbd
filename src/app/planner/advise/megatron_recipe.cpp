// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "app/planner/advise/recipes.hpp"
#include "app/planner/search/candidates.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/program/stages.hpp"

namespace cadenza::app {
namespace {

using config::PlacementKind;

/// Arguments, and what they cannot say.
class Arguments {
 public:
  Arguments(const config::Experiment& e, std::int64_t sequence, std::int64_t ranks_per_node)
      : e_(e), sequence_(sequence), by_document_(has_dynamic_context(e)) {
    const std::int64_t ranks = e.parallel.trainers();
    // Nodes of equal numbers of ranks, as torchrun starts them.
    const std::int64_t each = ranks_per_node > 0 ? std::gcd(ranks, ranks_per_node) : ranks;
    recipe_ = {.stack = "Megatron-LM", .file = "megatron.sh"};
    line(fmt::format("torchrun --nnodes {} --nproc-per-node {} pretrain_gpt.py", ranks / each,
                     each));
    add_model();
    add_batch();
    add_degrees();
    add_stages();
    add_attention();
    add_states();
    add_recomputation();
    recipe_.notes.push_back(
        "tokenizer, data, learning rate and output are yours to add, and torchrun's rendezvous");
  }

  Recipe recipe() && { return std::move(recipe_); }

 private:
  void line(const std::string& arguments) {
    if (!recipe_.text.empty()) recipe_.text.insert(recipe_.text.size() - 1, " \\");
    recipe_.text += (recipe_.text.empty() ? "" : "  ") + arguments + "\n";
  }
  void lacks(std::string what) { recipe_.missing.push_back(std::move(what)); }

  /// Whether the experiment has a degree for each document that --hybrid-context-parallel can give:
  /// its groups are powers of two of all data x context ranks.
  static bool has_dynamic_context(const config::Experiment& e) {
    const config::Parallel& p = e.parallel;
    return e.attention.placement == PlacementKind::dynamic && p.context > 1 && p.pipeline == 1 &&
           p.shard != config::Shard::parameters &&
           std::has_single_bit(static_cast<std::uint64_t>(p.data * p.context));
  }

  void add_model() {
    const config::Model& m = e_.model;
    line(fmt::format("--num-layers {} --hidden-size {} --ffn-hidden-size {}", m.layers, m.d_model,
                     m.ffn));
    std::string heads = fmt::format("--num-attention-heads {}", m.heads);
    if (m.kv_heads != m.heads) {
      heads += fmt::format(" --group-query-attention --num-query-groups {}", m.kv_heads);
    }
    if (m.query_width() != m.d_model) heads += fmt::format(" --kv-channels {}", m.head_dim());
    line(heads);
    line(fmt::format(
        "--swiglu --normalization RMSNorm --norm-epsilon {:g} --disable-bias-linear{}{}",
        m.norm_eps, m.qkv_bias ? " --add-qkv-bias" : "", m.qk_norm ? " --qk-layernorm" : ""));
    line(fmt::format("--position-embedding-type rope --rotary-base {:.0f}{}", m.rope.theta,
                     m.tie_embeddings ? "" : " --untie-embeddings-and-output-weights"));
    line("--attention-dropout 0 --hidden-dropout 0 --transformer-impl transformer_engine");
    if (m.rope.scaling.kind != config::RopeScalingKind::none) {
      recipe_.notes.push_back(
          "scaled rotary positions (model.rope.scaling) are not in these lines");
    }
  }

  void add_batch() {
    line(fmt::format("--seq-length {0} --max-position-embeddings {0}", sequence_));
    // Documents that run one by one have no microbatches.
    const std::int64_t at_once = by_document_ ? 1 : e_.batch.microbatch / sequence_;
    line(fmt::format("--micro-batch-size {} --global-batch-size {}{}", at_once,
                     e_.batch.tokens / sequence_,
                     e_.run.dtype == config::Dtype::bfloat16 ? " --bf16" : ""));
    if (e_.cluster.software.gradients == config::Precision::stored) line("--grad-reduce-in-bf16");
  }

  void add_degrees() {
    const config::Parallel& p = e_.parallel;
    std::string tensor = fmt::format("--tensor-model-parallel-size {}", p.tensor);
    if (p.tensor > 1) tensor += " --sequence-parallel";
    if (p.tensor > 1 && !by_document_) tensor += " --tp-comm-overlap";
    line(tensor);
    line(fmt::format("--pipeline-model-parallel-size {} --context-parallel-size {}", p.pipeline,
                     p.context));
  }

  /// Chunks of equal size by their number, others by Megatron's own language of layouts.
  void add_stages() {
    const config::Parallel& p = e_.parallel;
    if (p.pipeline == 1) return;
    if (config::disaggregates(e_.attention.placement)) {
      lacks("schedule phase_aligned, which gives all stages' attention to one pool");
    }
    const std::vector<Range> parts = program::stage_layers(e_);
    const bool even =
        std::ranges::all_of(parts, [&](Range part) { return part.size() == parts.front().size(); });
    if (even) {
      if (p.chunks > 1) line(fmt::format("--num-virtual-stages-per-pipeline-rank {}", p.chunks));
      return;
    }
    std::string layout = "E";
    for (std::size_t i = 0; i < parts.size(); ++i) {
      layout += fmt::format("{}t*{}", i == 0 ? "" : "|", parts[i].size());
    }
    line(fmt::format("--pipeline-model-parallel-layout '{}L'", layout));
  }

  /// Megatron-LM finds degrees by length, so that no rank has more tokens than it may.
  void add_dynamic_context() {
    const config::Parallel& p = e_.parallel;
    if (!by_document_) {
      lacks(
          fmt::format("placement dynamic with data {}, context {}, pipeline {}, shard {}: "
                      "--hybrid-context-parallel has no pipeline, no FSDP, and groups of powers "
                      "of two of data x context ranks",
                      p.data, p.context, p.pipeline, config::word_of(p.shard)));
      if (p.context > 1) line("--cp-comm-type p2p");
      return;
    }
    const double mean = static_cast<double>(e_.batch.microbatch) / static_cast<double>(p.context);
    line(fmt::format("--hybrid-context-parallel --max-seqlen-per-dp-cp-rank {:.0f}",
                     e_.batch.longest * mean));
    line("--calculate-per-token-loss --sft --no-create-attention-mask-in-dataloader");
    recipe_.notes.push_back(
        "Megatron-LM gives a document the least power of two of ranks that keeps "
        "max-seqlen-per-dp-cp-rank, by its length, not by its cost, and a rank runs its documents "
        "one after another: a step may take another time than this row");
    recipe_.notes.push_back(
        "degrees need documents that are packed with their lengths: of Megatron-LM's data sets "
        "only --sft does so, from conversations (--tokenizer-type SFTTokenizer)");
    if (p.tensor > 1) {
      recipe_.notes.push_back(
          "--tp-comm-overlap is left out: its buffers have one length, documents have many");
    }
  }

  void add_attention() {
    const config::Attention& a = e_.attention;
    const std::int64_t context = e_.parallel.context;
    switch (a.placement) {
      case PlacementKind::colocated:
        break;
      case PlacementKind::zigzag:
        line("--cp-comm-type p2p");
        break;
      case PlacementKind::all_gather:
        line("--cp-comm-type all_gather");
        break;
      case PlacementKind::ulysses:
        line("--cp-comm-type a2a");
        break;
      case PlacementKind::ulysses_ring:
        line(fmt::format("--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes {} {}",
                         a.head_parallel, context / a.head_parallel));
        break;
      case PlacementKind::dynamic:
        add_dynamic_context();
        break;
      case PlacementKind::ring:
      case PlacementKind::striped:
      case PlacementKind::block_striped:
      case PlacementKind::double_ring:
      case PlacementKind::cad:
      case PlacementKind::automatic:
        lacks(fmt::format("placement {}", placement_text(a)));
        if (context > 1) line("--cp-comm-type p2p");
    }
    if (a.servers > 0) lacks(fmt::format("{} attention servers", a.servers));
    if (by_document_) return;
    if (context == 1) {
      line("--reset-position-ids --reset-attention-mask --eod-mask-loss");
    } else {
      recipe_.notes.push_back(
          "with context parallelism, documents of a sequence stay apart only in packed (THD) "
          "batches, which the pretraining data set does not make");
    }
  }

  void add_states() {
    switch (e_.parallel.shard) {
      case config::Shard::none:
        line("--overlap-grad-reduce");
        break;
      case config::Shard::optimizer:
        line("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather");
        break;
      case config::Shard::parameters:
        line("--use-megatron-fsdp --use-distributed-optimizer");
        line("--data-parallel-sharding-strategy optim_grads_params");
        break;
    }
  }

  void add_recomputation() {
    switch (e_.run.recompute) {
      case config::Recompute::none:
        break;
      case config::Recompute::mlp:
        line("--recompute-granularity selective --recompute-modules mlp");
        break;
      case config::Recompute::attention:
        line("--recompute-granularity selective --recompute-modules core_attn");
        recipe_.notes.push_back(
            "core_attn recomputes core attention, not the projections before it");
        break;
      case config::Recompute::layer:
        line("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1");
        break;
    }
  }

  const config::Experiment& e_;
  std::int64_t sequence_;
  bool by_document_;  ///< a context degree for each
  Recipe recipe_;
};

}  // namespace

Recipe megatron_recipe(const config::Experiment& e, std::int64_t sequence,
                       std::int64_t ranks_per_node) {
  return Arguments(e, sequence, ranks_per_node).recipe();
}

}  // namespace cadenza::app
