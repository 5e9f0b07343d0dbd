// SPDX-License-Identifier: Apache-2.0
// cadenza convert: a checkpoint to a folder of Hugging Face's transformers and back, one parameter
// at a time.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <filesystem>

#include "app/commands.hpp"
#include "app/convert/model_config.hpp"
#include "app/files.hpp"
#include "app/planner/terminal.hpp"
#include "app/runtime/machine.hpp"
#include "app/train/checkpoints.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/model/hugging_face.hpp"
#include "cadenza/storage/safetensors.hpp"

namespace cadenza::app {
namespace {

namespace fs = std::filesystem;
using config::Dtype;
using storage::ElementType;

model::ParameterTable whole_table(const config::Model& model) {
  return model::make_parameter_table(model, model::whole_model(model));
}

std::string describe_model(const config::Model& model, const model::ParameterTable& table) {
  return fmt::format("{} parameters in {}",
                     format_count(static_cast<double>(model::parameter_elements(model))),
                     counted(std::ssize(table.entries), "tensor"));
}

void require_nothing_at(const std::string& path) {
  std::error_code unseen;
  if (!fs::exists(fs::symlink_status(path, unseen))) return;
  fail(ExitCode::data, "{}: exists already; valid: --output with a new name", path);
}

// --- From a checkpoint ---

/// The newest checkpoint of a run's folder, or the file itself.
std::string checkpoint_at(const std::string& input) {
  std::error_code unseen;
  if (!fs::exists(input, unseen)) {
    fail(ExitCode::data,
         "{}: no such file or folder; valid: a checkpoint, a run's folder, or a folder of "
         "safetensors",
         input);
  }
  if (!fs::is_directory(input, unseen)) return input;
  for (const FoundCheckpoint& found : found_checkpoints(input)) {
    if (!found.of_earlier_run) return found.path;
  }
  fail(ExitCode::data,
       "{}: holds neither a checkpoint nor safetensors; valid: a checkpoint, a run's folder, or a "
       "folder of safetensors",
       input);
}

config::Experiment experiment_in(const model::CheckpointReader& checkpoint) {
  try {
    return config::parse_experiment(checkpoint.experiment(), checkpoint.path(), {});
  } catch (const Error& error) {
    fail(ExitCode::data, "{}: holds no experiment: {}", checkpoint.path(), error.what());
  }
}

ElementType element_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::float32:
      return ElementType::float32;
    case Dtype::float64:
      return ElementType::float64;
    case Dtype::bfloat16:
      break;
  }
  return ElementType::bfloat16;
}

/// Writes every parameter as a run in Real reads it: rounded to bfloat16 where that is its type.
template <typename Real>
void write_tensors(const model::CheckpointReader& checkpoint, const model::ParameterTable& table,
                   storage::SafetensorsWriter& output, Progress& progress) {
  std::int64_t done = 0;
  for (const model::ParameterInfo& info : table.entries) {
    const auto values = checkpoint.read_whole<Accumulator<Real>>(info);
    std::vector<Real> rounded(values.begin(), values.end());
    output.write(info.name, std::as_bytes(std::span(rounded)));
    progress.show(++done, info.name);
  }
  progress.finish();
}

void to_folder(const CommandLine& line) {
  const model::CheckpointReader checkpoint(checkpoint_at(line.input));
  const config::Experiment experiment = experiment_in(checkpoint);
  checkpoint.require(experiment.model);
  const ModelConfig config = model_config_of(experiment);
  const model::ParameterTable table = whole_table(experiment.model);
  std::vector<storage::TensorShape> tensors;
  for (const model::ParameterInfo& info : table.entries) {
    const std::vector<std::int64_t> shape = model::whole_shape(info);
    tensors.push_back({info.name, {shape.begin(), shape.end()}});
  }
  storage::SafetensorsWriter output(line.output, element_type(experiment.run.dtype), tensors);
  Progress progress(line.detail != Detail::quiet, std::ssize(tensors), "tensor");
  with_real(experiment.run.dtype,
            [&]<typename Real>(Real) { write_tensors<Real>(checkpoint, table, output, progress); });
  output.write_text(std::string(model::kModelConfig), config.json);
  output.finish();
  if (!config.warning.empty()) spdlog::warn("{}", config.warning);
  spdlog::info("converted {}, step {} -> {}: {}, {}, {}", checkpoint.path(), checkpoint.step(),
               line.output, config.type, describe_model(experiment.model, table),
               storage::word_of(output.type()));
}

// --- To a checkpoint ---

template <typename Sum>
void write_parameters(const model::HuggingFaceFolder& folder, const model::ParameterTable& table,
                      model::CheckpointWriter& output, Progress& progress) {
  std::int64_t done = 0;
  for (const model::ParameterInfo& info : table.entries) {
    output.write(info.name, model::whole_shape(info), folder.read_whole<Sum>(info).data());
    progress.show(++done, info.name);
  }
  progress.finish();
}

void to_checkpoint(const CommandLine& line) {
  require_nothing_at(line.output);
  if (model::step_of(fs::path(line.output).filename().string()) > 0) {
    fail(ExitCode::usage, "--output: found {}; valid: a name of step 0, such as {}", line.output,
         model::checkpoint_name(0));
  }
  const model::HuggingFaceFolder folder(line.input);
  config::Experiment experiment = folder.described();
  folder.require(experiment.model);
  experiment.run.dtype = folder.dtype();
  const model::ParameterTable table = whole_table(experiment.model);
  model::CheckpointWriter output(line.output, 0, experiment);
  Progress progress(line.detail != Detail::quiet, std::ssize(table.entries), "tensor");
  if (experiment.run.dtype == Dtype::float64) {
    write_parameters<double>(folder, table, output, progress);
  } else {
    write_parameters<float>(folder, table, output, progress);
  }
  output.finish();
  spdlog::info("converted {} -> {}: {}, step 0 without optimizer's state", line.input, line.output,
               describe_model(experiment.model, table));
}

}  // namespace

void convert(const CommandLine& given) {
  CommandLine line = given;
  line.output = plain_path(line.output);
  if (storage::SafetensorsFolder::is_at(line.input)) {
    to_checkpoint(line);
  } else {
    to_folder(line);
  }
}

}  // namespace cadenza::app
