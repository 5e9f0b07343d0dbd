// SPDX-License-Identifier: Apache-2.0
#include "app/commands.hpp"

#include "app/planner/options.hpp"

namespace cadenza::app {
namespace {

constexpr const char* kDescription =
    "Cadenza trains a Llama-style transformer on long documents over MPI, balances core attention "
    "across\nranks, and records what every rank did.\n\n  mpirun -n 2 "
    "cadenza train inputs/quickstart.yaml --output runs/first\n  cadenza train "
    "inputs/quickstart.yaml --dry-run\n  cadenza plan inputs/quickstart.yaml --format json\n  "
    "cadenza simulate inputs/quickstart.yaml --set parallel.data=64 --set batch.tokens=524288\n  "
    "cadenza advise --model llama2-13b --machine h100 --devices 64   (what should I run?)\n  "
    "cadenza sweep inputs/paper/fig12.yaml --output runs/fig12\n  mpirun -n 2 cadenza attend "
    "experiment.yaml --input qkv.h5 --output out.h5\n  cadenza convert runs/first --output "
    "my-model   (for transformers: config.json and safetensors)\n";
constexpr const char* kFooter =
    "Exit codes: 0 ok, 1 out of memory or internal error, 2 usage or configuration, 3 data "
    "or file,\n4 non-finite loss or attention, or a calibration that is too noisy, 5 "
    "communication,\n"
    "85 stopped by SIGUSR1 after its step (continue with train --from), 143 by SIGTERM, 130 by "
    "Ctrl-C.\nKeys of an experiment: docs/experiment.md. Files of a run: docs/trace.md.";

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
          "continues with the next batch as if never interrupted; the layout may differ. Or begin "
          "with the parameters of a folder of Hugging Face's transformers (config.json, "
          "safetensors), at step 0 with a new optimizer")
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
                   "writes them); or a folder of Hugging Face's transformers")
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

void add_calibrate(CLI::App& app, CommandLine& line) {
  CLI::App* calibrate = app.add_subcommand(
      "calibrate",
      "Measure this machine with an experiment's model and dtype, and write a machine file for "
      "cluster.machine; with two or more ranks under mpirun, measure messages too");
  add_common(*calibrate, line);
  add_output_file(*calibrate, line, "Machine file (YAML)");
  calibrate->callback([&line] { line.command = Command::calibrate; });
}

void add_convert(CLI::App& app, CommandLine& line) {
  CLI::App* convert = app.add_subcommand(
      "convert",
      "Convert a checkpoint to a folder of Hugging Face's transformers (config.json, safetensors), "
      "or such a folder to a checkpoint of step 0 (train --from reads the folder itself, too)");
  convert
      ->add_option("input", line.input,
                   "A checkpoint; a run's folder (its newest checkpoint); or a folder with "
                   "config.json and model.safetensors or model.safetensors.index.json")
      ->check(a_name())
      ->required();
  add_output(*convert, line, "The new folder, or the new checkpoint")->required();
  convert->callback([&line] { line.command = Command::convert; });
}

void add_plan_with_index(CLI::App& app, CommandLine& line) {
  add_plan(app, line)
      ->add_option("--index", line.index,
                   "format json, sparse kinds: the output of attend for the documents of the step, "
                   "whose index to add (docs/attend.md)")
      ->check(a_name());
}

void add_simulate_with_files(CLI::App& app, CommandLine& line) {
  CLI::App* simulate = add_simulate(app, line);
  simulate
      ->add_option("--trace", line.trace,
                   "none: write nothing; summary: metrics and traces without events; full: all "
                   "events of all ranks (default: summary with --output, else none)")
      ->check(one_of({"none", "summary", "full"}));
  add_output(*simulate, line, "Folder for metrics and traces (default: runs/<name>-simulated)");
}

}  // namespace

Program whole_program() {
  return {kDescription,
          kFooter,
          {add_train, add_evaluate, add_attend, add_sweep, add_plan_with_index,
           add_simulate_with_files, add_advise, add_calibrate, add_convert}};
}

}  // namespace cadenza::app
