// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "app/planner/advise/recipes.hpp"
#include "app/planner/search/candidates.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/program/stages.hpp"

namespace cadenza::app {
namespace {

using config::PlacementKind;

/// A model of torchtitan/models/llama3.
struct Flavor {
  const char* name;
  std::int64_t d_model, layers, heads, kv_heads;
};
constexpr std::array<Flavor, 3> kFlavors = {
    {{"8B", 4096, 32, 32, 8}, {"70B", 8192, 80, 64, 8}, {"405B", 16384, 126, 128, 8}}};

class Toml {
 public:
  Toml(const config::Experiment& e, std::int64_t sequence) : e_(e), sequence_(sequence) {
    recipe_ = {.stack = "torchtitan", .file = "torchtitan.toml"};
    add_model();
    add_batch();
    section("parallelism");
    add_states();
    add_attention();
    add_stages();
    add_recomputation();
    section("compile");
    key("enable", "true");
    if (!recipe_.same() && e.cluster.software.name != recipe_.stack) {
      recipe_.notes.push_back("--software torchtitan searches layouts with FSDP");
    }
    recipe_.notes.push_back(
        "TOML is read by torchtitan up to v0.2.2; data and optimizer are yours to add");
  }

  Recipe recipe() && { return std::move(recipe_); }

 private:
  void section(const char* name) {
    recipe_.text += fmt::format("{}[{}]\n", recipe_.text.empty() ? "" : "\n", name);
  }
  template <typename Value>
  void key(const char* name, const Value& value) {
    recipe_.text += fmt::format("{} = {}\n", name, value);
  }
  void word(const char* name, std::string_view value) { key(name, fmt::format("\"{}\"", value)); }
  void lacks(std::string what) { recipe_.missing.push_back(std::move(what)); }
  /// Sequences of a microbatch.
  std::int64_t at_once() const { return e_.batch.microbatch / sequence_; }

  void add_model() {
    const config::Model& m = e_.model;
    const auto known = std::ranges::find_if(kFlavors, [&](const Flavor& flavor) {
      return flavor.d_model == m.d_model && flavor.layers == m.layers && flavor.heads == m.heads &&
             flavor.kv_heads == m.kv_heads;
    });
    section("model");
    if (m.query_width() != m.d_model) lacks(fmt::format("head_dim {}", m.head_dim()));
    if (m.qkv_bias) lacks("biases of Q, K and V");
    if (m.qk_norm) lacks("norms of Q and K");
    word("name", "llama3");
    if (known != kFlavors.end()) {
      word("flavor", fmt::format("{}_flex", known->name));
    } else {
      word("flavor", "yours");
    }
    recipe_.notes.push_back(fmt::format(
        "the flavor has to be in llama3_args with attn_type flex and attn_mask_type block_causal, "
        "so "
        "that documents do not see each other: dim {}, n_layers {}, n_heads {}, n_kv_heads {}, "
        "feed-forward {}, rope_theta {:.0f}",
        m.d_model, m.layers, m.heads, m.kv_heads, m.ffn, m.rope.theta));
  }

  void add_batch() {
    const config::Parallel& p = e_.parallel;
    const std::int64_t sequences = e_.batch.tokens / sequence_;
    section("training");
    key("seq_len", sequence_);
    key("local_batch_size", p.pipeline > 1 ? sequences / p.data : at_once());
    key("global_batch_size", sequences);
    word("mixed_precision_param", "bfloat16");
  }

  void add_states() {
    const config::Parallel& p = e_.parallel;
    const bool sharded = p.shard == config::Shard::parameters;
    if (p.shard == config::Shard::optimizer) {
      lacks("shard optimizer (ZeRO stage 1): whole replicas or FSDP");
    }
    if (p.shard == config::Shard::none && p.context > 1) {
      lacks("whole parameters with context parallelism: it shards them over the context ranks");
    } else if (p.shard == config::Shard::none && p.data > 1 && p.trainers() > p.data) {
      lacks("whole replicas beside other parallelism: FSDP alone goes with it");
    }
    key("data_parallel_replicate_degree", sharded ? 1 : p.data);
    key("data_parallel_shard_degree", sharded ? p.data : 1);
    key("tensor_parallel_degree", p.tensor);
  }

  void add_attention() {
    const config::Attention& a = e_.attention;
    key("context_parallel_degree", e_.parallel.context);
    switch (a.placement) {
      case PlacementKind::colocated:
        break;
      case PlacementKind::zigzag:
        word("context_parallel_rotate_method", "alltoall");
        recipe_.notes.push_back(
            "alltoall rotates keys for causal SDPA alone; with document masks (flex) keys are "
            "gathered");
        break;
      case PlacementKind::all_gather:
        word("context_parallel_rotate_method", "allgather");
        break;
      case PlacementKind::ring:
      case PlacementKind::striped:
      case PlacementKind::block_striped:
      case PlacementKind::ulysses:
      case PlacementKind::ulysses_ring:
      case PlacementKind::double_ring:
      case PlacementKind::dynamic:
      case PlacementKind::cad:
      case PlacementKind::automatic:
        lacks(fmt::format("placement {}", placement_text(a)));
    }
    if (a.servers > 0) lacks(fmt::format("{} attention servers", a.servers));
  }

  void add_stages() {
    const config::Parallel& p = e_.parallel;
    key("pipeline_parallel_degree", p.pipeline);
    if (p.pipeline == 1) return;
    if (config::disaggregates(e_.attention.placement)) {
      lacks("schedule phase_aligned, which gives all stages' attention to one pool");
    }
    word("pipeline_parallel_schedule", p.chunks > 1 ? "Interleaved1F1B" : "1F1B");
    key("pipeline_parallel_microbatch_size", at_once());
    const std::vector<Range> parts = program::stage_layers(e_);
    const auto even = [&](Range part) { return part.size() == parts.front().size(); };
    if (std::ranges::all_of(parts, even)) {
      key("pipeline_parallel_layers_per_stage", parts.front().size());
      key("pipeline_parallel_first_stage_less_layers", 0);
      key("pipeline_parallel_last_stage_less_layers", 0);
    } else {
      recipe_.notes.push_back(
          "stages of unequal numbers of layers: name the modules of each in "
          "module_fqns_per_model_part");
    }
  }

  void add_recomputation() {
    section("activation_checkpoint");
    const config::Recompute recompute = e_.run.recompute;
    const bool layer = recompute == config::Recompute::layer;
    word("mode", layer ? "full" : "none");
    if (recompute != config::Recompute::none && !layer) {
      lacks(fmt::format("recompute {} (mode selective saves by operation)",
                        config::word_of(recompute)));
    }
  }

  const config::Experiment& e_;
  std::int64_t sequence_;
  Recipe recipe_;
};

}  // namespace

Recipe torchtitan_recipe(const config::Experiment& e, std::int64_t sequence) {
  return Toml(e, sequence).recipe();
}

}  // namespace cadenza::app
