// SPDX-License-Identifier: Apache-2.0
// Checkpoints: written by all ranks, readable in any layout, with the settings that determine their
// numbers.
#include "cadenza/model/checkpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cadenza/base/at.hpp"
#include "cadenza/base/text.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "cadenza/storage/new_file.hpp"
#include "model/parameter_rows.hpp"
#include "model/settings.hpp"

namespace cadenza::model {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".h5";

}  // namespace

CheckpointWriter::CheckpointWriter(const std::string& path, std::int64_t step,
                                   const config::Experiment& experiment,
                                   const config::FileContents& contents)
    : output_(std::make_unique<storage::NewFile>(path, storage::Protection::checksums)) {
  storage::File& file = output_->file();
  file.write_attribute("schema", std::string(kCheckpointSchema));
  file.write_attribute("step", step);
  file.write_attribute("experiment", config::to_yaml(experiment));
  std::string lines;
  for (const auto& [key, text] : contents) lines += fmt::format("{}: {}\n", key, text);
  file.write_attribute("contents", lines);
}

CheckpointWriter::~CheckpointWriter() = default;

template <typename Sum>
void CheckpointWriter::write(const std::string& name, const std::vector<std::int64_t>& shape,
                             const Sum* values) {
  const auto count =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  const std::int64_t unsound =
      first_unsound(name, std::span(values, static_cast<std::size_t>(count)));
  if (unsound >= 0) {
    fail(ExitCode::numerics,
         "{}: not written: element {} of {} is {}; a lower optimizer.lr, more optimizer.warmup or "
         "optimizer.clip may help",
         output_->path(), unsound, name, values[unsound]);
  }
  output_->file().write(name, storage::Shape(shape.begin(), shape.end()), values);
}

void CheckpointWriter::finish() {
  output_->finish();
}

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:08}{}", kPrefix, step, kSuffix);
}

std::int64_t step_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return -1;
  const char* first = name.data() + kPrefix.size();
  const char* last = name.data() + name.size() - kSuffix.size();
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(first, last, step);
  return error == std::errc() && end == last ? step : -1;
}

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::error_code error;
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::int64_t step = step_of(entry->path().filename().string());
    if (step >= 0) found.emplace_back(step, entry->path().string());
  }
  if (error) fail(ExitCode::data, "{}: cannot be read: {}", folder, error.message());
  std::ranges::sort(found, std::greater());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

void remove_partial_checkpoints(const std::string& folder) {
  std::error_code error;                      // files that cannot be listed or removed do no harm
  if (fs::is_symlink(folder, error)) return;  // its target belongs to somebody else
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.ends_with(storage::kPartial)) continue;
    std::error_code ignored;
    if (step_of(name.substr(0, name.size() - storage::kPartial.size())) >= 0) {
      fs::remove(entry->path(), ignored);
    }
  }
}

template <typename Sum>
std::int64_t first_unsound(const std::string& dataset, std::span<const Sum> values) {
  const Sum least =
      dataset.starts_with(kSecondMomentPrefix) ? Sum{0} : std::numeric_limits<Sum>::lowest();
  const auto sound = [least](Sum value) {  // NaN compares as false
    return value >= least && value <= std::numeric_limits<Sum>::max();
  };
  const auto found = std::ranges::find_if_not(values, sound);
  return found == values.end() ? -1 : found - values.begin();
}

std::vector<std::int64_t> whole_shape(const ParameterInfo& info) {
  if (!info.is_matrix()) return {info.whole_rows};
  return {info.whole_rows, info.whole_columns};
}

template std::int64_t first_unsound(const std::string&, std::span<const float>);
template std::int64_t first_unsound(const std::string&, std::span<const double>);
template void CheckpointWriter::write(const std::string&, const std::vector<std::int64_t>&,
                                      const float*);
template void CheckpointWriter::write(const std::string&, const std::vector<std::int64_t>&,
                                      const double*);

