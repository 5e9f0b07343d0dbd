// SPDX-License-Identifier: Apache-2.0
// Placements that share a sequence inside a context group: rings that pass keys around, splits of
// the heads, and both combined.
#include "cadenza/base/error.hpp"
#include "cadenza/plan/placement.hpp"
#include "plan/assemble.hpp"
#include "plan/placements/ring_builder.hpp"

namespace cadenza::plan {
namespace {

Plan ring_plan(const Workload& workload, const RingShape& shape) {
  RingBuilder builder(workload, shape);
  for (Ring& ring : builder.rings()) builder.add(ring);
  Plan plan;
  plan.workload = workload;
  plan.stages = builder.take();
  // With narrow masks nothing moves and nothing runs in some steps.
  std::erase_if(plan.stages, is_empty);
  if (plan.stages.empty()) plan.stages.emplace_back();
  for (Stage& stage : plan.stages) sort_stage(stage);
  plan.merges = make_merges(workload, Homes(workload), plan.stages);
  add_totals(plan);
  return plan;
}

}  // namespace

// Placements `ring`, `zigzag`, `striped`, `block_striped`, `double_ring` and `dynamic`: queries
// stay, keys and values go round the context group, or the ranks of it that have a part of their
// document. They differ only in the homes of tokens and workload.order
// (Ring Attention, arXiv 2310.01889; Striped Attention, arXiv 2311.09431). With inner rings, a rank
// sends as many keys as in one flat ring, but crosses nodes only in every inner_ring-th step
// (LoongTrain, arXiv 2406.18485; over stripes of blocks it is the ring of MTraining, arXiv
// 2510.18830).

Plan ring(const Workload& workload, std::int64_t inner_ring, bool by_document) {
  if (inner_ring < 1 || workload.context % inner_ring != 0) {
    fail(ExitCode::usage,
         "attention.inner_ring: found {}; valid: a divisor of parallel.context = {}", inner_ring,
         workload.context);
  }
  return ring_plan(workload,
                   {.inner_ring = static_cast<int>(inner_ring), .by_document = by_document});
}

// Placement `ulysses` (DeepSpeed-Ulysses, arXiv 2309.14509): every rank of the context group
// computes its share of the heads for the whole sequence. Each rank gets the key-value heads that
// it reads, so some move to several ranks.

Plan ulysses(const Workload& workload) {
  if (workload.shape.heads % workload.context != 0) {
    fail(ExitCode::usage,
         "parallel.context: found {} with placement ulysses; valid: a divisor of the {} heads, or "
         "placement ulysses_ring",
         workload.context, workload.shape.heads);
  }
  return ring_plan(workload, {.head_parallel = workload.context});
}

// Placement `ulysses_ring`: splits the heads over `head_parallel` neighbouring ranks, with a ring
// of such groups (USP, arXiv 2405.07719; the 2-D attention of LoongTrain, arXiv 2406.18485).

Plan ulysses_ring(const Workload& workload, std::int64_t head_parallel, bool by_document) {
  if (head_parallel < 1 || workload.context % head_parallel != 0 ||
      workload.shape.heads % head_parallel != 0) {
    fail(ExitCode::usage,
         "attention.head_parallel: found {}; valid: a divisor of parallel.context = {} and of the "
         "{} heads",
         head_parallel, workload.context, workload.shape.heads);
  }
  const int slices = static_cast<int>(head_parallel);
  return ring_plan(workload, {.head_parallel = slices, .by_document = by_document});
}

}  // namespace cadenza::plan
