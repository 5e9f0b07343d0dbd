// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "cadenza/base/text.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "model/checkpoint_settings.hpp"

namespace cadenza::model {
namespace {

constexpr std::array<const char*, 3> kPrefixes = {"", kFirstMomentPrefix, kSecondMomentPrefix};
constexpr std::int64_t kVerifiedAtOnce = 1 << 24;  // elements

/// What a file says, for a message.
std::string shown(const std::string& text) {
  constexpr std::size_t longest = 64;
  return printable(text.substr(0, longest)) + (text.size() > longest ? "..." : "");
}

}  // namespace

CheckpointReader::CheckpointReader(const std::string& path)
    : file_(std::make_unique<storage::File>(storage::File::open(path))) {
  const std::string schema = file_->read_text_attribute("schema");
  if (schema != kCheckpointSchema) {
    fail(ExitCode::data, "{}: is not a checkpoint: found schema '{}'; valid: {}", path,
         shown(schema), kCheckpointSchema);
  }
  experiment_ = file_->read_text_attribute("experiment");
  contents_ = file_->read_text_attribute("contents");
  step_ = file_->read_attribute("step");
  if (step_ < 0) fail(ExitCode::data, "{}: found step {}; valid: at least 0", path, step_);
  const std::int64_t named = step_of(std::filesystem::path(path).filename().string());
  if (named >= 0 && named != step_) {
    fail(ExitCode::data, "{}: found step {}; valid: {}, as in the file's name", path, step_, named);
  }
}

CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

const std::string& CheckpointReader::path() const {
  return file_->path();
}

std::vector<Difference> CheckpointReader::differences(const config::Experiment& experiment,
                                                      const config::FileContents& contents) const {
  std::vector<Difference> found = compare(experiment_, path(), experiment);
  std::erase_if(found, [](const Difference& d) { return is_of_model(d.key); });
  const std::vector<Difference> changed = compare(contents_, contents, found);
  found.insert(found.end(), changed.begin(), changed.end());
  return found;
}

void CheckpointReader::require(const config::Model& model) const {
  require_settings(model);
  const std::vector<std::string> found = file_->datasets();
  std::set<std::string> unknown(found.begin(), found.end());
  for (const ParameterInfo& info : make_parameter_table(model, whole_model(model)).entries) {
    for (const char* prefix : kPrefixes) {
      const std::string dataset = prefix + info.name;
      if (unknown.erase(dataset) == 0) {
        refuse_parameters(fmt::format(
            "lacks {}; valid: a checkpoint of the experiment's model with AdamW's moments",
            dataset));
      }
      require_shape(dataset, info);
      file_->require_checksums(dataset);
    }
  }
  for (const char* dataset : {kEstimatePlaces, kEstimateShares}) {
    if (unknown.erase(dataset) > 0) file_->require_checksums(dataset);
  }
  if (!unknown.empty()) {
    refuse_parameters(
        fmt::format("holds {}, which the experiment's model lacks", shown(*unknown.begin())));
  }
}

void CheckpointReader::refuse_parameters(const std::string& found) const {
  fail(ExitCode::data, "{}: is damaged: {}", path(), found);
}

void CheckpointReader::require_settings(const config::Model& model) const {
  if (experiment_.empty()) {
    fail(ExitCode::data, "{}: is damaged: lacks the attribute experiment", path());
  }
  config::Experiment asked;
  asked.model = model;
  for (const Difference& d : compare(experiment_, path(), asked)) {
    if (!is_of_model(d.key)) continue;
    const auto value = [](const std::string& text) {
      return text.empty() ? "no such key" : shown(text);
    };
    throw OtherModel(
        fmt::format("{}: {}: the checkpoint has {}, the experiment {}; valid: the model that the "
                    "checkpoint was written with",
                    file_->path(), shown(d.key), value(d.stored), value(d.asked)));
  }
}

void CheckpointReader::require_shape(const std::string& dataset, const ParameterInfo& info) const {
  const storage::Shape found = file_->shape(dataset);
  const std::vector<std::int64_t> expected = whole_shape(info);
  if (found == storage::Shape(expected.begin(), expected.end())) return;
  refuse_parameters(fmt::format("{} has shape [{}], the experiment's model has [{}]", dataset,
                                fmt::join(found, ", "), fmt::join(expected, ", ")));
}

template <typename Sum>
std::vector<Sum> CheckpointReader::read_rows(const std::string& dataset, const ParameterInfo& info,
                                             Range rows) const {
  storage::Shape begin{static_cast<hsize_t>(info.row_begin + rows.begin)};
  storage::Shape count{static_cast<hsize_t>(rows.size())};
  if (info.is_matrix()) {
    begin.push_back(static_cast<hsize_t>(info.column_begin));
    count.push_back(static_cast<hsize_t>(info.columns));
  }
  std::vector<Sum> values = file_->read_part<Sum>(dataset, begin, count);
  const std::int64_t at = first_unsound(dataset, std::span<const Sum>(values));
  if (at >= 0) {
    const std::int64_t width = info.is_matrix() ? info.columns : 1;
    fail(ExitCode::data, "{}: is damaged: {} has {} in row {}; valid: {}", file_->path(), dataset,
         values[static_cast<std::size_t>(at)], info.row_begin + rows.begin + at / width,
         dataset.starts_with(kSecondMomentPrefix) ? "finite numbers of at least 0"
                                                  : "finite numbers");
  }
  return values;
}

void CheckpointReader::verify(const config::Model& model) const {
  for (const ParameterInfo& info : make_parameter_table(model, whole_model(model)).entries) {
    const std::int64_t width = std::max<std::int64_t>(1, info.columns);
    const std::int64_t block = std::max<std::int64_t>(1, kVerifiedAtOnce / width);
    for (std::int64_t row = 0; row < info.rows; row += block) {
      const Range rows{row, std::min(info.rows, row + block)};
      for (const char* prefix : kPrefixes) read_rows<double>(prefix + info.name, info, rows);
    }
  }
  estimates(model);
}

template <typename Sum>
void CheckpointReader::read_elements(const std::string& prefix, const ParameterTable& table,
                                     Range elements, Sum* values) const {
  for (const ParameterInfo& info : table.entries) {
    const Range wanted = intersect(elements, {info.offset, info.offset + info.count()});
    if (wanted.empty()) continue;
    // A share of the optimizer's state may begin and end within a row: whole rows are read.
    const std::int64_t width = info.is_matrix() ? info.columns : 1;
    const Range rows{(wanted.begin - info.offset) / width,
                     (wanted.end - info.offset + width - 1) / width};
    const std::vector<Sum> read = read_rows<Sum>(prefix + info.name, info, rows);
    const std::int64_t skipped = wanted.begin - info.offset - rows.begin * width;
    std::copy_n(read.data() + skipped, wanted.size(), values + wanted.begin - elements.begin);
  }
}

template <typename Real>
void CheckpointReader::read(Parameters<Real>& parameters) const {
  const ParameterTable& table = parameters.table;
  auto values = Kokkos::create_mirror_view(parameters.values);
  auto first = Kokkos::create_mirror_view(parameters.first_moment);
  auto second = Kokkos::create_mirror_view(parameters.second_moment);
  read_elements("", table, {0, table.elements}, values.data());
  std::int64_t moment = 0;
  for (const Range& owned : parameters.owned) {
    read_elements(kFirstMomentPrefix, table, owned, first.data() + moment);
    read_elements(kSecondMomentPrefix, table, owned, second.data() + moment);
    moment += owned.size();
  }
  Kokkos::deep_copy(parameters.values, values);
  Kokkos::deep_copy(parameters.first_moment, first);
  Kokkos::deep_copy(parameters.second_moment, second);
  round_working(parameters, {0, table.elements});
}

template void CheckpointReader::read(Parameters<float>&) const;
template void CheckpointReader::read(Parameters<double>&) const;
template void CheckpointReader::read(Parameters<bfloat16>&) const;

}  // namespace cadenza::model
