// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <numeric>

#include "config/checker.hpp"
#include "config/words.hpp"

namespace cadenza::config {
namespace {

bool are_equal(const std::vector<std::int64_t>& numbers) {
  return std::ranges::adjacent_find(numbers, std::not_equal_to()) == numbers.end();
}

/// Checks that every chunk of every stage has a layer.
void check_stages(const Checker& check, const Parallel& p, std::int64_t layers) {
  check.require(p.pipeline <= layers, "parallel.pipeline",
                "found {} stages for model.layers = {}; valid: at most {}", p.pipeline, layers,
                layers);
  check.require(p.chunks <= layers / p.pipeline, "parallel.chunks",
                "found {} of each of {} stages, for model.layers = {}; valid: at most {}", p.chunks,
                p.pipeline, layers, layers / p.pipeline);
  if (p.stages.empty()) return;
  check.require(p.pipeline > 1, "parallel.stages",
                "found a list with parallel.pipeline = 1; valid: [], or a pipeline of more stages");
  const std::int64_t parts = p.pipeline * p.chunks;
  check.require(std::ssize(p.stages) == parts, "parallel.stages",
                "found {} numbers; valid: parallel.pipeline x parallel.chunks = {} x {} = {}",
                p.stages.size(), p.pipeline, p.chunks, parts);
  const std::int64_t sum = std::accumulate(p.stages.begin(), p.stages.end(), std::int64_t{0});
  check.require(sum == layers, "parallel.stages",
                "found {} layers in all; valid: numbers with the sum model.layers = {}", sum,
                layers);
}

/// Checks that stages in one phase have equally many layers: their pools compute the attention of
/// one layer of every stage at a time.
void check_phases(const Checker& check, const Parallel& p, PipelineSchedule schedule,
                  std::int64_t layers) {
  if (p.pipeline == 1 || schedule != PipelineSchedule::phase_aligned) return;
  constexpr const char* kInstead =
      "or parallel.schedule 1f1b or interleaved, where every stage has a pool of its own";
  check.require(layers % p.pipeline == 0, "parallel.pipeline",
                "found {}, which does not divide model.layers = {}, with schedule phase_aligned, "
                "whose stages need equally many; valid: {}, {}",
                p.pipeline, layers, divisors(layers), kInstead);
  check.require(are_equal(p.stages), "parallel.stages",
                "found unequal numbers with schedule phase_aligned, whose stages need equally "
                "many; valid: [], {}",
                kInstead);
}

}  // namespace

PipelineSchedule Experiment::pipeline_schedule() const {
  const Parallel& p = parallel;
  if (p.schedule != PipelineSchedule::automatic) return p.schedule;
  const bool equal = p.chunks == 1 && model.layers % p.pipeline == 0 && are_equal(p.stages);
  if (disaggregates(attention.placement) && (equal || attention.servers > 0)) {
    return PipelineSchedule::phase_aligned;
  }
  return p.chunks > 1 ? PipelineSchedule::interleaved : PipelineSchedule::one_f_one_b;
}

void check_pipeline(const Checker& check, const Experiment& e) {
  const Parallel& p = e.parallel;
  const PipelineSchedule schedule = e.pipeline_schedule();
  check_stages(check, p, e.model.layers);
  check_phases(check, p, schedule, e.model.layers);
  const bool interleaves = p.pipeline > 1 && schedule == PipelineSchedule::interleaved;
  check.require(p.chunks == 1 || interleaves, "parallel.chunks",
                "found {} with schedule {} over {} pipeline ranks; valid: 1, or more with schedule "
                "interleaved and parallel.pipeline > 1",
                p.chunks, word(schedule), p.pipeline);
  const std::int64_t microbatches = e.batch.tokens / (e.batch.microbatch * p.data);
  check.require(schedule != PipelineSchedule::interleaved || microbatches % p.pipeline == 0,
                "parallel.chunks",
                "found {} microbatches per data-parallel rank and step, which parallel.pipeline = "
                "{} does not divide; valid for schedule interleaved: batch.tokens a multiple of {}",
                microbatches, p.pipeline, e.batch.microbatch * p.data * p.pipeline);
  check.require(p.pipeline == 1 || !e.model.tie_embeddings, "model.tie_embeddings",
                "found true with parallel.pipeline = {}: embedding and head are on different "
                "stages; valid: false, or parallel.pipeline = 1",
                p.pipeline);
  check.require(
      e.attention.servers == 0 || p.pipeline == 1 || schedule == PipelineSchedule::phase_aligned,
      "parallel.schedule",
      "found {} with dedicated attention servers, which serve all stages in one phase; "
      "valid: phase_aligned",
      word(schedule));
}

}  // namespace cadenza::config
