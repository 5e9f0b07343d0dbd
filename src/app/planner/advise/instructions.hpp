// SPDX-License-Identifier: Apache-2.0
// What to type for each stack: the fastest of the simulated layouts that it has.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "app/planner/advise/recipes.hpp"
#include "app/planner/search/search.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::app {

/// What to type for one stack.
struct Instruction {
  Recipe recipe;
  std::size_t row = 0;  ///< of Choice::considered, whose layout it is
  Candidate candidate;  ///< that of the row, perhaps with parameters sharded, as FSDP has them
  double slower = 1;    ///< its step over that of the first row
  int steps = 0;        ///< equal ones that say so; 0: the search does
};

using MakeRecipe = std::function<Recipe(const config::Experiment&)>;

/// For each stack the fastest simulated row that it has; where it has none as it is, the fastest of
/// the first few that it has with sharded parameters, simulated here; where it has none at all, the
/// first row, with what it lacks.
/// @param given    the question, with placement auto
/// @param rows     what the search considered, the simulated ones first
/// @param recipes  of the stacks
/// @throws Error(usage, data)
std::vector<Instruction> instructions_of(const config::Experiment& given,
                                         const config::Machine& machine, const data::Corpus& corpus,
                                         const std::vector<Considered>& rows,
                                         const std::vector<MakeRecipe>& recipes);

}  // namespace cadenza::app
