// SPDX-License-Identifier: Apache-2.0
// Files that an experiment names or a command writes where --output says.
#pragma once

#include <functional>
#include <string>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::app {

/// Of the corpus or the lengths that it was made from: documents, tokens and a hash of the lengths;
/// of budgets of heads a hash. @param corpus  that the experiment names
config::FileContents file_contents(const config::Experiment& experiment,
                                   const data::Corpus& corpus);

// A file that a command makes where --output says.

/// A slip of the keyboard must not cost a file. What may be replaced is what an earlier call of the
/// same command wrote, or with --force any regular file; devices, pipes, folders and links
/// never are.
/// Called before a command spends minutes.
/// @param command     "cadenza attend"
/// @param written_by  whether that command wrote the file at `path`; an Error says no
/// @throws Error(data), also where no file can be made there
void require_output(const std::string& path, const char* command, bool force,
                    const std::function<bool()>& written_by);

}  // namespace cadenza::app
