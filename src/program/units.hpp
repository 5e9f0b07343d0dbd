// SPDX-License-Identifier: Apache-2.0
// What a rank runs in a step, one pass of a microbatch after the other.
#pragma once

#include <vector>

#include "cadenza/program/program.hpp"

namespace cadenza::program {

/// A pass of a microbatch through a chunk on a rank; microbatch -1: only its attention tasks.
struct Unit {
  Pass pass = Pass::forward;
  int tick = 0;
  int microbatch = -1;
  int chunk = 0;
};

/// Of a trainer of a stage, or of a dedicated server.
std::vector<Unit> units_of(const StepShape& outline, bool trainer, int stage);

}  // namespace cadenza::program
