// SPDX-License-Identifier: Apache-2.0
// Entries of data.path → files.
#pragma once

#include <string>
#include <vector>

namespace cadenza::data {

/// The files that `entries` name, entry by entry. An entry is
/// - a file: itself;
/// - a folder: every regular file below it;
/// - a pattern of * ? [..] and ** (any number of folders): every file that matches, and the files
///   of every folder that matches.
/// The files of a folder or pattern are in byte order of their paths, each once. Below a folder and
/// behind a wildcard, hidden names (.x) and __pycache__ are left out; a wildcard that begins with a
/// dot sees hidden names. Links to folders are followed where a wildcard other than ** matches
/// them, unless they lead back to a folder on the way to them.
/// @throws Error(data) naming the entry that does not exist, matches nothing or cannot be read.
std::vector<std::string> find_files(const std::vector<std::string>& entries);

/// The entries as they go into a message: 'a', 'b'.
std::string quoted(const std::vector<std::string>& entries);

}  // namespace cadenza::data
