// SPDX-License-Identifier: Apache-2.0
#include "app/planner/advise/recipes.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app {

Recipe cadenza_recipe(const config::Experiment& e) {
  Recipe recipe{.stack = kOwnStack, .file = "experiment.yaml"};
  config::Experiment own = e;
  own.cluster.software = {};
  recipe.text = config::to_yaml(own);
  if (!e.cluster.software.is_own()) {
    recipe.notes.push_back("all times are those of " + e.cluster.software.name +
                           "; cadenza simulate with experiment.yaml says what Cadenza takes");
  }
  if (e.parallel.shard == config::Shard::parameters) {
    recipe.missing.emplace_back("shard parameters (FSDP), which is only simulated");
  }
  return recipe;
}

}  // namespace cadenza::app
