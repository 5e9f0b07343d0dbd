// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/checkpoint.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "cadenza/base/error.hpp"
#include "cadenza/storage/hdf5.hpp"

namespace cadenza::model {

CheckpointWriter::CheckpointWriter(const std::string& path, std::int64_t step)
    : path_(path), partial_(path + ".partial") {
  file_ = std::make_unique<storage::File>(storage::File::create(partial_));
  file_->write_attribute("schema", std::string("cadenza-checkpoint/1"));
  file_->write_attribute("step", step);
}

CheckpointWriter::~CheckpointWriter() {
  if (!file_) return;
  file_.reset();
  std::error_code ignored;  // the failure that led here counts
  std::filesystem::remove(partial_, ignored);
}

template <typename Sum>
void CheckpointWriter::write(const std::string& name, const std::vector<std::int64_t>& shape,
                             const Sum* values) {
  file_->write(name, storage::Shape(shape.begin(), shape.end()), values);
}

void CheckpointWriter::finish() {
  file_->close();
  std::error_code error;
  std::filesystem::rename(partial_, path_, error);
  if (error) fail(ExitCode::data, "{}: cannot be written: {}", path_, error.message());
  file_.reset();
}

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("step-{:08}.h5", step);
}

template void CheckpointWriter::write(const std::string&, const std::vector<std::int64_t>&,
                                      const float*);
template void CheckpointWriter::write(const std::string&, const std::vector<std::int64_t>&,
                                      const double*);

}  // namespace cadenza::model
