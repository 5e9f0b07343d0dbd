// SPDX-License-Identifier: Apache-2.0
#include "app/planner/advise/scenarios.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <mutex>
#include <numeric>
#include <span>

#include "app/planner/all_cores.hpp"
#include "app/planner/predict/forecast.hpp"
#include "app/planner/predict/steps.hpp"
#include "app/planner/search/finals.hpp"
#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::app {
namespace {

constexpr double kSlowSpeed = 0.8;
/// Work for all scenarios (Considered::work): about 25 s of a core.
constexpr double kWorkOfScenarios = 9e7;
constexpr int kMostScenarioSteps = 16;

/// What a scenario changes: the experiment with its layout, and the lengths of documents.
struct Change {
  const char* key;
  const char* what;
  void (*change)(config::Experiment& e);
  double stretch;           ///< of documents
  bool of_network = false;  ///< that nodes are connected by
};

/// A slow rank holds up its tensor group in every layer: all of the group are slow.
void slow_one_rank(config::Experiment& e) {
  for (std::int64_t rank = 0; rank < e.parallel.tensor; ++rank) {
    e.cluster.slow_ranks.push_back({static_cast<double>(rank), kSlowSpeed});
  }
}

/// Twice the sequence on twice the ranks: who kept attention on one rank needs a ring.
void double_sequence(config::Experiment& e) {
  e.data.max_document *= 2;
  e.batch.microbatch *= 2;
  if (e.parallel.data % 2 != 0) return;
  e.parallel.data /= 2;
  e.parallel.context *= 2;
  if (e.attention.placement == config::PlacementKind::colocated) {
    e.attention.placement = config::PlacementKind::zigzag;
  }
}

constexpr Change kChanges[] = {
    {"as_asked", "as asked", [](config::Experiment&) {}, 1},
    {"network_half", "network between nodes half as fast",
     [](config::Experiment& e) { e.cluster.bandwidth *= 0.5; }, 1, true},
    {"network_double", "network between nodes twice as fast",
     [](config::Experiment& e) { e.cluster.bandwidth *= 2; }, 1, true},
    {"slow_device", "one device at 80 % of its speed", slow_one_rank, 1},
    {"documents_half", "documents half as long", [](config::Experiment&) {}, 0.5},
    {"documents_double", "documents twice as long", [](config::Experiment&) {}, 2},
    {"sequence_double", "sequence twice as long", double_sequence, 1},
};

/// Those that can change something: one node has no network between nodes.
std::vector<Change> changes_for(const config::Experiment& e, const config::Machine& machine) {
  const std::int64_t each =
      e.cluster.ranks_per_node > 0 ? e.cluster.ranks_per_node : machine.ranks_per_node;
  const bool one_node = each == 0 || e.ranks() <= each;
  std::vector<Change> changes;
  std::ranges::copy_if(kChanges, std::back_inserter(changes),
                       [&](const Change& one) { return !(one_node && one.of_network); });
  return changes;
}

/// Documents of other lengths, up to the longest that the experiment allows. Only their lengths are
/// known.
class StretchedCorpus : public data::Corpus {
 public:
  StretchedCorpus(const data::Corpus& corpus, double factor, std::int64_t longest) {
    for (const std::int64_t length : corpus.lengths()) {
      const auto stretched = static_cast<std::int64_t>(static_cast<double>(length) * factor);
      lengths_.push_back(std::clamp<std::int64_t>(stretched, 2, longest));
    }
  }
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t, Range, std::span<data::Token>) const override {
    fail(ExitCode::internal, "documents that are only assumed cannot be read");
  }

 private:
  std::vector<std::int64_t> lengths_;
};

/// What is simulated of each candidate.
struct Extent {
  int steps = 1;
  double share = 1;  ///< of a step's microbatches
};

/// Some steps or, where one is much work, a shorter one: scenarios are told by what they change.
/// @param work  that a step of each takes
Extent extent_of(double work) {
  const double steps = kWorkOfScenarios / work;
  return {std::clamp(static_cast<int>(steps), 1, kMostScenarioSteps), std::min(1.0, steps)};
}

/// One candidate in one scenario.
struct Task {
  const Change* change;
  const Considered* candidate;
  std::vector<double> seconds{};  ///< by step; empty: the layout does not allow it
  bool fits = true;
};

/// A step with that share of the microbatches of each pipeline, or as many as fill it twice.
void shorten(config::Experiment& e, double share) {
  const std::int64_t stages = e.parallel.pipeline;
  const std::int64_t each = e.batch.microbatch * e.parallel.data;
  const std::int64_t rounds = e.batch.tokens / each;
  const auto wanted = static_cast<std::int64_t>(std::ceil(static_cast<double>(rounds) * share));
  const std::int64_t fill = std::max(2 * stages, (wanted + stages - 1) / stages * stages);
  e.batch.tokens = std::min(rounds, fill) * each;
}

