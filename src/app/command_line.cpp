// SPDX-License-Identifier: Apache-2.0
#include "app/command_line.hpp"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <sstream>

#include "app/runtime/failure.hpp"
#include "app/runtime/version.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/comm/communicator.hpp"

namespace cadenza::app {
namespace {

constexpr const char* kDescription =
    "Cadenza trains a Llama-style transformer on long documents over MPI, balances core attention "
    "across\nranks, and records what every rank did.\n\n  mpirun -n 2 "
    "cadenza train inputs/quickstart.yaml --output runs/first\n  cadenza train "
    "inputs/quickstart.yaml --dry-run\n  cadenza plan inputs/quickstart.yaml --format json\n  "
    "cadenza simulate inputs/quickstart.yaml --set parallel.data=64 --set batch.tokens=524288\n  "
    "cadenza simulate inputs/clusters/what_to_run.yaml --steps 1   (which layout and placement?)\n "
    " cadenza sweep inputs/paper/fig12.yaml --output runs/fig12\n  mpirun -n 2 cadenza attend "
    "experiment.yaml --input qkv.h5 --output out.h5\n";
constexpr const char* kFooter =
    "Exit codes: 0 ok, 1 out of memory or internal error, 2 usage or configuration, 3 data "
    "or file,\n4 non-finite loss or attention, or a calibration that is too noisy, 5 "
    "communication,\n"
    "85 stopped by SIGUSR1 after its step (continue with train --from), 143 by SIGTERM, 130 by "
    "Ctrl-C.\nKeys of an experiment: docs/experiment.md. Files of a run: docs/trace.md.";

/// Wraps a check so that it complains like the readers of experiments: what was found, what is
/// valid.
CLI::Validator in_our_words(const CLI::Validator& check, const std::string& valid) {
  return {[check, valid](const std::string& text) {
            return check(text).empty() ? std::string()
                                       : fmt::format("found {}; valid: {}", text, valid);
          },
          ""};
}

CLI::Validator one_of(const std::vector<std::string>& words) {
  return in_our_words(CLI::IsMember(words), fmt::format("{}", fmt::join(words, ", ")));
}

CLI::Validator integer_from(std::int64_t low, std::int64_t high = std::int64_t{1} << 40) {
  return in_our_words(CLI::Range(low, high), fmt::format("an integer in [{}, {}]", low, high));
}

/// Checks the name of a file or folder. An empty one comes from a script's unset variable and must
/// not count as an omitted option; one with line breaks could not be printed or found later.
CLI::Validator a_name() {
  return {[](const std::string& path) {
            if (path.empty()) return "found an empty name; valid: a name, or to leave it out";
            return printable(path) == path ? ""
                                           : "found control characters; valid: a name without them";
          },
          ""};
}

/// Adds the option for the output of a command.
CLI::Option* add_output(CLI::App& app, CommandLine& line, const std::string& help) {
  return app.add_option("--output", line.output, help)->check(a_name());
}

/// Adds the option for an output file, with --force against replacing others by mistake.
void add_output_file(CLI::App& app, CommandLine& line, const std::string& help) {
  add_output(app, line, help)->required();
  app.add_flag("--force", line.force,
               "Let --output replace a file that this command did not write");
}

void add_format(CLI::App& app, CommandLine& line, const std::string& help) {
  app.add_option("--format", line.format, help)
      ->check(one_of({"table", "json"}))
      ->capture_default_str();
}

void add_set(CLI::App& app, CommandLine& line) {
  app.add_option("--set", line.overrides,
                 "Set a key of the experiment, e.g. --set parallel.data=4 (may be repeated)")
      ->type_name("KEY.PATH=VALUE")
      ->allow_extra_args(false);
}

void add_common(CLI::App& app, CommandLine& line) {
  app.add_option("experiment", line.experiment, "Experiment (YAML)")->required();
  add_set(app, line);
}

void add_train(CLI::App& app, CommandLine& line) {
  CLI::App* train = app.add_subcommand(
      "train", "Train, under mpirun or srun with as many ranks as the experiment asks for");
  add_common(*train, line);
  add_output(
      *train, line,
      "Folder for the run (default: runs/<name>); only one run at a time may use it. An earlier "
      "run there is renamed to <folder>.1, .2, ...");
  train
      ->add_option(
          "--from", line.from,
          "Continue from a checkpoint (run.checkpoint.every writes them): a file, or a "
          "run's folder (its newest sound one; then those of <folder>.N, the runs that had "
          "the folder before), or a folder of runs attempt-0, attempt-1, ... Training "
          "continues with the next batch as if never interrupted; the layout may differ")
      ->check(a_name());
  train->add_flag("--dry-run", line.dry_run,
                  "Check the experiment and print layout, memory estimate and plan; train nothing, "
                  "write nothing");
  train->callback([&line] { line.command = Command::train; });
}

void add_evaluate(CLI::App& app, CommandLine& line) {
  CLI::App* evaluate = app.add_subcommand(
      "evaluate",
      "Measure the loss of a checkpoint on an experiment's data, by place and length, and its "
      "answers, by length and depth; no updates. Under mpirun or srun, like train, with any "
      "layout");
  add_common(*evaluate, line);
  evaluate
      ->add_option("--from", line.from,
                   "Checkpoint: a file, or a run's folder, as for train (run.checkpoint.every "
                   "writes them)")
      ->check(a_name())
      ->required();
  add_output(*evaluate, line,
             "Folder for evaluation.json, metrics and traces (default: runs/<name>-evaluated)");
  add_format(*evaluate, line, "table; json, all results for other programs (docs/evaluate.md)");
  evaluate->callback([&line] { line.command = Command::evaluate; });
}

void add_attend(CLI::App& app, CommandLine& line) {
  CLI::App* attend = app.add_subcommand(
      "attend",
      "Run core attention alone, with the experiment's placement, on Q, K, V from an HDF5 file");
  add_common(*attend, line);
  attend
      ->add_option("--input", line.input,
                   "HDF5: q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim], "
                   "document_lengths [n], optional dout like q")
      ->check(a_name())
      ->required();
  attend
      ->add_option("--index", line.index,
                   "sparse kinds: the output of an earlier call, whose index to take "
                   "instead of choosing one (docs/attend.md)")
      ->check(a_name());
  add_output_file(*attend, line,
                  "HDF5: out, lse [tokens, heads], with dout dq, dk, dv, with sparse kinds the "
                  "index; written only if all numbers are finite (exit code 4 otherwise)");
  attend->callback([&line] { line.command = Command::attend; });
}

void add_plan(CLI::App& app, CommandLine& line) {
  CLI::App* plan = app.add_subcommand("plan",
                                      "Print a step's forward plans: which rank computes which "
                                      "attention, and what is sent (no MPI needed)");
  add_common(*plan, line);
  add_format(*plan, line,
             "table; json (docs/plan.md), of which cadenza-analyze plan draws a picture");
  plan->add_option("--index", line.index,
                   "format json, sparse kinds: the output of attend for the documents of the step, "
                   "whose index to add (docs/attend.md)")
      ->check(a_name());
  plan->add_option("--step", line.step, "Step to plan, from 0")
      ->check(integer_from(0))
      ->capture_default_str();
  plan->callback([&line] { line.command = Command::plan; });
}

void add_sweep(CLI::App& app, CommandLine& line) {
  CLI::App* sweep =
      app.add_subcommand("sweep",
                         "Simulate every point of a grid of experiments, on all cores, and write "
                         "one table; run it again to resume an interrupted sweep");
  sweep->add_option("sweep", line.experiment, "Sweep (YAML)")->required();
  add_set(*sweep, line);
  sweep->add_option("--steps", line.steps, "Steps to simulate at every point (default: the file's)")
      ->check(integer_from(1, 1'000'000));
  add_output(*sweep, line,
             "Folder of sweep.csv and sweep.h5 (default: runs/<name>). Points of the same sweep "
             "already in this folder are kept");
  sweep->callback([&line] { line.command = Command::sweep; });
}

void add_simulate(CLI::App& app, CommandLine& line) {
  CLI::App* simulate =
      app.add_subcommand("simulate",
                         "Predict how long the steps of an experiment take on the machine of "
                         "cluster.machine (no MPI needed). With attention.placement: auto it first "
                         "searches for the layout and placement to run (docs/what_to_run.md)");
  add_common(*simulate, line);
  simulate->add_option("--steps", line.steps, "Steps to simulate (default: run.steps)")
      ->check(integer_from(1));
  simulate->add_option("--step", line.step, "First step to simulate, from 0")
      ->check(integer_from(0))
      ->capture_default_str();
  simulate
      ->add_option("--trace", line.trace,
                   "none: write nothing; summary: metrics and traces without events; full: all "
                   "events of all ranks (default: summary with --output, else none)")
      ->check(one_of({"none", "summary", "full"}));
  add_output(*simulate, line, "Folder for metrics and traces (default: runs/<name>-simulated)");
  add_format(*simulate, line, "table; json, all results for other programs (docs/simulation.md)");
  simulate->callback([&line] { line.command = Command::simulate; });
}

void add_calibrate(CLI::App& app, CommandLine& line) {
  CLI::App* calibrate = app.add_subcommand(
      "calibrate",
      "Measure this machine with an experiment's model and dtype, and write a machine file for "
      "cluster.machine; with two or more ranks under mpirun, measure messages too");
  add_common(*calibrate, line);
  add_output_file(*calibrate, line, "Machine file (YAML)");
  calibrate->callback([&line] { line.command = Command::calibrate; });
}

void add_detail(CLI::App& app, CommandLine& line) {
  CLI::Option* quiet = app.add_flag_callback(
      "--quiet", [&line] { line.detail = Detail::quiet; },
      "Print only results, warnings and errors");
  app.add_flag_callback(
         "--verbose", [&line] { line.detail = Detail::verbose; },
         "Also print the program's build, the experiment with all defaults, and single "
         "measurements")
      ->excludes(quiet);
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

/// Suggests ": did you mean --output?"; empty if no word is near.
std::string meant(std::string_view dashes, std::string_view word,
                  const std::vector<std::string>& known) {
  const std::string best = nearest(word, known);
  return best.empty() ? "" : fmt::format(": did you mean {}{}?", dashes, best);
}

/// Describes a word that the parser does not know; empty if it knows all.
std::string unknown_word(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  const CLI::App& command = parsed.empty() ? app : *parsed.front();
  for (const std::string& word : command.remaining()) {
    if (word.starts_with("--")) {
      const std::string name = word.substr(0, word.find('='));
      return fmt::format("unknown option '{}'{}", name,
                         meant("--", std::string_view(name).substr(2), options_of(command)));
    }
    if (!parsed.empty()) continue;
    const std::vector<std::string> known = commands_of(app);
    const std::string hint = meant("", word, known);
    return fmt::format("unknown command '{}'{} valid: {}", word, hint.empty() ? ";" : hint,
                       fmt::join(known, ", "));
  }
  return {};
}

}  // namespace

std::optional<CommandLine> parse_command_line(int argc, char** argv, int& exit_code) {
  CommandLine line;
  CLI::App app(kDescription, "cadenza");
  app.footer(kFooter);
  app.set_version_flag("--version", fmt::format("cadenza {} ({})", kVersion, revision()));
  app.require_subcommand(1);
  add_train(app, line);
  add_evaluate(app, line);
  add_attend(app, line);
  add_sweep(app, line);
  add_plan(app, line);
  add_simulate(app, line);
  add_calibrate(app, line);
  for (CLI::App* command : app.get_subcommands({})) add_detail(*command, line);
  const bool speaks = comm::launcher_rank() == 0;
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    std::ostringstream text;
    exit_code = speaks ? app.exit(help, text, text) : 0;
    print(text.str());
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    // A launcher ends all ranks at the first failure, so the rank that prints must fail first.
    exit_code = speaks ? static_cast<int>(ExitCode::usage) : 0;
    const std::string unknown = unknown_word(app);
    if (speaks) {
      print_error(fmt::format("{} (see cadenza --help)", unknown.empty() ? error.what() : unknown));
    }
    return std::nullopt;
  }
  return line;
}

}  // namespace cadenza::app
