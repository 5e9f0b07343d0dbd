// SPDX-License-Identifier: Apache-2.0
// A machine's YAML, and a small step simulated on the machine: a finite number of seconds.
#include "cadenza/config/machine.hpp"

#include "cadenza/base/error.hpp"
#include "readers.hpp"
#include "small.hpp"

namespace cadenza::fuzz {
namespace {

config::Experiment on_two_nodes() {
  config::Experiment e;
  e.model = {
      .layers = 2, .d_model = 64, .heads = 4, .kv_heads = 2, .ffn = 96, .vocab = 64, .rope = {}};
  e.data.source = config::Source::synthetic;
  e.data.documents = 20;
  e.data.max_document = 256;
  e.data.lengths.median = 60;
  e.data.lengths.max = 256;
  e.batch.tokens = 1024;
  e.batch.microbatch = 256;
  e.parallel.data = 2;
  e.parallel.tensor = 2;
  e.attention.placement = config::PlacementKind::cad;
  e.attention.block = 16;
  return e;
}

}  // namespace

void read_machine(Bytes input) {
  const config::Machine machine = config::parse_machine(text_of(input), "machine.yaml");
  const std::string text = config::to_yaml(machine);
  try {
    require(config::to_yaml(config::parse_machine(text, "again.yaml")) == text,
            "comes back changed:\n{}", text);
  } catch (const Error& error) {
    finding(fmt::format("accepted, but its own YAML is refused: {}\n{}", error.what(), text));
  }
  static const config::Experiment experiment = on_two_nodes();
  simulate_step(experiment, machine);
}

}  // namespace cadenza::fuzz
