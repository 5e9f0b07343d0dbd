// SPDX-License-Identifier: Apache-2.0
// The config.json of Hugging Face's transformers for a model that Cadenza trained: the reverse of
// model.config.
#pragma once

#include <string>

#include "cadenza/config/experiment.hpp"

namespace cadenza::app {

struct ModelConfig {
  std::string type;     ///< model_type: llama, mistral, qwen2 or qwen3
  std::string json;     ///< the file
  std::string warning;  ///< what transformers would compute otherwise; empty: nothing
};

/// @throws Error(data) where no class of transformers has such a model
ModelConfig model_config_of(const config::Experiment& experiment);

}  // namespace cadenza::app
