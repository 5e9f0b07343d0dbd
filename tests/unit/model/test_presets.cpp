// SPDX-License-Identifier: Apache-2.0
// inputs/models: every preset has as many parameters as its publisher counts.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "cadenza/config/load.hpp"
#include "cadenza/model/activations.hpp"

namespace cadenza::model {
namespace {

namespace fs = std::filesystem;

/// Elements of the safetensors that the publishers offer.
const std::map<std::string, std::int64_t> kPublished = {
    {"llama3.2-1b", 1'235'814'400},    {"llama3.2-3b", 3'212'749'824},
    {"llama2-7b", 6'738'415'616},      {"llama3-8b", 8'030'261'248},
    {"llama3.1-8b", 8'030'261'248},    {"llama2-13b", 13'015'864'320},
    {"codellama-34b", 33'743'970'304}, {"llama3-70b", 70'553'706'496},
    {"llama3.1-70b", 70'553'706'496},  {"llama3.1-405b", 405'853'388'800},
    {"mistral-7b", 7'241'732'096},     {"mistral-nemo", 12'247'782'400},
    {"qwen2.5-0.5b", 494'032'768},     {"qwen2.5-7b", 7'615'616'512},
    {"qwen3-0.6b", 596'049'920},       {"qwen3-8b", 8'190'735'360}};

std::string text_of(const fs::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

fs::path preset(const std::string& name) {
  return fs::path(__FILE__).parent_path() / "../../../inputs/models" / (name + ".json");
}

config::Experiment experiment_with(const fs::path& file) {
  const auto read = [&](const std::string&, const std::string&) { return text_of(file); };
  return config::parse_experiment(
      "data: {source: synthetic}\nbatch: {tokens: 64, microbatch: 64}\n", "e.yaml",
      {"model.config=" + file.string()}, nullptr, config::HeadsOf::model, read);
}

TEST(Presets, HaveThePublishedNumberOfParameters) {
  std::map<std::string, std::int64_t> counted;
  for (const auto& entry :
       fs::directory_iterator(fs::path(__FILE__).parent_path() / "../../../inputs/models")) {
    counted[entry.path().stem().string()] = parameter_elements(experiment_with(entry.path()).model);
  }
  EXPECT_EQ(counted, kPublished);
}

/// What the number of parameters does not show.
TEST(Presets, HaveWhatTheirFamiliesHave) {
  const config::Experiment mistral = experiment_with(preset("mistral-7b"));
  EXPECT_EQ(mistral.attention.kind, config::AttentionKind::window);
  EXPECT_EQ(mistral.attention.window, 4096);
  EXPECT_EQ(experiment_with(preset("mistral-nemo")).model.rope.theta, 1e6);
  EXPECT_EQ(experiment_with(preset("mistral-nemo")).attention.kind, config::AttentionKind::full);
  const config::Experiment qwen = experiment_with(preset("qwen2.5-7b"));
  EXPECT_TRUE(qwen.model.qkv_bias);
  EXPECT_EQ(qwen.model.norm_eps, 1e-6);
  EXPECT_EQ(qwen.attention.kind, config::AttentionKind::full);
  EXPECT_FALSE(qwen.model.qk_norm);
  const config::Model qwen3 = experiment_with(preset("qwen3-0.6b")).model;
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_TRUE(qwen3.tie_embeddings);
  EXPECT_EQ(qwen3.head_dim(), 128);
  const config::RopeScaling scaling = experiment_with(preset("llama3.1-8b")).model.rope.scaling;
  EXPECT_EQ(scaling.kind, config::RopeScalingKind::llama3);
  EXPECT_EQ(scaling.factor, 8);
  EXPECT_EQ(scaling.original_context, 8192);
}

}  // namespace
}  // namespace cadenza::model
