// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/hugging_face.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "cadenza/config/load.hpp"
#include "model/parameter_rows.hpp"
#include "model/settings.hpp"

namespace cadenza::model {
namespace {

constexpr const char* kHead = "lm_head.weight";
constexpr std::string_view kFrequencies = ".self_attn.rotary_emb.inv_freq";
constexpr std::int64_t kComparedAtOnce = 1 << 22;  // elements

config::Experiment read_config(const std::string& folder) {
  try {
    return config::read_model_config((std::filesystem::path(folder) / kModelConfig).string());
  } catch (const Error& error) {
    throw Error(ExitCode::data, error.what());
  }
}

}  // namespace

HuggingFaceFolder::HuggingFaceFolder(const std::string& path)
    : tensors_(path), described_(read_config(path)) {}

config::Dtype HuggingFaceFolder::dtype() const {
  const std::vector<std::string> names = tensors_.names();
  const auto is = [&](storage::ElementType type) {
    return [this, type](const std::string& name) { return tensors_.type(name) == type; };
  };
  if (std::ranges::any_of(names, is(storage::ElementType::float64))) return config::Dtype::float64;
  return std::ranges::all_of(names, is(storage::ElementType::bfloat16)) ? config::Dtype::bfloat16
                                                                        : config::Dtype::float32;
}

void HuggingFaceFolder::require(const config::Model& model) const {
  config::Experiment asked;
  asked.model = model;
  const std::string file = (std::filesystem::path(path()) / kModelConfig).string();
  for (const Difference& d : compare(config::to_yaml(described_), file, asked)) {
    if (!is_of_model(d.key)) continue;
    throw OtherModel(
        fmt::format("{}: {}: the folder has {}, the experiment {}; valid: the model of the folder "
                    "(model.config: {})",
                    file, d.key, d.stored, d.asked, file));
  }
  const std::vector<std::string> names = tensors_.names();
  std::set<std::string> unknown(names.begin(), names.end());
  const ParameterTable table = make_parameter_table(model, whole_model(model));
  for (const ParameterInfo& info : table.entries) {
    if (unknown.erase(info.name) == 0) {
      fail(ExitCode::data, "{}: lacks the tensor {}; valid: all parameters of the model in {}",
           path(), info.name, kModelConfig);
    }
    const std::vector<std::int64_t> expected = whole_shape(info);
    const storage::Shape& found = tensors_.shape(info.name);
    if (found != storage::Shape(expected.begin(), expected.end())) {
      fail(ExitCode::data, "{}: {} has shape [{}]; valid: [{}], by {}", tensors_.file_of(info.name),
           info.name, fmt::join(found, ", "), fmt::join(expected, ", "), kModelConfig);
    }
  }
  if (model.tie_embeddings && unknown.erase(kHead) > 0) require_equal_head(table);
  std::erase_if(unknown, [](const std::string& name) { return name.ends_with(kFrequencies); });
  if (!unknown.empty()) {
    fail(ExitCode::data, "{}: holds {}, which the model of {} lacks; valid: its parameters alone",
         tensors_.file_of(*unknown.begin()), printable(*unknown.begin()), kModelConfig);
  }
}

/// A head that is tied in config.json is the embedding, whatever the file has: one that was trained
/// apart would be lost.
void HuggingFaceFolder::require_equal_head(const ParameterTable& table) const {
  const ParameterInfo& embedding = table.entries.front();
  const storage::Shape& shape = tensors_.shape(embedding.name);
  if (tensors_.shape(kHead) == shape) {
    const std::int64_t block = std::max<std::int64_t>(1, kComparedAtOnce / embedding.columns);
    bool equal = true;
    for (std::int64_t row = 0; row < embedding.rows && equal; row += block) {
      const storage::Shape begin{static_cast<hsize_t>(row), 0};
      const storage::Shape count{static_cast<hsize_t>(std::min(block, embedding.rows - row)),
                                 shape[1]};
      equal = tensors_.read_part<double>(kHead, begin, count) ==
              tensors_.read_part<double>(embedding.name, begin, count);
    }
    if (equal) return;
  }
  fail(ExitCode::data, "{}: {} differs from {}; valid: equal ones, as {} ties them",
       tensors_.file_of(kHead), kHead, embedding.name, kModelConfig);
}

std::vector<Difference> HuggingFaceFolder::differences(const config::Experiment& experiment) const {
  std::vector<Difference> found = compare(config::to_yaml(described_), path(), experiment);
  std::erase_if(found, [](const Difference& d) {
    return is_of_model(d.key) || !(d.key.starts_with("model.") || d.key.starts_with("attention."));
  });
  return found;
}

template <typename Real>
void HuggingFaceFolder::read(Parameters<Real>& parameters) const {
  for (const ParameterInfo& info : parameters.table.entries) {
    const auto values = read_sound_rows<Accumulator<Real>>(tensors_, tensors_.file_of(info.name),
                                                           info.name, info, {0, info.rows});
    set_weights(parameters, {info.offset, info.offset + info.count()}, values.data());
  }
  Kokkos::deep_copy(parameters.first_moment, 0);
  Kokkos::deep_copy(parameters.second_moment, 0);
}

template <typename Sum>
std::vector<Sum> HuggingFaceFolder::read_whole(const ParameterInfo& info) const {
  return read_sound_rows<Sum>(tensors_, tensors_.file_of(info.name), info.name, info,
                              {0, info.rows});
}

void HuggingFaceFolder::verify(const config::Model& model) const {
  for (const ParameterInfo& info : make_parameter_table(model, whole_model(model)).entries) {
    read_whole<double>(info);
  }
}

template void HuggingFaceFolder::read(Parameters<float>&) const;
template void HuggingFaceFolder::read(Parameters<double>&) const;
template void HuggingFaceFolder::read(Parameters<bfloat16>&) const;
template std::vector<float> HuggingFaceFolder::read_whole(const ParameterInfo&) const;
template std::vector<double> HuggingFaceFolder::read_whole(const ParameterInfo&) const;

}  // namespace cadenza::model
