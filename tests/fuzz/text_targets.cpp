// SPDX-License-Identifier: Apache-2.0
// The program fuzz_text: readers of text and of plain binary files.
#include "readers.hpp"
#include "target.hpp"

namespace cadenza::fuzz {

std::span<const Target> targets() {
  static constexpr Target kTargets[] = {
      {"experiment", read_experiment}, {"sweep", read_sweep}, {"machine", read_machine},
      {"tokens", read_tokens},         {"npy", read_npy},     {"lengths", read_lengths},
      {"paths", read_paths},
  };
  return kTargets;
}

}  // namespace cadenza::fuzz
