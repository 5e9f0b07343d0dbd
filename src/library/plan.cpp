// SPDX-License-Identifier: Apache-2.0
#include "library/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/error.hpp"
#include "cadenza/config/limits.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/config/machine.hpp"
#include "cadenza/data/batch.hpp"
#include "cadenza/plan/plan.hpp"
#include "cadenza/program/step_plan.hpp"

#define CADENZA_EXPORT __attribute__((visibility("default")))

struct cadenza_plan {
  std::vector<cadenza_task> tasks;
  std::vector<cadenza_move> moves;
  std::vector<cadenza_merge> merges;
  std::vector<cadenza_home> homes;
  std::vector<cadenza_document> documents;
  std::vector<cadenza_member> pools;
};

namespace cadenza::library {
namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 40;  ///< tokens of a document

/// The documents of each microbatch.
/// @throws Error(usage)
data::Batch make_batch(std::span<const std::int64_t> documents, const std::int64_t* lengths) {
  data::Batch batch;
  for (const std::int64_t count : documents) {
    data::Microbatch& microbatch = batch.microbatches.emplace_back();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t length = *lengths++;
      if (length < 1 || length > kLongest) {
        fail(
            ExitCode::usage,
            "lengths: found a document of {} tokens in microbatch {}; valid: an integer in [1, {}]",
            length, batch.microbatches.size() - 1, kLongest);
      }
      microbatch.documents.push_back({0, {0, length}});
    }
  }
  if (batch.documents() == 0) {
    fail(ExitCode::usage, "lengths: found no document; valid: a length for each document");
  }
  return batch;
}

/// Tokens of the longest microbatch, in whole rows for `ranks` ranks.
std::int64_t longest(const data::Batch& batch, std::int64_t ranks) {
  std::int64_t most = 1;
  for (const data::Microbatch& microbatch : batch.microbatches) {
    most = std::max(most, microbatch.tokens());
  }
  return (most + ranks - 1) / ranks * ranks;
}

/// Returns the number that the settings give to a key of `parallel`, or 1; what is no number the
/// parser refuses.
std::int64_t given(const std::vector<std::string>& settings, const char* key) {
  const std::string begin = fmt::format("parallel.{}=", key);
  std::int64_t number = 1;
  for (const std::string& setting : settings) {
    if (setting.starts_with(begin)) number = std::atoll(setting.c_str() + begin.size());
  }
  return std::clamp<std::int64_t>(number, 1, config::kMostRanks);
}

/// Reads the settings. Of the model, plans depend on heads and head_dim only, and homes by cost on
/// its widths; the numbers of the batch follow from the lengths.
/// @throws Error(usage)
config::Experiment make_experiment(const std::vector<std::string>& settings,
                                   const data::Batch& batch) {
  const auto microbatches = static_cast<std::int64_t>(batch.microbatches.size());
  const std::int64_t data = given(settings, "data");
  if (microbatches % data != 0) {
    fail(ExitCode::usage,
         "lengths: found {} microbatches; valid: a multiple of parallel.data = {}, microbatch i "
         "being data rank "
         "i mod {}'s",
         microbatches, data, data);
  }
  const std::int64_t layers = given(settings, "pipeline") * given(settings, "chunks");
  const std::int64_t rows =
      longest(batch, 2 * given(settings, "context") * given(settings, "tensor"));
  const std::string base = fmt::format(
      "name: plan\n"
      "model: {{layers: {0}, d_model: 128, heads: 1, kv_heads: 1, ffn: {1}, vocab: {1}}}\n"
      "data: {{source: synthetic, max_document: {2},\n"
      "       lengths: {{distribution: list, values: [1]}}}}\n"
      "batch: {{tokens: {3}, microbatch: {2}}}\n"
      "attention: {{placement: cad, tolerance: 0.1, overlap: none}}\n",
      layers, given(settings, "tensor"), rows, rows * microbatches);
  config::Experiment experiment = config::parse_experiment(base, "layout", settings);
  using config::AttentionKind, config::Overlap, config::PlacementKind;
  if (experiment.attention.placement == PlacementKind::automatic ||
      experiment.attention.overlap == Overlap::automatic) {
    fail(ExitCode::usage,
         "layout: found auto, which takes a simulation of many steps; valid: a placement and an "
         "overlap, as `cadenza simulate` chooses them");
  }
  if (experiment.attention.sparse_rule().block > 0 ||
      experiment.attention.kind == AttentionKind::dual_chunk) {
    fail(ExitCode::usage,
         "attention.kind: found one whose pairs or positions these tables do not hold; valid: "
         "full, window, prefix (all kinds: cadenza plan --format json)");
  }
  if (!experiment.attention.layers.empty()) {
    fail(ExitCode::usage,
         "attention.layers: found kinds by layer, but these tables hold one plan; valid: a plan of "
         "each kind (both: cadenza plan --format json)");
  }
  return experiment;
}

/// Adds the documents of a tick in the order in which its plans count them.
void add_documents(cadenza_plan& to, std::int64_t number, const program::Tick& tick,
                   const program::Layout& layout, const data::Batch& batch) {
  for (std::size_t stage = 0; stage < tick.microbatch.size(); ++stage) {
    if (tick.microbatch[stage] < 0) continue;
    for (int data = 0; data < layout.data(); ++data) {
      const std::int64_t microbatch = std::int64_t{tick.microbatch[stage]} * layout.data() + data;
      std::int64_t index = 0;
      for (const data::BatchDocument& document : batch.microbatches[at(microbatch)].documents) {
        to.documents.push_back(
            {number, std::ssize(to.documents), tick.phase == Pass::backward ? 1 : 0,
             static_cast<std::int64_t>(stage), microbatch, index++, document.length()});
      }
    }
  }
}

