// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "cadenza/base/error.hpp"
#include "cadenza/model/checkpoint.hpp"
#include "cadenza/storage/hdf5.hpp"

namespace cadenza::model {
namespace {

/// Rows [rows) of this rank's block, as a part of the whole dataset.
template <typename Sum>
std::vector<Sum> read_rows(const storage::File& file, const std::string& dataset,
                           const ParameterInfo& info, Range rows) {
  storage::Shape begin{static_cast<hsize_t>(info.row_begin + rows.begin)};
  storage::Shape count{static_cast<hsize_t>(rows.size())};
  if (info.is_matrix()) {
    begin.push_back(static_cast<hsize_t>(info.column_begin));
    count.push_back(static_cast<hsize_t>(info.columns));
  }
  return file.read_part<Sum>(dataset, begin, count);
}

}  // namespace

CheckpointReader::CheckpointReader(const std::string& path)
    : file_(std::make_unique<storage::File>(storage::File::open(path))) {
  const std::string schema = file_->read_text_attribute("schema");
  if (schema != kCheckpointSchema) {
    fail(ExitCode::data, "{}: is no checkpoint: found schema '{}', valid: {}", path, schema,
         kCheckpointSchema);
  }
  step_ = file_->read_attribute("step");
  if (step_ < 0) fail(ExitCode::data, "{}: found step {}, valid: at least 0", path, step_);
}

CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

const std::string& CheckpointReader::path() const {
  return file_->path();
}

void CheckpointReader::require(const config::Model& model) const {
  const std::vector<std::string> found = file_->datasets();
  std::set<std::string> unknown(found.begin(), found.end());
  for (const ParameterInfo& info : make_parameter_table(model, whole_model(model)).entries) {
    for (const char* prefix : {"", kFirstMomentPrefix, kSecondMomentPrefix}) {
      const std::string dataset = prefix + info.name;
      if (unknown.erase(dataset) == 0) {
        fail(ExitCode::data,
             "{}: lacks {}; valid: a checkpoint of the experiment's model with AdamW's moments",
             file_->path(), dataset);
      }
      require_shape(dataset, info);
    }
  }
  if (!unknown.empty()) {
    fail(ExitCode::data, "{}: holds {}, which the experiment's model lacks", file_->path(),
         *unknown.begin());
  }
}

void CheckpointReader::require_shape(const std::string& dataset, const ParameterInfo& info) const {
  const storage::Shape found = file_->shape(dataset);
  const std::vector<std::int64_t> expected = whole_shape(info);
  if (std::ranges::equal(found, expected, [](hsize_t a, std::int64_t b) {
        return static_cast<std::int64_t>(a) == b;
      })) {
    return;
  }
  fail(ExitCode::data, "{}: {} has shape [{}], the experiment's model has [{}]", file_->path(),
       dataset, fmt::join(found, ", "), fmt::join(expected, ", "));
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
    const std::vector<Sum> read = read_rows<Sum>(*file_, prefix + info.name, info, rows);
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
