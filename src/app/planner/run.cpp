// SPDX-License-Identifier: Apache-2.0
#include <spdlog/spdlog.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <system_error>

#include "app/planner/commands.hpp"
#include "app/planner/failure.hpp"
#include "app/planner/options.hpp"
#include "app/planner/terminal.hpp"
#include "app/planner/version.hpp"
#include "cadenza/base/launcher.hpp"

namespace cadenza::app {

std::optional<CommandLine> begin_program(int argc, char** argv, const Program& program,
                                         int& exit_code) {
  // A file that outgrows its limit should be an error that names the file, not kill the process.
  std::signal(SIGXFSZ, SIG_IGN);
  end_on_uncaught();
  const auto line = parse_command_line(argc, argv, program, exit_code);
  if (!line) return std::nullopt;
  // Results that programs read have standard output to themselves.
  set_up_logging(line->detail, launcher_rank() == 0, line->format == "table" ? stdout : stderr);
  spdlog::debug("cadenza {} ({}): {}", kVersion, revision(), build_options());
  return line;
}

int in_one_process(const std::function<void()>& command) {
  if (launcher_rank() != 0) return 0;
  try {
    command();
    if (std::fflush(stdout) != 0) throw std::system_error(errno, std::generic_category());
  } catch (...) {
    const Failure failure = current_failure();
    print_error(failure.message);
    return static_cast<int>(failure.code);
  }
  return 0;
}

int run_planner(int argc, char** argv) {
  const Program program{
      "Cadenza's planner and simulator: which rank computes which attention, how long a training "
      "step takes,\nand which layout and placement to run. Training needs a build from source.\n\n"
      "  cadenza advise --model llama2-13b --machine h100 --devices 64   (what should I run?)\n"
      "  cadenza plan inputs/placements/cad.yaml --format json\n",
      "Paths that begin with inputs/ and are not here lead to files that come with the "
      "program.\nExit codes: 0 ok, 1 out of memory or internal error, 2 usage or configuration, 3 "
      "data or file.",
      {[](CLI::App& app, CommandLine& line) { add_plan(app, line); },
       [](CLI::App& app, CommandLine& line) { add_simulate(app, line); }, add_advise}};
  int exit_code = 0;
  const auto line = begin_program(argc, argv, program, exit_code);
  if (!line) return exit_code;
  if (line->command == Command::plan) return in_one_process([&] { print_plan(*line, nullptr); });
  if (line->command == Command::advise) return in_one_process([&] { advise(*line); });
  return in_one_process([&] { simulate(*line, nullptr); });
}

}  // namespace cadenza::app
