// SPDX-License-Identifier: Apache-2.0
#include "cadenza/app/choose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cadenza/app/forecast.hpp"
#include "cadenza/app/simulation.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/base/units.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app {
namespace {

using config::Overlap;
using config::PlacementKind;

constexpr std::size_t kShown = 12;

struct Candidate {
  config::Experiment experiment;
  double seconds = 0;
  double bound = 0;
  std::int64_t bytes = 0;
  bool fits = true;
};

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> all;
  for (std::int64_t part = 1; part <= number; ++part) {
    if (number % part == 0) all.push_back(part);
  }
  return all;
}

/// data x pipeline x tensor x context in every way.
std::vector<config::Parallel> layouts(const config::Parallel& given) {
  std::vector<config::Parallel> all;
  const std::int64_t trainers = given.trainers();
  for (const std::int64_t pipeline : divisors(trainers)) {
    for (const std::int64_t tensor : divisors(trainers / pipeline)) {
      for (const std::int64_t context : divisors(trainers / pipeline / tensor)) {
        config::Parallel parallel = given;
        parallel.pipeline = pipeline;
        parallel.tensor = tensor;
        parallel.context = context;
        parallel.data = trainers / pipeline / tensor / context;
        if (pipeline == 1) parallel.chunks = 1;
        all.push_back(parallel);
      }
    }
  }
  return all;
}

/// The placements of a layout with their own knobs; config says later which of them make sense.
std::vector<config::Attention> placements(const config::Attention& given, std::int64_t context) {
  std::vector<config::Attention> all;
  const auto add = [&](PlacementKind kind, auto change) {
    config::Attention attention = given;
    attention.placement = kind;
    attention.overlap = Overlap::none;
    change(attention);
    all.push_back(attention);
  };
  const auto as_is = [](config::Attention&) {};
  const auto in_turns = [](config::Attention& a) { a.overlap = Overlap::ping_pong; };
  add(PlacementKind::cad, as_is);
  add(PlacementKind::cad, in_turns);
  if (context == 1) {
    add(PlacementKind::colocated, as_is);
    return all;
  }
  for (const PlacementKind kind : {PlacementKind::all_gather, PlacementKind::zigzag,
                                   PlacementKind::striped, PlacementKind::ulysses}) {
    add(kind, as_is);
  }
  for (const std::int64_t part : divisors(context)) {
    if (part == 1 || part == context) continue;
    add(PlacementKind::ulysses_ring, [&](config::Attention& a) { a.head_parallel = part; });
    add(PlacementKind::double_ring, [&](config::Attention& a) { a.window = part; });
  }
  return all;
}

bool makes_sense(const config::Experiment& experiment) {
  try {
    config::check_experiment(experiment);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::vector<Candidate> candidates(const config::Experiment& given, const data::Batch& batch) {
  const config::Machine machine = load_machine(given.cluster);
  std::vector<Candidate> all;
  for (const config::Parallel& parallel : layouts(given.parallel)) {
    for (const config::Attention& attention : placements(given.attention, parallel.context)) {
      Candidate candidate{given};
      candidate.experiment.parallel = parallel;
      candidate.experiment.attention = attention;
      if (!makes_sense(candidate.experiment)) continue;
      const Forecast step = forecast(candidate.experiment, batch, machine);
      candidate.seconds = step.result.seconds;
      candidate.bound = step.result.lower_bound_seconds;
      candidate.bytes = step.peak_bytes();
      candidate.fits = given.run.memory == 0 || candidate.bytes <= given.run.memory;
      all.push_back(candidate);
    }
  }
  std::ranges::stable_sort(all, {}, &Candidate::seconds);
  return all;
}

std::string placement_text(const config::Attention& a) {
  std::string text(config::word_of(a.placement));
  if (a.placement == PlacementKind::ulysses_ring) text += fmt::format(" {}", a.head_parallel);
  if (a.placement == PlacementKind::double_ring) text += fmt::format(" {}", a.window);
  if (a.overlap == Overlap::ping_pong) text += ", ping-pong";
  return text;
}

std::string explain(const std::vector<Candidate>& all, const Candidate& best) {
  std::string text = fmt::format(
      "auto: {} layouts and placements for {} trainers, predicted at nominal rates\n"
      "{:>5} {:>9} {:>7} {:>8}  {:<18} {:>10} {:>10} {:>11}\n",
      all.size(), best.experiment.parallel.trainers(), "data", "pipeline", "tensor", "context",
      "placement", "predicted", "bound", "memory");
  std::size_t shown = 0;
  for (const Candidate& c : all) {
    if (++shown > kShown) break;
    const config::Parallel& p = c.experiment.parallel;
    text += fmt::format("{:>5} {:>9} {:>7} {:>8}  {:<18} {:>10} {:>10} {:>11}{}\n", p.data,
                        p.pipeline, p.tensor, p.context, placement_text(c.experiment.attention),
                        format_duration(c.seconds), format_duration(c.bound),
                        format_bytes(static_cast<double>(c.bytes)),
                        &c == &best ? "  <- chosen" : (c.fits ? "" : "  more than run.memory"));
  }
  const config::Parallel& p = best.experiment.parallel;
  const auto faster = std::ranges::count_if(
      all, [&](const Candidate& c) { return c.seconds < best.seconds && !c.fits; });
  text += fmt::format(
      "chosen: data {} x pipeline {} x tensor {} x context {}, {}: the least predicted time{}",
      p.data, p.pipeline, p.tensor, p.context, placement_text(best.experiment.attention),
      faster > 0 ? fmt::format(" that fits run.memory ({} faster ones do not)", faster) : "");
  return text;
}

}  // namespace

Choice choose_layout(const config::Experiment& experiment, const data::Packer& packer) {
  if (experiment.attention.placement != PlacementKind::automatic) return {experiment, ""};
  const std::vector<Candidate> all = candidates(experiment, packer.batch(0));
  if (all.empty()) {
    fail(ExitCode::usage,
         "attention.placement: found auto, but no layout of {} trainers fits this model and batch; "
         "valid: fewer trainers, or batch.tokens with more microbatches",
         experiment.parallel.trainers());
  }
  const auto best = std::ranges::find_if(all, &Candidate::fits);
  if (best == all.end()) {
    const auto least = std::ranges::min_element(all, {}, &Candidate::bytes);
    const config::Parallel& p = least->experiment.parallel;
    fail(ExitCode::usage,
         "run.memory: found {}, but all {} layouts and placements need more; valid: at least {} "
         "(data {} x pipeline {} x tensor {} x context {}, {}), or run.recompute = layer, or "
         "parallel.shard = optimizer",
         format_bytes(static_cast<double>(experiment.run.memory)), all.size(), least->bytes, p.data,
         p.pipeline, p.tensor, p.context, placement_text(least->experiment.attention));
  }
  return {best->experiment, explain(all, *best)};
}

}  // namespace cadenza::app
