// SPDX-License-Identifier: Apache-2.0
#include "app/convert/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cadenza/base/error.hpp"
#include "cadenza/base/range.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app {
namespace {

using Json = nlohmann::ordered_json;
using config::AttentionKind;

/// The layers that have a window, which config.json can only say of a kind `window` without sinks.
enum class Windows { none, some, all };

Windows windows_of(const config::Experiment& e) {
  if (e.attention.kind != AttentionKind::window || e.attention.sinks > 0) return Windows::none;
  const std::int64_t full = e.attention.full_layers({0, e.model.layers});
  if (full == e.model.layers) return Windows::none;
  return full == 0 ? Windows::all : Windows::some;
}

struct Class {
  std::string_view type;  ///< model_type
  std::string_view name;  ///< of the class
};

/// Of models without biases and norms of heads, only mistral has a window.
Class class_of(const config::Model& model, Windows windows) {
  if (model.qk_norm && model.qkv_bias) {
    fail(ExitCode::data,
         "model.qk_norm: found true with model.qkv_bias; valid: one of both (no class of "
         "transformers that Cadenza knows has both)");
  }
  if (model.qk_norm) return {"qwen3", "Qwen3ForCausalLM"};
  if (model.qkv_bias) return {"qwen2", "Qwen2ForCausalLM"};
  if (windows == Windows::all) return {"mistral", "MistralForCausalLM"};
  return {"llama", "LlamaForCausalLM"};
}

Json rope_scaling(const config::RopeScaling& scaling) {
  using config::RopeScalingKind;
  switch (scaling.kind) {
    case RopeScalingKind::none:
      return nullptr;
    case RopeScalingKind::linear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScalingKind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"original_max_position_embeddings", scaling.original_context},
              {"low_freq_factor", scaling.low_frequency},
              {"high_freq_factor", scaling.high_frequency}};
    case RopeScalingKind::yarn:
      break;
  }
  Json yarn = {{"rope_type", "yarn"},
               {"factor", scaling.factor},
               {"original_max_position_embeddings", scaling.original_context},
               {"beta_fast", scaling.beta_fast},
               {"beta_slow", scaling.beta_slow}};
  if (scaling.mscale > 0) yarn["mscale"] = scaling.mscale;
  if (scaling.mscale_all_dim > 0) yarn["mscale_all_dim"] = scaling.mscale_all_dim;
  if (scaling.attention_factor > 0) yarn["attention_factor"] = scaling.attention_factor;
  if (!scaling.truncate) yarn["truncate"] = false;
  return yarn;
}

/// The longest document that the model has seen, or is said to be good for.
std::int64_t longest_context(const config::Experiment& e) {
  const std::int64_t seen = e.data.max_document > 0 ? e.data.max_document : e.batch.microbatch;
  const config::RopeScaling& scaling = e.model.rope.scaling;
  const auto scaled =
      static_cast<std::int64_t>(scaling.factor * static_cast<double>(scaling.original_context));
  return std::max(seen, scaled);
}

/// Says which layers have the window, as the class says it. @return whether it can
bool add_windows(const config::Experiment& e, std::string_view type, Json& json) {
  if (type == "llama") return false;
  json["sliding_window"] = e.attention.window;
  if (type == "mistral") return true;  // of all layers: see class_of()
  json["use_sliding_window"] = true;
  Json types = Json::array();
  for (std::int64_t layer = 0; layer < e.model.layers; ++layer) {
    types.push_back(e.attention.is_full(layer) ? "full_attention" : "sliding_attention");
  }
  json["layer_types"] = types;
  return true;
}

}  // namespace

ModelConfig model_config_of(const config::Experiment& e) {
  const config::Model& m = e.model;
  const Windows windows = windows_of(e);
  const Class of = class_of(m, windows);
  Json json = {{"architectures", {of.name}},
               {"model_type", of.type},
               {"num_hidden_layers", m.layers},
               {"hidden_size", m.d_model},
               {"num_attention_heads", m.heads},
               {"num_key_value_heads", m.kv_heads},
               {"head_dim", m.head_dim()},
               {"intermediate_size", m.ffn},
               {"vocab_size", m.vocab},
               {"hidden_act", "silu"},
               {"rms_norm_eps", m.norm_eps},
               {"rope_theta", m.rope.theta},
               {"rope_scaling", rope_scaling(m.rope.scaling)},
               {"max_position_embeddings", longest_context(e)},
               {"tie_word_embeddings", m.tie_embeddings},
               {"attention_dropout", 0.0},
               {"bos_token_id", nullptr},
               {"eos_token_id", nullptr},
               {"torch_dtype", config::word_of(e.run.dtype)}};
  if (e.data.document_end >= 0) json["eos_token_id"] = e.data.document_end;
  if (of.type == "llama") json["mlp_bias"] = false;
  if (of.type == "llama" || of.type == "qwen3") json["attention_bias"] = false;
  const bool is_full =
      e.attention.kind == AttentionKind::full || e.attention.full_layers({0, m.layers}) == m.layers;
  const bool said = is_full || (windows != Windows::none && add_windows(e, of.type, json));
  ModelConfig made{std::string(of.type), json.dump(2) + "\n", ""};
  if (!said) {
    made.warning = fmt::format(
        "config.json says full attention: model_type {} has nothing for the checkpoint's "
        "attention.kind {}{}",
        of.type, config::word_of(e.attention.kind),
        e.attention.layers.empty() ? "" : " and attention.layers");
  }
  return made;
}

}  // namespace cadenza::app
