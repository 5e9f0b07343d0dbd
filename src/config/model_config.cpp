// SPDX-License-Identifier: Apache-2.0
// The keys of config.json are those of LlamaConfig, MistralConfig, Qwen2Config and Qwen3Config in
// Hugging Face's transformers (huggingface.co/docs/transformers, model_doc/llama and so on).
#include "config/named_files.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cadenza/base/text.hpp"
#include "cadenza/config/limits.hpp"

namespace cadenza::config {
namespace {

constexpr std::string_view kFull = "full", kWindow = "window";
constexpr std::int64_t kMostLayers = 100000;  // of an experiment

/// What sliding_window means: nothing that the class knows, the window of all layers, or that of
/// the layers from max_window_layers on where use_sliding_window is true.
enum class FileWindow { unknown, all_layers, where_used };

/// A model_type that Cadenza has.
struct Family {
  std::string_view type;
  FileWindow window;
  /// Values of keys of `model` that the class implies, or has by default.
  std::vector<std::pair<std::string_view, std::string_view>> implied;
};

const std::vector<Family> kFamilies = {
    {"llama", FileWindow::unknown, {{"norm_eps", "1e-6"}}},
    {"mistral", FileWindow::all_layers, {{"norm_eps", "1e-6"}, {"kv_heads", "8"}}},
    {"qwen2",
     FileWindow::where_used,
     {{"qkv_bias", "true"}, {"norm_eps", "1e-6"}, {"kv_heads", "32"}}},
    {"qwen3",
     FileWindow::where_used,
     {{"qk_norm", "true"}, {"head_dim", "128"}, {"norm_eps", "1e-6"}, {"kv_heads", "32"}}}};

constexpr std::string_view kMistralWindow = "4096";  // where the file has no sliding_window

/// A model_type that Cadenza does not have, and what that would take.
struct OtherFamily {
  std::string_view type;
  std::string_view lacks;
};

constexpr OtherFamily kOthers[] = {
    {"mixtral", "experts"},
    {"qwen2_moe", "experts"},
    {"qwen3_moe", "experts"},
    {"gpt_oss", "experts, sinks in the softmax and biases of O"},
    {"deepseek_v2", "latent attention (MLA) and experts"},
    {"deepseek_v3", "latent attention (MLA) and experts"},
    {"gemma", "GeGLU, norms with 1 + weight and scaled embeddings"},
    {"gemma2",
     "GeGLU, norms with 1 + weight and after branches, scaled embeddings and capped logits"},
    {"gemma3_text", "GeGLU, norms with 1 + weight and after branches, and scaled embeddings"},
    {"phi", "LayerNorm, biases of all matrices, heads rotated in part and MLPs without a gate"},
    {"phi3", "Q, K, V and gate, up in one matrix each, and longrope"}};

/// A key that gives the value of a key of `model`.
struct Given {
  std::string_view name;
  std::string_view path;  ///< below `model`
};

constexpr Given kGiven[] = {
    {"num_hidden_layers", "layers"},  {"hidden_size", "d_model"},
    {"num_attention_heads", "heads"}, {"num_key_value_heads", "kv_heads"},
    {"head_dim", "head_dim"},         {"intermediate_size", "ffn"},
    {"vocab_size", "vocab"},          {"rms_norm_eps", "norm_eps"},
    {"rope_theta", "rope.theta"},     {"tie_word_embeddings", "tie_embeddings"}};

/// The same in rope_scaling, and in rope_parameters, which stands for it and rope_theta since
/// version 5.
constexpr Given kRopeGiven[] = {
    {"rope_type", "rope.scaling.kind"},
    {"type", "rope.scaling.kind"},  // of old files, or beside rope_type
    {"rope_theta", "rope.theta"},
    {"factor", "rope.scaling.factor"},
    {"original_max_position_embeddings", "rope.scaling.original_context"},
    {"beta_fast", "rope.scaling.beta_fast"},
    {"beta_slow", "rope.scaling.beta_slow"},
    {"mscale", "rope.scaling.mscale"},
    {"mscale_all_dim", "rope.scaling.mscale_all_dim"},
    {"attention_factor", "rope.scaling.attention_factor"},
    {"truncate", "rope.scaling.truncate"},
    {"low_freq_factor", "rope.scaling.low_frequency"},
    {"high_freq_factor", "rope.scaling.high_frequency"}};

/// A key that may only have values of which Cadenza's model is an example; null always is.
struct Fixed {
  std::string_view name;
  std::vector<std::string_view> values;
  std::string_view why;
};

const std::vector<Fixed> kFixed = {
    {"hidden_act", {"silu"}, "Cadenza has SwiGLU only"},
    {"mlp_bias", {"false"}, "Cadenza has biases of Q, K and V only"},
    {"use_mrope", {"false"}, "Cadenza counts a document's tokens in one dimension"},
    {"attention_dropout", {"0.0", "0"}, "Cadenza has no dropout"},
    {"partial_rotary_factor", {"1.0", "1"}, "Cadenza rotates whole heads"},
    {"quantization_config", {}, "the type of weights is run.dtype"},
    {"num_experts", {}, "Cadenza has no experts"},
    {"num_local_experts", {}, "Cadenza has no experts"},
    {"n_routed_experts", {}, "Cadenza has no experts"},
    {"num_experts_per_tok", {}, "Cadenza has no experts"},
    {"moe_intermediate_size", {}, "Cadenza has no experts"}};

const std::vector<Fixed> kRopeFixed = {
    {"partial_rotary_factor", {"1.0", "1"}, "Cadenza rotates whole heads"}};

/// Keys that change neither shapes nor what is computed; docs/experiment.md lists them.
constexpr std::string_view kNeutral[] = {
    "_name_or_path",       "bos_token_id",         "dtype",
    "eos_token_id",        "initializer_range",    "max_position_embeddings",
    "max_sequence_length", "pad_token_id",         "pretraining_tp",
    "torch_dtype",         "transformers_version", "use_cache"};
/// Keys of the family and of its mask, which have functions of their own.
constexpr std::string_view kOfFamily[] = {"layer_types", "max_window_layers", "model_type",
                                          "sliding_window", "use_sliding_window"};

bool is_one_of(const Value& value, const std::vector<std::string_view>& texts) {
  return value.kind == Value::Kind::scalar && std::ranges::count(texts, value.text) > 0;
}

/// Adds what one key of config.json, or of its rope_scaling, gives to `model`.
/// @param path  of the key
/// @returns whether it is known
bool take_key(const Entry& entry, const std::string& path, std::span<const Given> given,
              const std::vector<Fixed>& all_fixed, Value& model) {
  const Value& value = entry.value;
  if (const auto to = std::ranges::find(given, entry.name, &Given::name); to != given.end()) {
    if (value.kind != Value::Kind::nothing) add(model, to->path, value);
    return true;
  }
  const auto fixed = std::ranges::find(all_fixed, entry.name, &Fixed::name);
  if (fixed == all_fixed.end()) return false;
  if (value.kind != Value::Kind::nothing && !is_one_of(value, fixed->values)) {
    const std::string valid =
        fixed->values.empty() ? "null" : fmt::format("{}", fmt::join(fixed->values, " or "));
    fail_at(value.place, path,
            fmt::format("found {}; valid: {} ({})", found(value), valid, fixed->why));
  }
  return true;
}

[[noreturn]] void refuse_unknown(const Entry& entry, const std::string& path) {
  fail_at(entry.value.place, path,
          "found a key that Cadenza does not know, so the model may be another; valid: the keys "
          "that docs/experiment.md lists at model.config");
}

void take_rope(const Value& rope, const std::string& path, Value& model) {
  if (rope.kind == Value::Kind::nothing) return;
  if (rope.kind != Value::Kind::block) {
    fail_at(rope.place, path, fmt::format("found {}; valid: null or an object", found(rope)));
  }
  for (Entry entry : rope.entries) {
    const bool is_kind = entry.name == "rope_type" || entry.name == "type";
    if (entry.name == "type" && rope.find("rope_type") != nullptr) continue;
    if (is_kind && entry.value.text == "default") entry.value.text = "none";
    const std::string own = join_path(path, entry.name);
    if (!take_key(entry, own, kRopeGiven, kRopeFixed, model)) refuse_unknown(entry, own);
  }
}

/// Only Hugging Face's classes with an LM head have the parameters that Cadenza counts.
void check_architectures(const Value& classes) {
  for (const Value& name : classes.items) {
    if (name.text.ends_with("ForCausalLM")) continue;
    fail_at(name.place, "architectures",
            fmt::format("found {}; valid: a class whose name ends with ForCausalLM", found(name)));
  }
}

const Family& family_of(const Value& file) {
  std::vector<std::string_view> known;
  for (const Family& family : kFamilies) known.push_back(family.type);
  const Value* const type = file.find("model_type");
  if (type == nullptr || type->kind == Value::Kind::nothing) {
    fail_at(file.place, "model_type",
            fmt::format("found nothing; valid: {}", fmt::join(known, ", ")));
  }
  const auto family = std::ranges::find(kFamilies, type->text, &Family::type);
  if (family != kFamilies.end()) return *family;
  const auto* const other = std::ranges::find(kOthers, type->text, &OtherFamily::type);
  fail_at(type->place, "model_type",
          fmt::format("found {}; valid: {} (Cadenza {})", found(*type), fmt::join(known, ", "),
                      other == std::end(kOthers) ? "knows no other"
                                                 : fmt::format("lacks {}", other->lacks)));
}

/// A family with biases of Q, K and V has them whatever attention_bias says; that of others adds
/// one of O.
void check_bias(const Value& bias, const Family& family) {
  const bool has = std::ranges::count(family.implied, "qkv_bias",
                                      &std::pair<std::string_view, std::string_view>::first) > 0;
  if (bias.kind == Value::Kind::nothing || is_one_of(bias, {has ? "true" : "false"})) return;
  fail_at(bias.place, "attention_bias",
          fmt::format("found {}; valid: {} (Cadenza has biases of Q, K and V only, none of O)",
                      found(bias), has));
}

Value word_at(const Place& place, std::string_view text) {
  Value value;
  value.kind = Value::Kind::scalar;
  value.text = text;
  value.place = place;
  return value;
}

/// Whether the file's window is that of some layer. Refuses one that the class does not know.
bool uses_window(const Value& file, const Family& family) {
  const Value* const window = file.find("sliding_window");
  const Value* const use = file.find("use_sliding_window");
  const bool given = window != nullptr && window->kind != Value::Kind::nothing;
  const bool used = use != nullptr && is_one_of(*use, {"true"});
  switch (family.window) {
    case FileWindow::all_layers:
      return given || window == nullptr;
    case FileWindow::where_used:
      return given && used;
    case FileWindow::unknown:
      break;
  }
  const auto refuse = [](const Value& value, std::string_view name, std::string_view valid) {
    fail_at(value.place, std::string(name),
            fmt::format("found {}; valid: {} (of this model_type; a window is attention.kind and "
                        "attention.window of the experiment)",
                        found(value), valid));
  };
  if (given) refuse(*window, "sliding_window", "null");
  if (used) refuse(*use, "use_sliding_window", "false");
  return false;
}

double number_of(const Value& value) {
  double number = 0;
  std::from_chars(value.text.data(), value.text.data() + value.text.size(), number);
  return number;
}

std::int64_t integer_or(const Value* value, std::int64_t otherwise) {
  if (value == nullptr || value->kind != Value::Kind::scalar) return otherwise;
  std::int64_t number = otherwise;
  std::from_chars(value->text.data(), value->text.data() + value->text.size(), number);
  return number;
}

/// Kinds of attention that layer_types lists.
std::vector<Value> listed_kinds(const Value& types, std::int64_t layers, bool windows) {
  if (std::ssize(types.items) != layers) {
    fail_at(types.place, "layer_types",
            fmt::format("found {} types; valid: one for each of {} layers (num_hidden_layers)",
                        types.items.size(), layers));
  }
  std::vector<Value> kinds;
  for (const Value& type : types.items) {
    if (type.text == "sliding_attention" && windows) {
      kinds.push_back(word_at(type.place, kWindow));
    } else if (type.text == "full_attention") {
      kinds.push_back(word_at(type.place, kFull));
    } else {
      fail_at(type.place, "layer_types",
              fmt::format("found {}; valid: full_attention{}", found(type),
                          windows ? ", sliding_attention" : " (no window is used)"));
    }
  }
  return kinds;
}

/// Kinds of so many layers, or of those of layer_types; empty: all are full.
std::vector<Value> kinds_of_layers(const Value& file, std::int64_t layers) {
  const Family& family = family_of(file);
  const bool windows = uses_window(file, family);
  const Value* const types = file.find("layer_types");
  if (types != nullptr && types->kind == Value::Kind::list) {
    return listed_kinds(*types, integer_or(file.find("num_hidden_layers"), 0), windows);
  }
  if (!windows || layers > kMostLayers) return {};
  constexpr std::int64_t kFirstWindow = 28;  // by Qwen's classes
  const bool all = family.window == FileWindow::all_layers;
  const std::int64_t first = all ? 0 : integer_or(file.find("max_window_layers"), kFirstWindow);
  std::vector<Value> kinds;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    kinds.push_back(word_at(file.place, layer < first ? kFull : kWindow));
  }
  return kinds;
}

/// Adds the file's window to an experiment with so many layers that says no kind of attention.
void add_window(const Value& file, std::int64_t layers, Value& root) {
  std::vector<Value> kinds = kinds_of_layers(file, layers);
  if (gives(root, "attention.kind")) return;
  if (layers > 0 && std::ssize(kinds) > layers) kinds.resize(static_cast<std::size_t>(layers));
  const auto full = std::ranges::count(kinds, kFull, &Value::text);
  if (full == std::ssize(kinds)) return;
  const Value* const given = file.find("sliding_window");
  const Value window = given != nullptr ? *given : word_at(file.place, kMistralWindow);
  add(root, "attention.kind", word_at(window.place, kWindow));
  add(root, "attention.window", window);
  if (full == 0 || gives(root, "attention.layers")) return;
  Value list = word_at(window.place, "");
  list.kind = Value::Kind::list;
  list.items = std::move(kinds);
  add(root, "attention.layers", list);
}

/// A file may say rope_theta twice, for versions before and after 5.
void check_thetas(const Value& file) {
  const Value* const theta = file.find("rope_theta");
  const Value* const rope = file.find("rope_parameters");
  const Value* const other = rope == nullptr ? nullptr : rope->find("rope_theta");
  if (theta == nullptr || other == nullptr || number_of(*theta) == number_of(*other)) return;
  fail_at(other->place, "rope_parameters.rope_theta",
          fmt::format("found {}; valid: {}, as in rope_theta, or one of both", found(*other),
                      found(*theta)));
}

/// The block `model` that config.json describes.
Value model_of(const Value& file) {
  const Family& family = family_of(file);
  Value model;
  model.kind = Value::Kind::block;
  for (const Entry& entry : file.entries) {
    const std::string& name = entry.name;
    if (name == "rope_scaling" || name == "rope_parameters") {
      take_rope(entry.value, name, model);
    } else if (name == "architectures") {
      check_architectures(entry.value);
    } else if (name == "attention_bias") {
      check_bias(entry.value, family);
    } else if (std::ranges::count(kNeutral, name) == 0 &&
               std::ranges::count(kOfFamily, name) == 0 &&
               !take_key(entry, name, kGiven, kFixed, model)) {
      refuse_unknown(entry, name);
    }
  }
  check_thetas(file);
  for (const auto& [key, value] : family.implied) {
    const auto given = std::ranges::find(kGiven, key, &Given::path);
    if (given != std::end(kGiven) && file.find(std::string(given->name)) != nullptr) continue;
    add(model, key, word_at(file.find("model_type")->place, value));
  }
  return model;
}

}  // namespace

void resolve_model_config(Value& root, const ReadFile& read) {
  Value* const model = root.find("model");
  const Value* const config = model == nullptr ? nullptr : model->find("config");
  if (config == nullptr) return;
  if (config->kind != Value::Kind::scalar) {
    fail_at(config->place, "model.config",
            fmt::format("found {}; valid: the path of a config.json", found(*config)));
  }
  const std::string path = config->text;
  erase(*model, "config");
  if (path.empty()) return;
  // JSON is YAML, and what reads YAML has the bounds and the messages that are wanted.
  const Value file = parse_yaml(
      read(path, "model.config with a Hugging Face config.json (inputs/models has some)"), path,
      "a Hugging Face config.json");
  Value described = model_of(file);
  if (gives(*model, "rope.scaling.kind")) {
    if (Value* const rope = described.find("rope")) erase(*rope, "scaling");
  }
  add_missing(*model, described);
  model->place = file.place;  // what is missing is missing there
  add_window(file, integer_or(model->find("layers"), 0), root);
}

}  // namespace cadenza::config
