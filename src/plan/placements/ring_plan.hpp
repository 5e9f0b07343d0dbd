// SPDX-License-Identifier: Apache-2.0
// What all placements have in common that share a sequence inside a context group and pass keys
// around: rings, head splits and both.
#pragma once

#include "cadenza/plan/plan.hpp"

namespace cadenza::plan {

/// A context group as ring positions of `head_parallel` ranks each: rank = position x head_parallel
/// + slice. Every `inner_ring` positions are a node.
struct RingShape {
  int head_parallel = 1;  ///< divides the group and the heads
  int inner_ring = 1;     ///< divides the group's positions; all of them: one plain ring
};

/// Every rank computes one slice of the heads for all queries of its position.
///
/// Head slices (stage 1, where there are several): Q, K and V of a position go to the ranks of the
/// position that have their heads; in the last stage O and LSE go home. Ring: with P = inner_ring,
/// at ring step t a rank has the keys of the position (t mod P) before its own on the node that is
/// t / P before its own. It got them from the position before its own, or, where t is a multiple of
/// P, from the same place on the node before; both held them a step (P steps) ago. A key leaves a
/// position only if some later one on its way reads it, and ends at the last that does. The last
/// stage has O and LSE; steps in which nothing moves and nothing runs have no stage.
Plan ring_plan(const Workload& workload, const RingShape& shape);

}  // namespace cadenza::plan
