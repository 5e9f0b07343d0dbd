// SPDX-License-Identifier: Apache-2.0
// A file that a command makes where --output says.
#pragma once

#include <functional>
#include <string>

namespace cadenza::app {

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
