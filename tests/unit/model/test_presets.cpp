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
    {"llama3-8b", 8'030'261'248},      {"llama2-13b", 13'015'864'320},
    {"codellama-34b", 33'743'970'304}, {"llama3-70b", 70'553'706'496},
    {"llama3.1-405b", 405'853'388'800}};

std::string text_of(const fs::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

TEST(Presets, HaveThePublishedNumberOfParameters) {
  std::map<std::string, std::int64_t> counted;
  for (const auto& entry :
       fs::directory_iterator(fs::path(__FILE__).parent_path() / "../../../inputs/models")) {
    const auto read = [&](const std::string&, const std::string&) { return text_of(entry.path()); };
    const config::Experiment experiment = config::parse_experiment(
        "data: {source: synthetic}\nbatch: {tokens: 64, microbatch: 64}\n", "e.yaml",
        {"model.config=" + entry.path().string()}, nullptr, config::HeadsOf::model, read);
    counted[entry.path().stem().string()] = parameter_elements(experiment.model);
  }
  EXPECT_EQ(counted, kPublished);
}

}  // namespace
}  // namespace cadenza::model
