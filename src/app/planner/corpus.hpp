// SPDX-License-Identifier: Apache-2.0
// Opens the corpus of an experiment, with progress where large files have to be scanned.
#pragma once

#include <memory>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::app {

/// The corpus of training, or of validation.
enum class Purpose { training, validation };

/// @param speaks  whether this process prints for the user; on standard error
/// @throws Error  as data::open_corpus does
std::unique_ptr<data::Corpus> open_corpus(const config::Experiment& experiment, bool speaks,
                                          Purpose purpose = Purpose::training);

}  // namespace cadenza::app
