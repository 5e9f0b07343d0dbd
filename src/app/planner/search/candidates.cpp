// SPDX-License-Identifier: Apache-2.0
#include "app/planner/search/candidates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/load.hpp"

namespace cadenza::app {
namespace {

using config::KeyPath;
using config::Overlap;
using config::PlacementKind;
using config::Recompute;
using config::Shard;

/// batch.longest where memory is short: a few percent slower than at 1.25, beyond which little is
/// gained (docs/results/auto.md).
constexpr double kFewRows = 1.1;

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> all;
  for (std::int64_t part = 1; part <= number; ++part) {
    if (number % part == 0) all.push_back(part);
  }
  return all;
}

/// Degrees to try where `whole` ranks are left: all that divide them, or the one that is given.
std::vector<std::int64_t> degrees(bool open, std::int64_t given, std::int64_t whole) {
  if (open) return divisors(whole);
  if (whole % given != 0) return {};
  return {given};
}

/// Groups of layers of a stage to try. More than these gain little: of a schedule's bubble, a part
/// of 1 / chunks is left.
std::vector<std::int64_t> chunks_of(const config::Parallel& given, std::int64_t pipeline) {
  if (pipeline == 1) return {1};
  if (!given.open.chunks) return {given.chunks};
  return {1, 2, 4};
}

/// data x pipeline x tensor x context of so many trainers, in every way that keeps what is given.
std::vector<config::Parallel> layouts(const config::Parallel& given, std::int64_t trainers) {
  std::vector<config::Parallel> all;
  for (const std::int64_t pipeline : degrees(given.open.pipeline, given.pipeline, trainers)) {
    const std::int64_t stage = trainers / pipeline;
    for (const std::int64_t tensor : degrees(given.open.tensor, given.tensor, stage)) {
      for (const std::int64_t context :
           degrees(given.open.context, given.context, stage / tensor)) {
        config::Parallel parallel = given;
        parallel.open = {};
        parallel.pipeline = pipeline;
        parallel.tensor = tensor;
        parallel.context = context;
        parallel.data = stage / tensor / context;
        for (const std::int64_t chunks : chunks_of(given, pipeline)) {
          parallel.chunks = chunks;
          all.push_back(parallel);
        }
      }
    }
  }
  return all;
}

/// A placement's key for the ranks of a part of a context group.
struct PartKey {
  const char* name;
  std::int64_t config::Attention::*value;
};

std::optional<PartKey> part_key(PlacementKind kind) {
  const config::PlacementTraits& placement = config::traits_of(kind);
  switch (placement.keys) {
    case KeyPath::head_groups:
      return PartKey{"attention.head_parallel", &config::Attention::head_parallel};
    case KeyPath::ring:  // the rings of a fixed order are tried flat
      if (placement.shares != config::Shares::given) break;
      return PartKey{"attention.inner_ring", &config::Attention::inner_ring};
    case KeyPath::planned:
    case KeyPath::gather:
    case KeyPath::heads:
      break;
  }
  return std::nullopt;
}

std::vector<PlacementKind> kinds(config::Reach reach) {
  std::vector<PlacementKind> found;
  for (std::size_t i = 0; i < config::kPlacements.size(); ++i) {
    const config::PlacementTraits& placement = config::kPlacements[i];
    if (placement.candidate && placement.reach == reach) {
      found.push_back(static_cast<PlacementKind>(i));
    }
  }
  return found;
}

/// The placements of a layout with their own knobs; config says later which of them make sense.
/// Pools alone balance the attention of unequal ranks, or share it with servers that are tried.
std::vector<config::Attention> placements(const config::Attention& given, std::int64_t context) {
  std::vector<config::Attention> all;
  const auto add = [&](PlacementKind kind) -> config::Attention& {
    config::Attention& attention = all.emplace_back(given);
    attention.open = {};
    attention.placement = kind;
    if (attention.overlap == Overlap::automatic) attention.overlap = Overlap::none;
    return attention;
  };
  std::vector<bool> pools = {given.mixed};
  if (given.open.mixed && given.servers > 0) pools = {false, true};
  std::vector<Overlap> overlaps = {given.overlap};
  if (given.overlap == Overlap::automatic) overlaps = {Overlap::none, Overlap::ping_pong};
  for (const PlacementKind kind : kinds(config::Reach::pool)) {
    for (const bool mixed : pools) {
      for (const Overlap overlap : overlaps) {
        config::Attention& one = add(kind);
        one.mixed = mixed;
        one.overlap = overlap;
      }
    }
  }
  const bool tries_servers = given.open.servers && given.servers > 0;
  if (!given.capacity.empty() || tries_servers) return all;
  const std::vector<PlacementKind> others =
      kinds(context == 1 ? config::Reach::rank : config::Reach::group);
  for (const PlacementKind kind : others) {
    if (!part_key(kind)) add(kind);
  }
  for (const std::int64_t part : divisors(context)) {
    if (part == 1 || part == context) continue;
    for (const PlacementKind kind : others) {
      if (const auto key = part_key(kind)) add(kind).*(key->value) = part;
    }
  }
  return all;
}

/// Every layout of so many trainers with every placement.
std::vector<Candidate> arrangements_of(const config::Experiment& given, std::int64_t trainers) {
  std::vector<Candidate> all;
  for (const config::Parallel& parallel : layouts(given.parallel, trainers)) {
    for (const config::Attention& attention : placements(given.attention, parallel.context)) {
      const Candidate candidate{parallel, attention, given.run.recompute, given.batch.microbatch,
                                given.batch.longest};
      if (makes_sense(candidate.of(given))) {
        all.push_back(candidate);
      } else if (const auto larger = with_larger_microbatch(given, candidate)) {
        all.push_back(*larger);
      }
    }
  }
  return all;
}

}  // namespace

