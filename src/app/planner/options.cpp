// SPDX-License-Identifier: Apache-2.0
#include "app/planner/options.hpp"

#include <fmt/ranges.h>

#include "cadenza/base/text.hpp"

namespace cadenza::app {
namespace {

/// Wraps a check so that it complains like the readers of experiments: what was found, what is
/// valid.
CLI::Validator in_our_words(const CLI::Validator& check, const std::string& valid) {
  return {[check, valid](const std::string& text) {
            return check(text).empty() ? std::string()
                                       : fmt::format("found {}; valid: {}", text, valid);
          },
          ""};
}

}  // namespace

CLI::Validator one_of(const std::vector<std::string>& words) {
  return in_our_words(CLI::IsMember(words), fmt::format("{}", fmt::join(words, ", ")));
}

CLI::Validator integer_from(std::int64_t low, std::int64_t high) {
  return in_our_words(CLI::Range(low, high), fmt::format("an integer in [{}, {}]", low, high));
}

CLI::Validator a_name() {
  return {[](const std::string& path) {
            if (path.empty()) return "found an empty name; valid: a name, or to leave it out";
            return printable(path) == path ? ""
                                           : "found control characters; valid: a name without them";
          },
          ""};
}

CLI::Option* add_output(CLI::App& app, CommandLine& line, const std::string& help) {
  return app.add_option("--output", line.output, help)->check(a_name());
}

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

CLI::App* add_plan(CLI::App& app, CommandLine& line) {
  CLI::App* plan = app.add_subcommand("plan",
                                      "Print a step's forward plans: which rank computes which "
                                      "attention, and what is sent (no MPI needed)");
  add_common(*plan, line);
  add_format(*plan, line,
             "table; json (docs/plan.md), of which cadenza-analyze plan draws a picture");
  plan->add_option("--step", line.step, "Step to plan, from 0")
      ->check(integer_from(0))
      ->capture_default_str();
  plan->callback([&line] { line.command = Command::plan; });
  return plan;
}

CLI::App* add_simulate(CLI::App& app, CommandLine& line) {
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
  add_format(*simulate, line, "table; json, all results for other programs (docs/simulation.md)");
  simulate->callback([&line] { line.command = Command::simulate; });
  return simulate;
}

void add_advise(CLI::App& app, CommandLine& line) {
  CLI::App* advise = app.add_subcommand(
      "advise",
      "What should I run? Searches the layout and placement for a model on a cluster, says what "
      "CAD gains on your lengths and how that changes, and what to type, in Cadenza, Megatron-LM "
      "and torchtitan (no MPI needed; about a minute; docs/what_to_run.md)");
  Question& asked = line.question;
  advise
      ->add_option("--model", asked.model,
                   "A model of inputs/models, such as llama3-70b, or the path of a Hugging Face "
                   "config.json")
      ->required()
      ->check(a_name());
  advise
      ->add_option("--machine", asked.machine,
                   "A machine of inputs/machines, such as h100, or the path of a machine file, of "
                   "data-sheet numbers or by cadenza calibrate (docs/machine.md)")
      ->required()
      ->check(a_name());
  advise->add_option("--devices", asked.devices, "Devices, such as GPUs")
      ->required()
      ->check(integer_from(1, 1 << 17));
  advise
      ->add_option("--tensor", asked.tensor,
                   "Devices of a tensor group, such as those of a node: fewer layouts to search "
                   "(default: all degrees)")
      ->check(integer_from(1, 1 << 17));
  advise
      ->add_option("--lengths", asked.lengths,
                   "Lengths of your documents: lengths of inputs/lengths, such as pretrain; a JSON "
                   "list of [length, count]; a text file with a length a line; or tokens "
                   "(.idx; or .bin, .npy with --set data.document_end=TOKEN)")
      ->check(a_name())
      ->capture_default_str();
  advise->add_option("--sequence", asked.sequence, "Tokens of a sequence; longer documents are cut")
      ->check(integer_from(2))
      ->capture_default_str();
  advise
      ->add_option("--tokens", asked.tokens,
                   "Tokens of a step over all devices (default: about 16384 a device)")
      ->check(integer_from(1));
  advise
      ->add_option("--software", asked.software,
                   "What trains: cadenza, megatron, torchtitan, another of inputs/software, or a "
                   "path (docs/software.md)")
      ->check(a_name())
      ->capture_default_str();
  add_set(*advise, line);
  add_format(*advise, line, "table; json, all results for other programs (docs/what_to_run.md)");
  add_output(*advise, line,
             "Folder for the page (advice.html), advice.json, the experiment and files for other "
             "stacks; default: none is written");
  advise->callback([&line] { line.command = Command::advise; });
}

}  // namespace cadenza::app
