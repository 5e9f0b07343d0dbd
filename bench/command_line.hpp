// SPDX-License-Identifier: Apache-2.0
// What the benchmarks' command lines share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "measure.hpp"

namespace cadenza::bench {

struct Repetitions {
  int warm_up = 1;
  int count = 5;
  bool interactive = false;
};

/// Adds --warm-up, --repetitions and --interactive.
void add_repetitions(CLI::App& app, Repetitions& repetitions);

/// Parses, starts Kokkos, and either serves requests (--interactive) or measures the work of
/// `request` beside its limit and prints both as JSON. One line on standard error when it fails.
/// @return the exit code
int run(CLI::App& app, int argc, char** argv, const Repetitions& repetitions,
        const MakeWork& make_work, const std::function<Json()>& request);

}  // namespace cadenza::bench
