// SPDX-License-Identifier: Apache-2.0
// An experiment with placement auto and a machine, for the tests of the search.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/planner/search/search.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::app::search_cases {

inline constexpr const char* kExperiment =
    "model: {layers: 4, d_model: 256, heads: 8, kv_heads: 4, ffn: 704, vocab: 512}\n"
    "data:\n"
    "  source: synthetic\n"
    "  lengths: {distribution: list, values: [4096, 1024, 512, 2560, 512, 3584, 3072, 1024]}\n"
    "batch: {tokens: 32768, microbatch: 4096}\n"
    "parallel: {data: 8}\n"
    "attention: {placement: auto, tolerance: 0.1}\n";

inline config::Experiment experiment(const std::vector<std::string>& overrides = {}) {
  return config::parse_experiment(kExperiment, "e.yaml", overrides);
}

inline config::Machine machine() {
  config::Machine m;
  m.name = "of the test";
  m.ranks_per_node = 4;
  m.element_wise.bytes_per_second = 1e10;
  m.attention.launch_seconds = 1e-5;
  return m;
}

inline std::unique_ptr<data::Corpus> corpus(const config::Experiment& e) {
  return data::open_corpus(e.data, e.model.vocab, e.seed);
}

inline Choice choose(const config::Experiment& e, const config::Machine& m) {
  return search_layout(e, *corpus(e), m);
}

}  // namespace cadenza::app::search_cases
