// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tuple>

#include "cadenza/program/program.hpp"

namespace cadenza::program {

/// Messages of a stage of one layer in one pass, results apart from inputs: what posts and waits
/// refer to. Tick, pass, again, layer, stage, results.
using Messages = std::tuple<int, Pass, bool, int, int, bool>;

inline Messages messages(const Step& step, bool results) {
  return {step.tick, step.pass, step.again, step.layer, step.stage, results};
}

}  // namespace cadenza::program
