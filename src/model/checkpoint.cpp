// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>

#include "cadenza/config/load.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "cadenza/storage/new_file.hpp"

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
  const std::int64_t at = first_unsound(name, std::span(values, static_cast<std::size_t>(count)));
  if (at >= 0) {
    fail(ExitCode::numerics,
         "{}: not written: element {} of {} is {}; a lower optimizer.lr, more optimizer.warmup or "
         "optimizer.clip may help",
         output_->path(), at, name, values[at]);
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
  std::error_code error;                      // what cannot be listed or removed is in nobody's way
  if (fs::is_symlink(folder, error)) return;  // leads to what is somebody else's
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

}  // namespace cadenza::model
