// SPDX-License-Identifier: Apache-2.0
#include "app/planner/advise/instructions.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "app/planner/all_cores.hpp"
#include "app/planner/predict/forecast.hpp"
#include "app/planner/predict/steps.hpp"
#include "app/planner/search/candidates.hpp"

namespace cadenza::app {
namespace {

/// Work for one stack (Considered::work): about 6 s of a core.
constexpr double kWorkOfInstruction = 2e7;
constexpr int kMostInstructionSteps = 16;
constexpr std::size_t kMostTried = 4;

class Instructor {
 public:
  Instructor(const config::Experiment& given, const config::Machine& machine,
             const data::Corpus& corpus, const std::vector<Considered>& rows)
      : given_(given), machine_(machine), corpus_(corpus), rows_(rows) {}

  Instruction find(const MakeRecipe& recipe_of) const {
    std::vector<Instruction> had = had_by(recipe_of);
    if (!had.empty() && as_it_is(had.front())) had.resize(1);
    if (had.size() == 1 && timed_by_search(had.front())) {
      had.front().slower = rows_[had.front().row].seconds / rows_.front().seconds;
      return had.front();
    }
    simulate(had);
    const auto best = std::ranges::min_element(had, {}, &Instruction::slower);
    if (best != had.end() && best->slower < kDoesNotFit) return *best;
    const Candidate& first = rows_.front().candidate;
    return {.recipe = recipe_of(first.of(given_)), .candidate = first};
  }

 private:
  static constexpr double kDoesNotFit = std::numeric_limits<double>::infinity();

  bool as_it_is(const Instruction& one) const {
    return one.candidate.parallel.shard == rows_[one.row].candidate.parallel.shard;
  }
  /// Rows of one step have not been compared with those of many.
  bool timed_by_search(const Instruction& one) const {
    return as_it_is(one) && (rows_[one.row].steps > 1 || rows_.front().steps == 1);
  }

  /// The first of the rows that the stack has, as they are or with sharded parameters.
  std::vector<Instruction> had_by(const MakeRecipe& recipe_of) const {
    std::vector<Instruction> had;
    for (std::size_t row = 0; row < rows_.size() && rows_[row].steps > 0; ++row) {
      Candidate candidate = rows_[row].candidate;
      for (const config::Shard shard : {candidate.parallel.shard, config::Shard::parameters}) {
        candidate.parallel.shard = shard;
        const config::Experiment e = candidate.of(given_);
        Recipe recipe = recipe_of(e);
        if (!recipe.same() || !makes_sense(e)) continue;
        const bool known = std::ranges::any_of(had, [&](const Instruction& one) {
          return settings(one.candidate) == settings(candidate);
        });
        if (!known) had.push_back({std::move(recipe), row, candidate});
        break;
      }
      if (had.size() == kMostTried) break;
    }
    return had;
  }

  /// Over equal steps, as many as the work allows.
  void simulate(std::vector<Instruction>& had) const {
    if (had.empty()) return;
    double work = rows_.front().work;
    for (const Instruction& one : had) work += rows_[one.row].work;
    const int steps =
        std::clamp(static_cast<int>(kWorkOfInstruction / work), 1, kMostInstructionSteps);
    std::vector<double> seconds(had.size() + 1);
    on_all_cores(seconds.size(), [&](std::size_t i) {
      seconds[i] = seconds_of(i == 0 ? rows_.front().candidate : had[i - 1].candidate, steps);
    });
    for (std::size_t i = 0; i < had.size(); ++i) {
      had[i].slower = seconds[i + 1] / seconds[0];
      had[i].steps = steps;
    }
  }

  double seconds_of(const Candidate& candidate, int steps) const {
    const config::Experiment e = candidate.of(given_);
    Steps simulated(e, data::Packer(corpus_, e), machine_);
    const std::int64_t limit = memory_of_rank(e, machine_);
    double seconds = 0;
    for (int step = 0; step < steps; ++step) {
      const SimulatedStep one = simulated.run(step);
      if (limit > 0 && one.peak_bytes() > limit) return kDoesNotFit;
      seconds += one.result.seconds;
    }
    return seconds;
  }

  const config::Experiment& given_;
  const config::Machine& machine_;
  const data::Corpus& corpus_;
  const std::vector<Considered>& rows_;
};

}  // namespace

std::vector<Instruction> instructions_of(const config::Experiment& given,
                                         const config::Machine& machine, const data::Corpus& corpus,
                                         const std::vector<Considered>& rows,
                                         const std::vector<MakeRecipe>& recipes) {
  const Instructor instructor(given, machine, corpus, rows);
  std::vector<Instruction> all;
  for (const MakeRecipe& recipe_of : recipes) all.push_back(instructor.find(recipe_of));
  return all;
}

}  // namespace cadenza::app
