// SPDX-License-Identifier: Apache-2.0
// The program fuzz_text: readers of text and of plain binary files.
#include "readers.hpp"
#include "target.hpp"

namespace cadenza::fuzz {
namespace {

/// A fault that is found only where libFuzzer learns from coverage and comparisons.
void read_planted(Bytes input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  if (text.starts_with("planted") && text.ends_with("fault")) finding("the planted fault");
}

}  // namespace

std::span<const Target> targets() {
  static constexpr Target kTargets[] = {
      {"experiment", read_experiment},
      {"model", read_model},
      {"sweep", read_sweep},
      {"machine", read_machine},
      {"tokens", read_tokens},
      {"npy", read_npy},
      {"lengths", read_lengths},
      {"paths", read_paths},
      {"budgets", read_budgets},
      {"megatron", read_megatron},
      {"safetensors", read_safetensors},
      {"planted", read_planted},
  };
  return kTargets;
}

}  // namespace cadenza::fuzz
