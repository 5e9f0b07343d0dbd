// SPDX-License-Identifier: Apache-2.0
// What the files hold that an experiment names and its YAML does not tell.
#pragma once

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::app {

/// Of the corpus or the lengths that it was made from: documents, tokens and a hash of the lengths;
/// of budgets of heads a hash. @param corpus  that the experiment names
config::FileContents file_contents(const config::Experiment& experiment,
                                   const data::Corpus& corpus);

}  // namespace cadenza::app
