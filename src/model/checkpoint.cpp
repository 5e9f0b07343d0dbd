// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "cadenza/base/error.hpp"
#include "cadenza/storage/hdf5.hpp"

namespace cadenza::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".h5";

/// Waits until a file's bytes, or a folder's entries, have left the system's memory: what has its
/// final name then survives a crash of the node too.
void sync_to_disk(const fs::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // Some file systems refuse to sync a folder (EINVAL): they order its entries themselves.
  const bool done = descriptor >= 0 && (fsync(descriptor) == 0 || errno == EINVAL);
  const int reason = errno;
  if (descriptor >= 0) close(descriptor);
  if (!done) {
    fail(ExitCode::data, "{}: cannot be written: {}", path.string(), std::strerror(reason));
  }
}

/// The number in "step-00000010.h5"; -1 in other names.
std::int64_t step_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return -1;
  const char* first = name.data() + kPrefix.size();
  const char* last = name.data() + name.size() - kSuffix.size();
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(first, last, step);
  return error == std::errc() && end == last ? step : -1;
}

}  // namespace

CheckpointWriter::CheckpointWriter(const std::string& path, std::int64_t step)
    : path_(path), partial_(path + ".partial") {
  file_ = std::make_unique<storage::File>(storage::File::create(partial_));
  file_->write_attribute("schema", std::string(kCheckpointSchema));
  file_->write_attribute("step", step);
}

CheckpointWriter::~CheckpointWriter() {
  if (!file_) return;
  file_.reset();
  std::error_code ignored;  // the failure that led here counts
  fs::remove(partial_, ignored);
}

template <typename Sum>
void CheckpointWriter::write(const std::string& name, const std::vector<std::int64_t>& shape,
                             const Sum* values) {
  file_->write(name, storage::Shape(shape.begin(), shape.end()), values);
}

void CheckpointWriter::finish() {
  file_->close();
  sync_to_disk(partial_);
  std::error_code error;
  fs::rename(partial_, path_, error);
  if (error) fail(ExitCode::data, "{}: cannot be written: {}", path_, error.message());
  file_.reset();
  sync_to_disk(fs::absolute(path_).parent_path());
}

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:08}{}", kPrefix, step, kSuffix);
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

std::vector<std::int64_t> whole_shape(const ParameterInfo& info) {
  if (!info.is_matrix()) return {info.whole_rows};
  return {info.whole_rows, info.whole_columns};
}

template void CheckpointWriter::write(const std::string&, const std::vector<std::int64_t>&,
                                      const float*);
template void CheckpointWriter::write(const std::string&, const std::vector<std::int64_t>&,
                                      const double*);

}  // namespace cadenza::model
