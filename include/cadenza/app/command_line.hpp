// SPDX-License-Identifier: Apache-2.0
// The command line: subcommands, options, help that teaches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cadenza::app {

enum class Command { train, attend, plan };

struct CommandLine {
  Command command = Command::train;
  std::string experiment;              ///< path of the YAML
  std::vector<std::string> overrides;  ///< --set key.path=value
  std::string output;                  ///< train: folder; attend: file
  bool dry_run = false;                ///< train
  std::string input;                   ///< attend
  std::string format = "table";        ///< plan
  std::int64_t step = 0;               ///< plan
};

/// Parses; prints help or the complaint itself and sets `exit_code` when there is nothing to run.
std::optional<CommandLine> parse_command_line(int argc, char** argv, int& exit_code);

}  // namespace cadenza::app