bool makes_sense(const config::Experiment& experiment) {
  try {
    config::check_experiment(experiment);
    return true;
  } catch (const Error&) {
    return false;
  }
}

config::Experiment Candidate::of(const config::Experiment& given) const {
  config::Experiment experiment = given;
  experiment.parallel = parallel;
  experiment.attention = attention;
  experiment.run.recompute = recompute;
  experiment.run.recompute_open = false;
  experiment.batch.microbatch = microbatch;
  experiment.batch.microbatch_open = false;
  experiment.batch.longest = longest;
  experiment.batch.longest_open = false;
  return experiment;
}

std::vector<Candidate> arrangements(const config::Experiment& given) {
  return arrangements_of(given, given.parallel.trainers());
}

std::vector<Candidate> served_arrangements(const config::Experiment& given) {
  std::vector<Candidate> all;
  if (!given.attention.open.servers) return all;
  constexpr std::int64_t kParts = 8;
  config::Experiment served = given;
  const std::int64_t ranks = given.parallel.trainers();
  for (const std::int64_t tensor :
       degrees(given.parallel.open.tensor, given.parallel.tensor, ranks)) {
    served.parallel.tensor = tensor;
    served.parallel.open.tensor = false;
    const std::int64_t part = std::max<std::int64_t>(1, ranks / tensor / kParts) * tensor;
    for (std::int64_t servers = part; servers < ranks; servers += part) {
      served.attention.servers = servers;
      std::ranges::copy(arrangements_of(served, ranks - servers), std::back_inserter(all));
    }
  }
  return all;
}

std::optional<Candidate> with_larger_microbatch(const config::Experiment& given,
                                                const Candidate& arrangement) {
  if (!given.batch.microbatch_open) return std::nullopt;
  Candidate larger = arrangement;
  const std::int64_t most = given.batch.tokens / arrangement.parallel.data;
  while ((larger.microbatch *= 2) <= most) {
    if (makes_sense(larger.of(given))) return larger;
  }
  return std::nullopt;
}

