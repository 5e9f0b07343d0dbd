// SPDX-License-Identifier: Apache-2.0
// Files that an experiment names, and files that a command writes at --output.
#pragma once

#include <functional>
#include <string>

#include "cadenza/config/experiment.hpp"
#include "cadenza/data/corpus.hpp"

namespace cadenza::app {

/// Describes the contents of the experiment's files: for the corpus or its lengths, the number of
/// documents and tokens and a hash of the lengths; for budgets of heads, a hash.
/// @param corpus  the experiment's
config::FileContents file_contents(const config::Experiment& experiment,
                                   const data::Corpus& corpus);

/// A path as it is usually written: "runs/a" for "runs/./a/".
std::string plain_path(const std::string& path);

// --- A file that a command writes at --output ---

/// Requires that the output may be written, before a command spends minutes: a typing error must
/// not cost a file. It may replace a file that an earlier call of the same command wrote or, with
/// --force, any regular file; never devices, pipes, folders and links.
/// @param command     "cadenza attend"
/// @param written_by  whether that command wrote the file at `path`; an Error counts as no
/// @throws Error(data), also if no file can be made there
void require_output(const std::string& path, const char* command, bool force,
                    const std::function<bool()>& written_by);

}  // namespace cadenza::app
