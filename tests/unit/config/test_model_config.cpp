// SPDX-License-Identifier: Apache-2.0
// model.config: a Hugging Face config.json gives keys of `model`; what is written in the experiment
// wins, and a model that Cadenza does not have is refused by the key that says so.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "cadenza/config/sweep.hpp"
#include "support.hpp"

namespace cadenza::config::test_model_config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// As transformers writes a Llama; line numbers matter to the tests.
const std::string kLlama = R"({
  "architectures": ["LlamaForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "bos_token_id": 1,
  "eos_token_id": [2, 3],
  "head_dim": 16,
  "hidden_act": "silu",
  "hidden_size": 64,
  "initializer_range": 0.02,
  "intermediate_size": 96,
  "max_position_embeddings": 131072,
  "mlp_bias": false,
  "model_type": "llama",
  "num_attention_heads": 4,
  "num_hidden_layers": 2,
  "num_key_value_heads": 2,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-06,
  "rope_scaling": {
    "factor": 32.0,
    "high_freq_factor": 8.0,
    "low_freq_factor": 2.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3"
  },
  "rope_theta": 500000.0,
  "tie_word_embeddings": true,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.45.0",
  "use_cache": true,
  "vocab_size": 300
})";

const std::string kOfConfig =
    "name: small\n"                              // 1
    "model: {config: m.json}\n"                  // 2
    "data: {source: text, path: [corpus]}\n"     // 3
    "batch: {tokens: 4096, microbatch: 512}\n";  // 4

/// The experiment whose file m.json has this text.
Experiment experiment_with(const std::string& json, const Overrides& overrides = {},
                           UnusedKeys* unused = nullptr) {
  const auto read = [&](const std::string& path, const std::string&) {
    EXPECT_EQ(path, "m.json");
    return json;
  };
  return parse_experiment(kOfConfig, "e.yaml", overrides, unused, HeadsOf::model, read);
}

