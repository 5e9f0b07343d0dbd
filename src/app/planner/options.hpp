// SPDX-License-Identifier: Apache-2.0
// Options that several commands have, what their values may be, and the options of the
// commands that need no HDF5.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "app/planner/command_line.hpp"

namespace cadenza::app {

// Checks, which complain as the readers of experiments do.
CLI::Validator one_of(const std::vector<std::string>& words);
CLI::Validator integer_from(std::int64_t low, std::int64_t high = std::int64_t{1} << 40);
/// Checks the name of a file or folder. An empty one comes from a script's unset variable and must
/// not count as an omitted option; one with line breaks could not be printed or found later.
CLI::Validator a_name();

/// Adds the option for the output of a command.
CLI::Option* add_output(CLI::App& app, CommandLine& line, const std::string& help);
/// Adds the option for an output file, with --force against replacing others by mistake.
void add_output_file(CLI::App& app, CommandLine& line, const std::string& help);
void add_format(CLI::App& app, CommandLine& line, const std::string& help);
void add_set(CLI::App& app, CommandLine& line);
/// Adds the experiment and --set.
void add_common(CLI::App& app, CommandLine& line);

CLI::App* add_plan(CLI::App& app, CommandLine& line);
CLI::App* add_simulate(CLI::App& app, CommandLine& line);
void add_advise(CLI::App& app, CommandLine& line);

}  // namespace cadenza::app
