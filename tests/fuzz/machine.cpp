// SPDX-License-Identifier: Apache-2.0
// A machine's YAML, and a small step simulated on the machine: a finite number of seconds.
#include "cadenza/config/machine.hpp"

#include "cadenza/base/error.hpp"
#include "readers.hpp"
#include "small.hpp"

namespace cadenza::fuzz {

void read_machine(Bytes input) {
  const config::Machine machine = config::parse_machine(text_of(input), "machine.yaml");
  const std::string text = config::to_yaml(machine);
  try {
    require(config::to_yaml(config::parse_machine(text, "again.yaml")) == text,
            "comes back changed:\n{}", text);
  } catch (const Error& error) {
    finding(fmt::format("accepted, but its own YAML is refused: {}\n{}", error.what(), text));
  }
  static const config::Experiment experiment = four_ranks();
  simulate_step(experiment, machine);
}

}  // namespace cadenza::fuzz
