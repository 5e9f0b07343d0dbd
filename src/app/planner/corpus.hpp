// SPDX-License-Identifier: Apache-2.0
// Opens the corpus of an experiment, with progress where large files have to be scanned.
#pragma once

#include <memory>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::app {

/// @param speaks  whether this process prints for the user; on standard error
/// @throws Error  as data::open_corpus does
std::unique_ptr<data::Corpus> open_corpus(const config::Experiment& experiment, bool speaks,
                                          data::Part part = data::Part::training);

}  // namespace cadenza::app