std::optional<Candidate> with_fewer_rows(const config::Experiment& given,
                                         const Candidate& arrangement) {
  const bool takes = !config::packs_by_cost(given.batch.packing) &&
                     arrangement.parallel.context > 1 && arrangement.attention.shares_by_cost();
  if (!given.batch.longest_open || !takes) return std::nullopt;
  Candidate fewer = arrangement;
  fewer.longest = kFewRows;
  return fewer;
}

std::vector<Candidate> variants(const config::Experiment& given, const Candidate& arrangement) {
  std::vector<Recompute> recomputes = {given.run.recompute};
  if (given.run.recompute_open) {
    recomputes = {Recompute::none, Recompute::mlp, Recompute::attention, Recompute::layer};
  }
  std::vector<Shard> shards = {given.parallel.shard};
  if (given.parallel.open.shard) {
    shards = {Shard::none, Shard::optimizer};
    if (!given.cluster.software.is_own()) shards.push_back(Shard::parameters);  // only simulated
  }
  std::vector<Candidate> all;
  for (const Recompute recompute : recomputes) {
    for (const Shard shard : shards) {
      Candidate candidate = arrangement;
      candidate.recompute = recompute;
      candidate.parallel.shard = shard;
      if (makes_sense(candidate.of(given))) all.push_back(candidate);
    }
  }
  return all;
}

bool disaggregates(const Candidate& candidate) {
  return config::disaggregates(candidate.attention.placement);
}

std::string placement_text(const config::Attention& a) {
  std::string text(config::word_of(a.placement));
  if (const auto key = part_key(a.placement)) text += fmt::format(" {}", a.*(key->value));
  if (a.overlap == Overlap::ping_pong) text += ", ping-pong";
  return text;
}

std::string placement_text(const Candidate& candidate) {
  std::string text = placement_text(candidate.attention);
  if (candidate.longest == kFewRows) text += fmt::format(", longest {}", kFewRows);
  return text;
}

std::vector<std::string> settings(const Candidate& candidate) {
  const config::Parallel& p = candidate.parallel;
  const config::Attention& a = candidate.attention;
  std::vector<std::string> list;
  const auto set = [&](std::string_view key, const auto& value) {
    list.push_back(fmt::format("--set {}={}", key, value));
  };
  set("parallel.data", p.data);
  set("parallel.pipeline", p.pipeline);
  set("parallel.tensor", p.tensor);
  set("parallel.context", p.context);
  if (p.chunks > 1) set("parallel.chunks", p.chunks);
  set("parallel.shard", config::word_of(p.shard));
  set("attention.placement", config::word_of(a.placement));
  if (const auto key = part_key(a.placement)) set(key->name, a.*(key->value));
  if (a.servers > 0) set("attention.servers", a.servers);
  if (a.mixed) set("attention.mixed", a.mixed);
  set("attention.overlap", a.overlap == Overlap::ping_pong ? "ping_pong" : "none");
  set("run.recompute", config::word_of(candidate.recompute));
  set("batch.microbatch", candidate.microbatch);
  if (candidate.longest == kFewRows) set("batch.longest", candidate.longest);
  return list;
}

std::string layout_text(const Candidate& candidate) {
  const config::Parallel& p = candidate.parallel;
  const config::Attention& a = candidate.attention;
  const std::string chunks = p.chunks > 1 ? fmt::format(" ({} chunks)", p.chunks) : "";
  std::string text = fmt::format("data {} x pipeline {}{} x tensor {} x context {}", p.data,
                                 p.pipeline, chunks, p.tensor, p.context);
  if (a.servers > 0) text += " + " + counted(a.servers, a.mixed ? "mixed server" : "server");
  return text + ", microbatch " + format_tokens(static_cast<double>(candidate.microbatch));
}

}  // namespace cadenza::app