void simulate(Task& task, const config::Experiment& given, const config::Machine& machine,
              const Extent& extent) {
  config::Experiment e = task.candidate->candidate.of(given);
  shorten(e, extent.share);
  if (e.data.max_document == 0) e.data.max_document = e.batch.microbatch;
  task.change->change(e);
  if (!makes_sense(e)) return;
  const auto corpus = data::open_corpus(e.data, e.model.vocab, e.seed);
  const StretchedCorpus stretched(*corpus, task.change->stretch, e.data.max_document);
  Steps simulated(e, data::Packer(stretched, e), machine);
  const std::int64_t limit = memory_of_rank(e, machine);
  for (int step = 0; step < extent.steps; ++step) {
    const SimulatedStep one = simulated.run(step);
    task.seconds.push_back(one.result.seconds);
    task.fits = task.fits && (limit == 0 || one.peak_bytes() <= limit);
  }
}

double sum_of(const std::vector<double>& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

/// The search's time, changed as these steps are.
Outlook outlook_of(const Task& task, const Task& as_asked) {
  if (task.seconds.empty()) return {};
  return {task.candidate->seconds * sum_of(task.seconds) / sum_of(as_asked.seconds), task.fits};
}

/// A contender's steps in a scenario and as asked.
struct Pair {
  const std::vector<double>&changed, &as_asked;
  /// log of what the scenario changes, without one of the steps; -1: with all.
  double change(std::ptrdiff_t left_out = -1) const {
    double sum = sum_of(changed), before = sum_of(as_asked);
    if (left_out >= 0) {
      sum -= changed[at(left_out)];
      before -= as_asked[at(left_out)];
    }
    return std::log(sum / before);
  }
};

/// The ratio of the search, changed as these steps are.
StepRatio changed_ratio(const StepRatio& asked, const Pair& with, const Pair& without) {
  const std::ptrdiff_t steps = std::ssize(with.changed);
  const auto change = [&](std::ptrdiff_t left_out) {
    return without.change(left_out) - with.change(left_out);
  };
  StepRatio ratio{.value = asked.value * std::exp(change(-1)), .steps = static_cast<int>(steps)};
  if (steps < 4 || std::isinf(asked.high)) return ratio;
  double mean = 0, squares = 0;
  for (std::ptrdiff_t i = 0; i < steps; ++i) mean += change(i) / static_cast<double>(steps);
  for (std::ptrdiff_t i = 0; i < steps; ++i) squares += std::pow(change(i) - mean, 2);
  const auto degrees = static_cast<double>(steps - 1);
  const double error = std::sqrt(degrees / (degrees + 1) * squares);
  const double half = std::hypot(student(degrees) * error, std::log(asked.high / asked.value));
  ratio.low = ratio.value * std::exp(-half);
  ratio.high = ratio.value * std::exp(half);
  return ratio;
}

}  // namespace

std::vector<Scenario> scenarios_of(const config::Experiment& given, const config::Machine& machine,
                                   const Contenders& contenders,
                                   const std::optional<StepRatio>& cad,
                                   const std::function<void(int done, int of)>& show) {
  const std::vector<Change> changes = changes_for(given, machine);
  std::vector<Task> tasks;
  double work = 0;
  for (const Change& change : changes) {
    for (const Considered* candidate : {contenders.with, contenders.without}) {
      if (candidate == nullptr) continue;
      tasks.push_back({&change, candidate});
      work += candidate->work;
    }
  }
  const Extent extent = extent_of(work);
  std::mutex mutex;
  int done = 0;
  on_all_cores(tasks.size(), [&](std::size_t i) {
    simulate(tasks[i], given, machine, extent);
    const std::lock_guard lock(mutex);
    show(++done, static_cast<int>(tasks.size()));
  });
  const std::size_t contending = tasks.size() / changes.size();
  std::vector<Scenario> found;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Scenario& scenario = found.emplace_back();
    scenario.key = changes[i].key;
    scenario.what = changes[i].what;
    const Task* const mine = &tasks[contending * i];
    for (std::size_t k = 0; k < contending; ++k) {
      const Outlook outlook = outlook_of(mine[k], tasks[k]);
      (mine[k].candidate == contenders.with ? scenario.with : scenario.without) = outlook;
    }
    if (!cad || contending < 2 || mine[0].seconds.empty() || mine[1].seconds.empty()) continue;
    scenario.cad = i == 0 ? *cad
                          : changed_ratio(*cad, {mine[0].seconds, tasks[0].seconds},
                                          {mine[1].seconds, tasks[1].seconds});
  }
  return found;
}

}  // namespace cadenza::app