namespace {

/// Of datasets: parameters, then moments.
constexpr std::array<const char*, 3> kPrefixes = {"", kFirstMomentPrefix, kSecondMomentPrefix};
constexpr std::int64_t kVerifiedAtOnce = 1 << 24;  // elements

/// Shortens a file's text for a message.
std::string shown(const std::string& text) {
  constexpr std::size_t kLongest = 64;
  return printable(text, kLongest);
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
  const std::vector<std::string> datasets = file_->datasets();
  has_moments_ = step_ > 0 || std::ranges::any_of(datasets, [](const std::string& name) {
                   return name.starts_with(kOptimizerPrefix);
                 });
  const std::int64_t named = step_of(std::filesystem::path(path).filename().string());
  if (named >= 0 && named != step_) {
    fail(ExitCode::data, "{}: found step {}; valid: {}, as in the file's name", path, step_, named);
  }
}

std::span<const char* const> CheckpointReader::prefixes() const {
  return std::span(kPrefixes).first(has_moments_ ? kPrefixes.size() : 1);
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
    for (const char* prefix : prefixes()) {
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
  return read_sound_rows<Sum>(*file_, path(), dataset, info, rows);
}

template <typename Sum>
std::vector<Sum> CheckpointReader::read_whole(const ParameterInfo& info) const {
  return read_rows<Sum>(info.name, info, {0, info.rows});
}

void CheckpointReader::verify(const config::Model& model) const {
  for (const ParameterInfo& info : make_parameter_table(model, whole_model(model)).entries) {
    const std::int64_t width = std::max<std::int64_t>(1, info.columns);
    const std::int64_t block = std::max<std::int64_t>(1, kVerifiedAtOnce / width);
    for (std::int64_t row = 0; row < info.rows; row += block) {
      const Range rows{row, std::min(info.rows, row + block)};
      for (const char* prefix : prefixes()) read_rows<double>(prefix + info.name, info, rows);
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
    // A share of the optimizer's state may begin and end inside a row: read whole rows.
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
  for (const ParameterInfo& info : table.entries) {
    const Range elements{info.offset, info.offset + info.count()};
    std::vector<Accumulator<Real>> values(static_cast<std::size_t>(info.count()));
    read_elements("", table, elements, values.data());
    set_weights(parameters, elements, values.data());
  }
  if (!has_moments_) {
    Kokkos::deep_copy(parameters.first_moment, 0);
    Kokkos::deep_copy(parameters.second_moment, 0);
    return;
  }
  auto first = Kokkos::create_mirror_view(parameters.first_moment);
  auto second = Kokkos::create_mirror_view(parameters.second_moment);
  std::int64_t moment = 0;
  for (const Range& owned : parameters.owned) {
    read_elements(kFirstMomentPrefix, table, owned, first.data() + moment);
    read_elements(kSecondMomentPrefix, table, owned, second.data() + moment);
    moment += owned.size();
  }
  Kokkos::deep_copy(parameters.first_moment, first);
  Kokkos::deep_copy(parameters.second_moment, second);
}

template std::vector<float> CheckpointReader::read_whole(const ParameterInfo&) const;
template std::vector<double> CheckpointReader::read_whole(const ParameterInfo&) const;
template void CheckpointReader::read(Parameters<float>&) const;
template void CheckpointReader::read(Parameters<double>&) const;
template void CheckpointReader::read(Parameters<bfloat16>&) const;

// Stores the estimates by which plans of sparse attention are weighed, so that a resumed run makes
// the same plans as an uninterrupted one.

namespace {

using Place = std::array<std::int64_t, 3>;  // which estimate, layer, digits
using Shares = SparseEstimate::Shares;

[[noreturn]] void refuse(const storage::File& file, const char* dataset, const std::string& found,
                         const std::string& valid) {
  fail(ExitCode::data, "{}: is damaged: {} has {}; valid: {}", file.path(), dataset, found, valid);
}

void require_places(const storage::File& file, std::span<const Place> places,
                    const config::Model& model) {
  for (std::size_t row = 0; row < places.size(); ++row) {
    const auto [which, layer, digits] = places[row];
    const bool known = which >= 0 && which <= 1 && layer >= 0 && layer < model.layers &&
                       digits >= 1 && digits <= SparsePlace::kDigits;
    if (known && (row == 0 || places[row - 1] < places[row])) continue;
    refuse(file, kEstimatePlaces, fmt::format("({}, {}, {}) in row {}", which, layer, digits, row),
           fmt::format("ascending rows of 0 or 1, a layer below {} and 1 to {} binary digits",
                       model.layers, SparsePlace::kDigits));
  }
}

void require_shares(const storage::File& file, std::span<const Shares> shares) {
  for (std::size_t row = 0; row < shares.size(); ++row) {
    for (const double share : shares[row]) {
      if (share >= 0 && share <= 1) continue;  // NaN compares as false
      refuse(file, kEstimateShares, fmt::format("{} in row {}", share, row), "shares from 0 to 1");
    }
  }
}

/// Returns rows of N numbers.
template <typename Row>
std::vector<Row> rows_of(const storage::File& file, const char* dataset, hsize_t rows) {
  const auto values = file.read<typename Row::value_type>(dataset, {rows, std::tuple_size_v<Row>});
  std::vector<Row> all(static_cast<std::size_t>(rows));
  for (std::size_t row = 0; row < all.size(); ++row) {
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(row * all[row].size()),
                all[row].size(), all[row].begin());
  }
  return all;
}

}  // namespace

void CheckpointWriter::write(const SparseEstimates& estimates) {
  std::vector<Place> places;
  std::vector<Shares> shares;
  for (const SparseEstimate* estimate : {&estimates.next, &estimates.after}) {
    for (const auto& [place, values] : estimate->shares()) {
      places.push_back({estimate == &estimates.next ? 0 : 1, place.layer, place.digits});
      shares.push_back(values);
    }
  }
  if (places.empty()) return;
  const auto rows = static_cast<hsize_t>(places.size());
  output_->file().write(kEstimatePlaces, {rows, places.front().size()}, places.front().data());
  output_->file().write(kEstimateShares, {rows, shares.front().size()}, shares.front().data());
}

SparseEstimates CheckpointReader::estimates(const config::Model& model) const {
  if (!file_->contains(kEstimatePlaces) && !file_->contains(kEstimateShares)) return {};
  const storage::Shape shape = file_->shape(kEstimatePlaces);
  const hsize_t rows = shape.empty() ? 0 : shape.front();
  const auto most = static_cast<hsize_t>(2 * model.layers * SparsePlace::kDigits);
  if (rows > most) {  // a small file may hold any number of equal rows
    refuse(*file_, kEstimatePlaces, fmt::format("{} rows", rows), fmt::format("at most {}", most));
  }
  const auto places = rows_of<Place>(*file_, kEstimatePlaces, rows);
  const auto shares = rows_of<Shares>(*file_, kEstimateShares, rows);
  require_places(*file_, places, model);
  require_shares(*file_, shares);
  std::array<std::map<SparsePlace, Shares>, 2> found;
  for (std::size_t row = 0; row < places.size(); ++row) {
    const auto [which, layer, digits] = places[row];
    found[at(which)].emplace(SparsePlace{static_cast<int>(layer), static_cast<int>(digits)},
                             shares[row]);
  }
  return {SparseEstimate(std::move(found[0])), SparseEstimate(std::move(found[1]))};
}

}  // namespace cadenza::model