std::string refusal(const std::string& json, const Overrides& overrides = {}) {
  try {
    experiment_with(json, overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "none";
}

/// kLlama with one piece replaced.
std::string llama_with(const std::string& from, const std::string& to) {
  std::string text = kLlama;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

/// kLlama with one more key, on line 2.
std::string llama_and(const std::string& more) {
  return llama_with("{\n", "{\n  " + more + ", ");
}

TEST(ModelConfig, GivesTheKeysOfModel) {
  UnusedKeys unused;
  const Experiment of_file = experiment_with(kLlama, {}, &unused);
  const std::string written =
      "model: {layers: 2, d_model: 64, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300, "
      "norm_eps: 1e-6, "
      "tie_embeddings: true, rope: {theta: 5e5, scaling: {kind: llama3, factor: 32, "
      "original_context: 8192, low_frequency: 2, high_frequency: 8}}}\n";
  std::string text = kOfConfig;
  text.replace(text.find("model:"), text.find("data:") - text.find("model:"), written);
  EXPECT_EQ(to_yaml(of_file), to_yaml(parse(text)));
  EXPECT_THAT(unused.lines(), ::testing::IsEmpty());
}

TEST(ModelConfig, AnExperimentIsWrittenWithoutIt) {
  const std::string written = to_yaml(experiment_with(kLlama));
  EXPECT_EQ(written.find("config"), std::string::npos);
  EXPECT_EQ(to_yaml(parse(written)), written);
}

TEST(ModelConfig, ReadsOtherSpellingsOfTheSameModel) {
  const std::string expected = to_yaml(experiment_with(kLlama));
  std::string compact;
  for (const char c : kLlama) compact += c == '\n' ? '\t' : c;
  EXPECT_EQ(to_yaml(experiment_with(compact)), expected);
  EXPECT_EQ(to_yaml(experiment_with(llama_with("\": 64,", "\":64,"))), expected);
  EXPECT_EQ(to_yaml(experiment_with(llama_with("\"rope_type\"", "\"type\""))), expected);
  EXPECT_EQ(
      to_yaml(experiment_with(llama_with("\"rope_type\"", "\"type\": \"llama3\", \"rope_type\""))),
      expected);
  std::string later = llama_with("rope_scaling\": {", "rope_parameters\": {\"rope_theta\": 5e5,");
  later.erase(later.find("  \"rope_theta\": 500000.0,\n"), 26);
  EXPECT_EQ(to_yaml(experiment_with(later)), expected);
}

TEST(ModelConfig, WhatItLacksIsAsInExperiments) {
  const Model bare = experiment_with(R"({
      "model_type": "mistral", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2,
      "num_key_value_heads": null, "vocab_size": 300, "intermediate_size": 8, "head_dim": null,
      "rope_scaling": {"rope_type": "default"}, "sliding_window": null})")
                         .model;
  EXPECT_EQ(bare.kv_heads, 2);
  EXPECT_EQ(bare.head_dim(), 4);
  EXPECT_EQ(bare.norm_eps, 1e-6) << "as in transformers";
  EXPECT_EQ(bare.rope.theta, 10000);
  EXPECT_FALSE(bare.tie_embeddings);
  EXPECT_EQ(bare.rope.scaling.kind, RopeScalingKind::none);
}

TEST(ModelConfig, WhatIsWrittenInTheExperimentWins) {
  const Model m = experiment_with(kLlama, {"model.layers=8", "model.rope.theta=1e6",
                                           "model.rope.scaling.factor=4"})
                      .model;
  EXPECT_EQ(m.layers, 8);
  EXPECT_EQ(m.d_model, 64);
  EXPECT_EQ(m.rope.theta, 1e6);
  EXPECT_EQ(m.rope.scaling.factor, 4);
  EXPECT_EQ(m.rope.scaling.kind, RopeScalingKind::llama3);
}

TEST(ModelConfig, ALaterSettingWins) {
  const auto model_with = [](const std::string& text, const Overrides& overrides) {
    const auto read = [](const std::string&, const std::string&) { return kLlama; };
    return parse_experiment(text, "e.yaml", overrides, nullptr, HeadsOf::model, read).model;
  };
  const std::string other = changed("layers: 2", "layers: 7\n  norm_eps: 0.5");
  const Model replaced = model_with(other, {"model.config=m.json"});
  EXPECT_EQ(replaced.layers, 2);
  EXPECT_EQ(replaced.norm_eps, 1e-6);
  EXPECT_EQ(model_with(other, {"model.layers=8", "model.config=m.json"}).layers, 2);
  EXPECT_EQ(model_with(other, {"model.config=m.json", "model.layers=8"}).layers, 8);
  EXPECT_EQ(model_with(other, {"model.config=\"\""}).layers, 7);
  EXPECT_EQ(model_with(kOfConfig, {"model.layers=8"}).layers, 8);
}

TEST(ModelConfig, AnotherKindOfScalingDoesNotGetItsNumbers) {
  const Model plain = experiment_with(kLlama, {"model.rope.scaling.kind=none"}).model;
  EXPECT_EQ(plain.rope.scaling.factor, 1);
  EXPECT_EQ(plain.rope.theta, 5e5);
  const Overrides linear = {"model.rope.scaling.kind=linear", "model.rope.scaling.factor=2"};
  EXPECT_EQ(experiment_with(kLlama, linear).model.rope.scaling.factor, 2);
}

TEST(ModelConfig, YarnHasWhatTransformersReads) {
  const auto scaling = [](const std::string& more) {
    return experiment_with(llama_with(R"("high_freq_factor": 8.0,
    "low_freq_factor": 2.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3")",
                                      R"("original_max_position_embeddings": 4096,
    "rope_type": "yarn")" + more))
        .model.rope.scaling;
  };
  const RopeScaling plain = scaling("");
  EXPECT_EQ(plain.kind, RopeScalingKind::yarn);
  EXPECT_TRUE(plain.truncate);
  EXPECT_EQ(plain.attention_factor, 0);
  EXPECT_EQ(plain.beta_fast, 32);
  const RopeScaling oss = scaling(
      R"(, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false, "attention_factor": null)");
  EXPECT_FALSE(oss.truncate);
  EXPECT_EQ(oss.original_context, 4096);
  const RopeScaling given =
      scaling(R"(, "attention_factor": 1.25, "mscale": 0.5, "mscale_all_dim": 0.75)");
  EXPECT_EQ(given.attention_factor, 1.25);
  EXPECT_EQ(given.mscale, 0.5);
  EXPECT_EQ(given.mscale_all_dim, 0.75);
}

TEST(ModelConfig, ComesFromSettingsAndSweepsToo) {
  const auto read = [](const std::string& path, const std::string&) {
    return path == "wide.json"
               ? llama_with("\"intermediate_size\": 96", "\"intermediate_size\": 128")
               : kLlama;
  };
  const Base base = parse_base(kOfConfig, "e.yaml");
  const Sweep sweep =
      parse_sweep("base: e.yaml\naxes: {model.config: [m.json, wide.json]}\n", "s.yaml");
  std::vector<std::int64_t> widths;
  for (const SweepPoint& point : points_of(sweep)) {
    widths.push_back(experiment_of(point, base, {}, nullptr, read).model.ffn);
  }
  EXPECT_EQ(widths, (std::vector<std::int64_t>{96, 128}));
}

TEST(ModelConfig, IsAPath) {
  EXPECT_EQ(refusal(kLlama, {"model.config=[m.json]"}),
            "--set model.config=[m.json]: found a list; valid: the path of a config.json");
  EXPECT_EQ(error_of(kGood, {"model.config=no/such.json"}),
            "no/such.json: cannot be read: No such file or directory; valid: model.config with a "
            "Hugging Face config.json (inputs/models has some)");
  EXPECT_EQ(to_yaml(parse(kGood, {"model.config=\"\""})), to_yaml(parse(kGood)));
  EXPECT_THAT(error_of(changed("layers", "confg"), {}), HasSubstr("nearest is 'config'"));
}

TEST(ModelConfig, WrongValuesAreRefusedAtTheirLine) {
  const auto hidden = [](const char* value) {
    return refusal(llama_with("\"hidden_size\": 64", fmt::format("\"hidden_size\": {}", value)));
  };
  EXPECT_THAT(hidden("64.5"), StartsWith("m.json:9: model.d_model: found 64.5; valid: an integer"));
  EXPECT_THAT(hidden("\"64\""), StartsWith("m.json:9: model.d_model: found \"64\"; valid"));
  EXPECT_THAT(hidden("-64"), StartsWith("m.json:9: model.d_model: found -64; valid"));
  EXPECT_THAT(hidden("1e999"), StartsWith("m.json:9: model.d_model: found 1e999; valid"));
  EXPECT_THAT(hidden("99999999999999999999"), StartsWith("m.json:9: model.d_model: found 9999"));
  EXPECT_THAT(hidden("[64]"), StartsWith("m.json:9: model.d_model: found a list; valid"));
  EXPECT_THAT(hidden("{}"), StartsWith("m.json:9: model.d_model: found a block"));
  EXPECT_THAT(hidden("null"), StartsWith("m.json:1: model.d_model: found nothing, but it is requ"));
  EXPECT_THAT(refusal(llama_with("1e-06", "0")), StartsWith("m.json:19: model.norm_eps: found 0"));
  EXPECT_THAT(refusal(llama_with("true,\n  \"torch", "1,\n  \"torch")),
              StartsWith("m.json:28: model.tie_embeddings: found 1; valid: true or false"));
  // Values that do not fit each other.
  EXPECT_THAT(refusal(llama_with("_value_heads\": 2", "_value_heads\": 3")),
              StartsWith("m.json:17: model.kv_heads: found 3"));
  EXPECT_THAT(refusal(kLlama, {"model.kv_heads=3"}), StartsWith("--set model.kv_heads=3: found"));
}

TEST(ModelConfig, BrokenFilesAreRefused) {
  EXPECT_EQ(refusal(llama_and("\"use_cache\": true")),
            "m.json:31: use_cache: found the key a second time (first: m.json:2); valid: once");
  EXPECT_THAT(refusal("[]"), AllOf(StartsWith("m.json:1: found a list"), HasSubstr("config.json")));
  EXPECT_THAT(refusal("7"), StartsWith("m.json:1: found 7; valid: a Hugging Face config.json"));
  for (const std::size_t end : {std::size_t{1}, kLlama.find("silu"), kLlama.find("\"factor"),
                                kLlama.find(",\n  \"vocab"), kLlama.size() - 1}) {
    EXPECT_THAT(refusal(kLlama.substr(0, end)), StartsWith("m.json:")) << end;
  }
  EXPECT_THAT(refusal(llama_and("\"a\": " + repeated("[", 9) + repeated("]", 9))),
              HasSubstr("more than 8 nested levels"));
  EXPECT_THAT(refusal(kLlama + repeated(" ", 1 << 20)), HasSubstr("valid: at most 1048576"));
  EXPECT_THAT(refusal("\xff\xfe{}"), HasSubstr("valid: UTF-8"));
}

/// A key that Cadenza's model does not have, and what the message has to say.
struct Stranger {
  const char* key;
  const char* message;
};

TEST(ModelConfig, OtherModelsAreRefusedByTheKeyThatSaysSo) {
  const Stranger strangers[] = {
      {"\"num_experts\": 8", "num_experts: found 8; valid: null (Cadenza has no experts)"},
      {"\"num_local_experts\": 8", "num_local_experts: found 8; valid: null (Cadenza has no ex"},
      {"\"sliding_window\": 4096", "sliding_window: found 4096; valid: null (of this model_type"},
      {"\"use_sliding_window\": true", "use_sliding_window: found true; valid: false (of this mod"},
      {"\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
       "layer_types: found \"sliding_attention\"; valid: full_attention (no window is used)"},
      {"\"layer_types\": [\"full_attention\"]",
       "layer_types: found 1 types; valid: one for each of 2 layers (num_hidden_layers)"},
      {"\"use_mrope\": true", "use_mrope: found true; valid: false"},
      {"\"partial_rotary_factor\": 0.5", "partial_rotary_factor: found 0.5; valid: 1.0 or 1"},
      {"\"quantization_config\": {\"bits\": 4}", "quantization_config: found a block of keys; val"},
      {"\"logits_scaling\": 8", "logits_scaling: found a key that Cadenza does not know"},
      {"\"rope_parameters\": 3", "rope_parameters: found 3; valid: null or an object"}};
  for (const auto& [key, message] : strangers) {
    EXPECT_THAT(refusal(llama_and(key)), StartsWith(fmt::format("m.json:2: {}", message)));
  }
  const std::pair<const char*, Stranger> changes[] = {
      {"\"llama\"",
       {"\"qwen2_moe\"",
        "m.json:14: model_type: found \"qwen2_moe\"; valid: llama, mistral, qwen2, qwen3 "
        "(Cadenza lacks experts)"}},
      {"\"llama\"",
       {"\"olmo\"",
        "m.json:14: model_type: found \"olmo\"; valid: llama, mistral, qwen2, qwen3 "
        "(Cadenza knows no other)"}},
      {"\"llama\"",
       {"\"qwen2\"", "m.json:3: attention_bias: found false; valid: true (Cadenza has biases"}},
      {"\"silu\"",
       {"\"gelu\"", "m.json:8: hidden_act: found \"gelu\"; valid: silu (Cadenza has Swi"}},
      {"attention_bias\": false",
       {"attention_bias\": true", "m.json:3: attention_bias: found true"}},
      {"mlp_bias\": false", {"mlp_bias\": true", "m.json:13: mlp_bias: found true; valid: false"}},
      {"dropout\": 0.0", {"dropout\": 0.1", "m.json:4: attention_dropout: found 0.1; valid: 0.0"}},
      {"head_dim\": 16", {"head_dim\": 33", "m.json:7: model.head_dim: found 33; valid: an even"}},
      {"head_dim\": 16", {"head_dim\": \"a\"", "m.json:7: model.head_dim: found \"a\"; valid"}},
      {"CausalLM",
       {"SequenceClassification", "m.json:2: architectures: found \"LlamaForSequenceC"}},
      {"\"llama3\"", {"\"longrope\"", "m.json:25: model.rope.scaling.kind: found \"longrope\""}},
      {"\"factor\"", {"\"long_factor\"", "m.json:21: rope_scaling.long_factor: found a key"}},
      {"\"factor\": 32.0",
       {"\"truncate\": 0.5", "m.json:21: model.rope.scaling.truncate: found 0.5; valid: true"}},
      {"\"model_type\": \"llama\",", {"", "m.json:1: model_type: found nothing; valid: llama, m"}}};
  for (const auto& [from, to] : changes) {
    EXPECT_THAT(refusal(llama_with(from, to.key)), StartsWith(to.message));
  }
}

/// What each published file of tests/unit/config/refused_models is refused with.
const std::map<std::string, const char*> kRefused = {
    {"mixtral-8x7b", "valid: llama, mistral, qwen2, qwen3 (Cadenza lacks experts)"},
    {"gpt-oss-20b", "(Cadenza lacks experts, sinks in the softmax and biases of O)"},
    {"gemma-7b", "(Cadenza lacks GeGLU, norms with 1 + weight and scaled embeddings)"},
    {"gemma2-9b", "scaled embeddings and capped logits)"},
    {"deepseek-v3", "(Cadenza lacks latent attention (MLA) and experts)"},
    {"phi-3-mini", "(Cadenza lacks Q, K, V and gate, up in one matrix each, and longrope)"}};

TEST(ModelConfig, OtherFamiliesAreRefusedInALineThatSaysWhatIsMissing) {
  namespace fs = std::filesystem;
  std::set<std::string> tried;
  for (const auto& entry :
       fs::directory_iterator(fs::path(__FILE__).parent_path() / "refused_models")) {
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const std::string model = entry.path().stem().string();
    EXPECT_THAT(refusal(text.str()), AllOf(StartsWith("m.json:"), HasSubstr(": model_type: found"),
                                           HasSubstr(kRefused.at(model))))
        << model;
    tried.insert(model);
  }
  EXPECT_EQ(tried.size(), kRefused.size());
}

TEST(ModelConfig, QwensHaveBiasesOfQKAndV) {
  std::string qwen = llama_with("\"model_type\": \"llama\"", "\"model_type\": \"qwen2\"");
  qwen.erase(qwen.find("  \"attention_bias\": false,\n"), 27);
  qwen.insert(1, "\"sliding_window\": 4096, ");
  const Experiment e = experiment_with(qwen);
  EXPECT_TRUE(e.model.qkv_bias);
  EXPECT_EQ(e.attention.kind, AttentionKind::full) << "use_sliding_window is false by itself";
  EXPECT_FALSE(experiment_with(qwen, {"model.qkv_bias=false"}).model.qkv_bias);
  EXPECT_FALSE(experiment_with(kLlama).model.qkv_bias);
}

TEST(ModelConfig, Qwen3HasNormsOfQAndKAndHeadsOf128) {
  const std::string qwen = llama_with("\"model_type\": \"llama\"", "\"model_type\": \"qwen3\"");
  const Model given = experiment_with(qwen).model;
  EXPECT_TRUE(given.qk_norm);
  EXPECT_FALSE(given.qkv_bias);
  EXPECT_EQ(given.head_dim(), 16);
  std::string bare = qwen;
  bare.erase(bare.find("  \"head_dim\": 16,\n"), 18);
  EXPECT_EQ(experiment_with(bare).model.head_dim(), 128);
  EXPECT_FALSE(experiment_with(qwen, {"model.qk_norm=false"}).model.qk_norm);
  EXPECT_FALSE(experiment_with(kLlama).model.qk_norm);
}

/// What config.json lacks is as its class has it.
TEST(ModelConfig, KeysThatAreMissingHaveTheDefaultsOfTheClass) {
  const auto without = [](const std::string& type) {
    return R"({"model_type": ")" + type + R"(", "num_hidden_layers": 1, "hidden_size": 64,
        "num_attention_heads": 32, "vocab_size": 300, "intermediate_size": 8})";
  };
  EXPECT_EQ(experiment_with(without("llama")).model.kv_heads, 32);
  EXPECT_EQ(experiment_with(without("llama")).model.norm_eps, 1e-6);
  EXPECT_EQ(experiment_with(without("mistral")).model.kv_heads, 8);
  EXPECT_EQ(experiment_with(without("mistral")).attention.window, 4096);
  EXPECT_EQ(experiment_with(without("qwen2")).model.kv_heads, 32);
  EXPECT_EQ(experiment_with(without("qwen3")).model.head_dim(), 128);
}

TEST(ModelConfig, ANegativeNumberOfLayersIsRefused) {
  std::string mistral = llama_with("\"llama\"", "\"mistral\"");
  mistral.replace(mistral.find("\"num_hidden_layers\": 2"), 22, "\"num_hidden_layers\": -1");
  EXPECT_THAT(refusal(mistral), HasSubstr("model.layers: found -1"));
}

TEST(ModelConfig, TwoDifferentThetasAreRefused) {
  std::string both = llama_with("rope_scaling\": {", "rope_parameters\": {\"rope_theta\": 5.0e5,");
  EXPECT_EQ(experiment_with(both).model.rope.theta, 5e5);
  both.replace(both.find("5.0e5"), 5, "6.0e5");
  EXPECT_THAT(refusal(both), HasSubstr("rope_parameters.rope_theta: found 6.0e5; valid: 500000.0"));
}

/// Mistral 7B v0.1: a window of all layers, which the experiment may replace.
TEST(ModelConfig, AWindowOfAllLayersIsTheKindOfAttention) {
  std::string mistral = llama_with("\"llama\"", "\"mistral\"");
  mistral.insert(1, "\"sliding_window\": 256, ");
  const auto attention = [&](const Overrides& overrides) {
    return experiment_with(mistral, overrides).attention;
  };
  EXPECT_EQ(attention({}).kind, AttentionKind::window);
  EXPECT_EQ(attention({}).window, 256);
  EXPECT_EQ(attention({"attention.block=64"}).window, 256);
  EXPECT_EQ(attention({"attention.window=64"}).window, 64);
  EXPECT_EQ(attention({"attention.kind=full"}).kind, AttentionKind::full);
  EXPECT_EQ(attention({"attention.kind=full"}).window, 0);
  EXPECT_THAT(refusal(llama_with("\"llama\"", "\"mistral\", \"sliding_window\": \"a\"")),
              StartsWith("m.json:14: attention.window: found \"a\"; valid"));
}

/// Windows of some layers: from max_window_layers on, or as layer_types says.
TEST(ModelConfig, WindowsOfSomeLayersAreTheirKind) {
  std::string qwen = llama_with("\"model_type\": \"llama\"", "\"model_type\": \"qwen3\"");
  const auto attention = [&](const std::string& keys, const Overrides& overrides = {}) {
    std::string file = qwen;
    file.insert(1, "\"sliding_window\": 256, \"use_sliding_window\": true, " + keys);
    return experiment_with(file, overrides).attention;
  };
  const std::vector second = {AttentionKind::full, AttentionKind::window};
  for (const char* keys : {"\"max_window_layers\": 1, ",
                           "\"layer_types\": [\"full_attention\", \"sliding_attention\"], "}) {
    EXPECT_EQ(attention(keys).kind, AttentionKind::window);
    EXPECT_EQ(attention(keys).window, 256);
    EXPECT_EQ(attention(keys).layers, second);
    EXPECT_EQ(attention(keys, {"model.layers=1"}).kind, AttentionKind::full);
    EXPECT_EQ(attention(keys, {"attention.kind=full"}).kind, AttentionKind::full);
    EXPECT_EQ(attention(keys, {"attention.layers=[window]"}).layers,
              std::vector{AttentionKind::window});
  }
  const std::vector rest = {AttentionKind::full, AttentionKind::window, AttentionKind::window};
  EXPECT_EQ(attention("\"max_window_layers\": 1, ", {"model.layers=3"}).layers, rest);
  EXPECT_EQ(attention("").kind, AttentionKind::full) << "28 layers have none by themselves";
  EXPECT_EQ(attention("\"max_window_layers\": 0, ").kind, AttentionKind::window);
  EXPECT_TRUE(attention("\"max_window_layers\": 0, ").layers.empty());
}

TEST(ModelConfig, KeysThatChangeNothingAreAccepted) {
  const std::string expected = to_yaml(experiment_with(kLlama));
  for (const char* key :
       {"\"_name_or_path\": \"a/b\"", "\"pad_token_id\": 0", "\"dtype\": \"float16\"",
        "\"sliding_window\": null, \"use_sliding_window\": false", "\"num_experts\": null",
        "\"layer_types\": [\"full_attention\", \"full_attention\"]", "\"max_window_layers\": 2",
        "\"max_sequence_length\": 2048", "\"partial_rotary_factor\": 1.0"}) {
    EXPECT_EQ(to_yaml(experiment_with(llama_and(key))), expected) << key;
  }
}

}  // namespace
}  // namespace cadenza::config::test_model_config
