// SPDX-License-Identifier: Apache-2.0
// How right simulations have been about measured steps: inputs/checked.json, which
// bench/published writes.
#pragma once

#include <string>
#include <vector>

#include "cadenza/config/machine.hpp"

namespace cadenza::app {

/// Simulated against measured steps of one stack on one machine, a configuration each.
struct Evidence {
  std::string software;  ///< name of the stack that they are simulated as
  std::string machine;   ///< name of the machine file
  int steps = 0;         ///< measured
  double median = 0;     ///< error of the rate, a share
  double ninety = 0;     ///< nine of ten errors are smaller
  int memory_right = 0;  ///< verdicts whether a step fits
  int memory_all = 0;
  std::string source;  ///< page with the measurements
  std::string logs;    ///< whose they are, where the stack only stands for another; else empty
};

/// Those of this machine and stack; where there is none, those of the stack, then of the machine.
/// @throws Error(data): the file is missing or broken
std::vector<Evidence> evidence_for(const std::string& software, const std::string& machine);

/// "48 measured configurations of megatron on h100: half within 3.0 %, nine of ten within 14.6 %".
std::string text_of(const Evidence& evidence);

/// Lines: the evidence, what is not known from it, and where the machine's rates come from.
std::vector<std::string> sureness(const std::vector<Evidence>& evidence,
                                  const std::string& software, const config::Machine& machine);

}  // namespace cadenza::app
