// SPDX-License-Identifier: Apache-2.0
#include "small.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cadenza/config/limits.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/data/corpus.hpp"
#include "cadenza/program/step_plan.hpp"
#include "cadenza/simulate/simulator.hpp"
#include "target.hpp"

namespace cadenza::fuzz {
namespace {

using config::Distribution;

bool is_generated(const config::Data& data) {
  return data.source == config::Source::synthetic &&
         data.lengths.distribution != Distribution::file &&
         data.lengths.distribution != Distribution::histogram;
}

/// Documents of a generated corpus, at most: what is longer than data.max_document is cut.
double most_documents(const config::Data& data) {
  const config::Lengths& lengths = data.lengths;
  const auto bound = static_cast<double>(data.max_document);
  double longest = lengths.max > 0 ? static_cast<double>(lengths.max) : bound;
  if (lengths.distribution == Distribution::constant) longest = lengths.median;
  if (lengths.distribution == Distribution::list) {
    longest = static_cast<double>(std::ranges::max(lengths.values));
  }
  return static_cast<double>(data.documents) * std::max(1.0, longest / bound);
}

bool is_small(const config::Experiment& e) {
  const std::int64_t microbatches = e.batch.tokens / e.batch.microbatch;
  return e.cluster.machine.empty() && most_documents(e.data) <= 1e4 && e.ranks() <= 16 &&
         e.model.layers <= 8 && microbatches <= 16 && e.batch.tokens <= 1 << 14 &&
         e.attention.placement != config::PlacementKind::automatic;
}

}  // namespace

std::string small_model(const std::string&, const std::string&) {
  return R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
             "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
             "vocab_size": 300})";
}

config::Experiment four_ranks() {
  config::Experiment e;
  e.model = {
      .layers = 2, .d_model = 64, .heads = 4, .kv_heads = 2, .ffn = 96, .vocab = 64, .rope = {}};
  e.data.source = config::Source::synthetic;
  e.data.documents = 20;
  e.data.max_document = 256;
  e.data.lengths.median = 60;
  e.data.lengths.max = 256;
  e.batch.tokens = 1024;
  e.batch.microbatch = 256;
  e.parallel.data = 2;
  e.parallel.tensor = 2;
  e.attention.placement = config::PlacementKind::cad;
  e.attention.block = 16;
  return e;
}

void go_on(const config::Experiment& experiment) {
  // What a reader accepts must fit a machine; between a second of work and that it may take longer.
  constexpr double kSecond = 1e6;
  constexpr auto kMost = static_cast<double>(config::kMostDocuments);
  require(experiment.ranks() <= config::kMostRanks, "accepted {} ranks", experiment.ranks());
  if (!is_generated(experiment.data)) return;
  const double documents = most_documents(experiment.data);
  if (documents > kSecond && documents <= kMost) return;
  if (is_small(experiment)) return simulate_step(experiment, {});
  data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
}

void simulate_step(const config::Experiment& experiment, const config::Machine& machine) {
  const auto corpus = data::open_corpus(experiment.data, experiment.model.vocab, experiment.seed);
  const data::Packer packer(*corpus, experiment);
  const data::Batch batch = packer.batch(0);
  require(batch.tokens() > 0, "a batch of {} tokens", batch.tokens());
  const std::vector<program::TickPlans> ticks = program::plan_ticks(experiment, batch);
  const program::StepShape step_shape(experiment);
  std::vector<program::Program> programs;
  for (Rank rank = 0; rank < step_shape.layout.ranks(); ++rank) {
    programs.push_back(program::make_program(step_shape, rank, ticks));
  }
  const simulate::Costs costs(machine, experiment, step_shape.layout);
  const simulate::Result result =
      simulate::simulate(experiment, step_shape, programs, ticks, costs);
  require(std::isfinite(result.seconds) && result.seconds >= 0 &&
              std::isfinite(result.lower_bound_seconds),
          "a step of {} s, at least {} s", result.seconds, result.lower_bound_seconds);
}

}  // namespace cadenza::fuzz