/// The tables of one plan.
class Writer {
 public:
  Writer(cadenza_plan& to, std::int64_t tick, std::int64_t half, std::int64_t first_document)
      : to_(to), tick_(tick), half_(half), first_(first_document) {}

  void add(const plan::Plan& plan) {
    for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
      add(plan.stages[stage], static_cast<std::int64_t>(stage));
    }
    for (const plan::Merge& merge : plan.merges) {
      for (const Rank contributor : merge.contributors) {
        to_.merges.push_back({tick_, half_, merge.owner, contributor, first_ + merge.document,
                              merge.tokens.begin, merge.tokens.end, merge.heads.begin,
                              merge.heads.end});
      }
    }
    if (half_ > 0) return;  // the halves of a tick have the same homes
    for (const plan::Home& home : plan.workload.homes) {
      to_.homes.push_back(
          {tick_, home.rank, first_ + home.document, home.tokens.begin, home.tokens.end});
    }
  }

 private:
  void add(const plan::Stage& stage, std::int64_t number) {
    for (const plan::PlacedTask& placed : stage.tasks) {
      const Task& task = placed.task;
      to_.tasks.push_back({tick_, half_, number, placed.server, first_ + task.document,
                           task.q.begin, task.q.end, task.k.begin, task.k.end, task.heads.begin,
                           task.heads.end, task.band.low, task.band.high, placed.cost});
    }
    for (const plan::Move& move : stage.moves) {
      to_.moves.push_back({tick_, half_, number, move.from, move.to,
                           static_cast<std::int64_t>(move.what), first_ + move.document,
                           move.tokens.begin, move.tokens.end, move.heads.begin, move.heads.end,
                           move.bytes});
    }
  }

  cadenza_plan& to_;
  std::int64_t tick_, half_, first_;
};

std::unique_ptr<cadenza_plan> make(const std::vector<std::string>& settings, const char* machine,
                                   std::span<const std::int64_t> documents,
                                   const std::int64_t* lengths) {
  const data::Batch batch = make_batch(documents, lengths);
  const config::Experiment experiment = make_experiment(settings, batch);
  const config::Machine rates =
      machine == nullptr ? config::Machine() : config::parse_machine(machine, "machine");
  auto result = std::make_unique<cadenza_plan>();
  const program::StepShape step_shape(experiment);
  const std::vector<program::Tick> ticks = step_shape.ticks();
  std::int64_t tick = -1, first = 0;
  for (const program::TickPlans& plans : program::plan_ticks(experiment, batch, rates)) {
    if (plans.half == 0) {
      first = std::ssize(result->documents);
      ++tick;
      add_documents(*result, tick, ticks[at(tick)], step_shape.layout, batch);
    }
    Writer(*result, tick, plans.half, first).add(plans.forward);
  }
  const program::Layout& layout = step_shape.layout;
  for (int pool = 0; pool < layout.pools(); ++pool) {
    for (Rank rank = 0; rank < layout.pool_size(); ++rank) {
      result->pools.push_back({pool, rank, layout.world_rank(pool, rank)});
    }
  }
  return result;
}

int refuse(ExitCode code, std::string_view why, char* message, std::int64_t size) {
  constexpr std::string_view kOption = "--set ";  // which a library does not have
  if (why.starts_with(kOption)) why.remove_prefix(kOption.size());
  if (size > 0) message[why.copy(message, static_cast<std::size_t>(size - 1))] = '\0';
  return static_cast<int>(code);
}

template <typename Row>
std::int64_t rows_of(const std::vector<Row>& table, const void** rows) {
  *rows = table.data();
  return std::ssize(table);
}

}  // namespace
}  // namespace cadenza::library

using cadenza::ExitCode;
using namespace cadenza::library;

CADENZA_EXPORT int cadenza_plan_make(const char* const* settings, int64_t count,
                                     const char* machine, const int64_t* documents,
                                     int64_t microbatches, const int64_t* lengths,
                                     cadenza_plan** plan, char* message, int64_t message_size) {
  try {
    *plan = make({settings, settings + count}, machine,
                 {documents, static_cast<std::size_t>(microbatches)}, lengths)
                .release();
    return static_cast<int>(ExitCode::ok);
  } catch (const cadenza::Error& error) {
    return refuse(error.code(), error.what(), message, message_size);
  } catch (const std::exception& error) {
    return refuse(ExitCode::internal, error.what(), message, message_size);
  }
}

CADENZA_EXPORT int64_t cadenza_plan_table(const cadenza_plan* plan, int table, const void** rows) {
  switch (table) {
    case CADENZA_TASKS:
      return rows_of(plan->tasks, rows);
    case CADENZA_MOVES:
      return rows_of(plan->moves, rows);
    case CADENZA_MERGES:
      return rows_of(plan->merges, rows);
    case CADENZA_HOMES:
      return rows_of(plan->homes, rows);
    case CADENZA_DOCUMENTS:
      return rows_of(plan->documents, rows);
    case CADENZA_POOLS:
      return rows_of(plan->pools, rows);
  }
  *rows = nullptr;
  return -1;
}

CADENZA_EXPORT void cadenza_plan_free(cadenza_plan* plan) {
  delete plan;
}
