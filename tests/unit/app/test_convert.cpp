// SPDX-License-Identifier: Apache-2.0
// config.json of an exported model: it says what the one that the model came from said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "app/convert/model_config.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "unit/storage/child.hpp"

namespace cadenza::app {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

config::Experiment written_and_read(const config::Experiment& experiment) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "config.json";
  std::ofstream(path) << model_config_of(experiment).json;
  return config::read_model_config(path);
}

/// The model with the width of heads that it has.
std::string text_of(config::Experiment experiment) {
  experiment.model.own_head_dim = experiment.model.head_dim();
  return config::to_yaml(experiment);
}

TEST(ModelConfigOf, EveryPublishedModelComesBack) {
  int count = 0;
  for (const auto& entry :
       fs::directory_iterator(fs::path(__FILE__).parent_path() / "../../../inputs/models")) {
    const config::Experiment experiment = config::read_model_config(entry.path().string());
    EXPECT_EQ(model_config_of(experiment).warning, "") << entry.path();
    EXPECT_EQ(text_of(written_and_read(experiment)), text_of(experiment)) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 16);
}

config::Experiment small(const std::string& keys) {
  return config::parse_experiment(
      "model: {layers: 4, d_model: 64, heads: 4, kv_heads: 2, ffn: 96, vocab: 300" + keys +
          "}\ndata: {source: synthetic, max_document: 500}\nbatch: {tokens: 1000, microbatch: "
          "1000}\n",
      "e.yaml", {});
}

config::Experiment with_attention(const std::string& keys, const std::string& attention) {
  config::Experiment experiment = small(keys);
  const std::string text = config::to_yaml(experiment);
  return config::parse_experiment(text, "e.yaml", {"attention=" + attention});
}

TEST(ModelConfigOf, EveryScalingComesBack) {
  for (const char* scaling :
       {"linear, factor: 2.5", "llama3, factor: 8, original_context: 64, low_frequency: 1.5",
        "yarn, factor: 4, original_context: 64, beta_fast: 16, beta_slow: 2, truncate: false",
        "yarn, factor: 4, original_context: 64, mscale: 0.7, mscale_all_dim: 1.1",
        "yarn, factor: 4, original_context: 64, attention_factor: 1.3"}) {
    const config::Experiment experiment =
        small(std::string(", rope: {theta: 1234.5, scaling: {kind: ") + scaling + "}}");
    const config::Experiment read = written_and_read(experiment);
    EXPECT_EQ(config::settings(text_of(read), "").at("model.rope.theta"),
              config::settings(text_of(experiment), "").at("model.rope.theta"));
    for (const auto& [key, value] : config::settings(text_of(experiment), "")) {
      if (!key.starts_with("model.")) continue;
      EXPECT_EQ(config::settings(text_of(read), "").at(key), value) << scaling << ": " << key;
    }
  }
}

TEST(ModelConfigOf, WindowsAreSaidWhereTheClassHasThem) {
  struct Case {
    const char *keys, *attention, *type;
    bool said;
  };
  const Case cases[] = {
      {"", "{kind: window, window: 9}", "mistral", true},
      {"", "{kind: window, window: 9, layers: [window, full]}", "llama", false},
      {"", "{kind: window, window: 9, sinks: 2}", "llama", false},
      {"", "{kind: prefix, prefix: 9}", "llama", false},
      {"", "{kind: vertical_slash}", "llama", false},
      {", qkv_bias: true", "{kind: window, window: 9, layers: [window, full]}", "qwen2", true},
      {", qk_norm: true", "{kind: window, window: 9}", "qwen3", true},
      {", qk_norm: true", "{kind: window, window: 9, layers: [full, full, window, full]}", "qwen3",
       true},
      {"", "{kind: full}", "llama", true},
  };
  for (const Case& c : cases) {
    const config::Experiment experiment = with_attention(c.keys, c.attention);
    const ModelConfig made = model_config_of(experiment);
    EXPECT_EQ(made.type, c.type) << c.attention;
    EXPECT_EQ(made.warning.empty(), c.said) << c.attention << made.warning;
    const config::Experiment read = written_and_read(experiment);
    for (std::int64_t layer = 0; layer < 4; ++layer) {
      const bool window = experiment.attention.kind == config::AttentionKind::window &&
                          !experiment.attention.is_full(layer);
      const bool read_window =
          read.attention.kind == config::AttentionKind::window && !read.attention.is_full(layer);
      EXPECT_EQ(read_window, c.said && window) << c.attention << ", layer " << layer;
      if (read_window) {
        EXPECT_EQ(read.attention.window, 9);
      }
    }
  }
}

TEST(ModelConfigOf, WhatNoClassHasIsRefused) {
  try {
    model_config_of(small(", qkv_bias: true, qk_norm: true"));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_THAT(error.what(), HasSubstr("model.qk_norm: found true with model.qkv_bias"));
  }
}

TEST(ModelConfigOf, SaysWhatTheExperimentKnows) {
  config::Experiment experiment = small("");
  experiment.data.document_end = 7;
  experiment.run.dtype = config::Dtype::bfloat16;
  const std::string json = model_config_of(experiment).json;
  EXPECT_THAT(json, HasSubstr("\"max_position_embeddings\": 500"));
  EXPECT_THAT(json, HasSubstr("\"eos_token_id\": 7"));
  EXPECT_THAT(json, HasSubstr("\"torch_dtype\": \"bfloat16\""));
}

}  // namespace
}  // namespace cadenza::app
