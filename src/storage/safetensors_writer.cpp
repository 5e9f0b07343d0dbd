// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "cadenza/base/error.hpp"
#include "cadenza/storage/new_file.hpp"
#include "cadenza/storage/safetensors.hpp"

namespace cadenza::storage {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

std::int64_t stored_bytes(const TensorShape& tensor, ElementType type) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), bytes_of(type),
                         [](std::int64_t product, hsize_t extent) {
                           return product * static_cast<std::int64_t>(extent);
                         });
}

/// Removes the partial folder that a killed writer left, and nothing that somebody else made.
void remove_leftover(const std::string& partial) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(partial, error))) return;
  const Lock unused(partial);
  bool own = fs::is_directory(fs::symlink_status(partial, error));
  for (fs::directory_iterator entry(partial, error), end; own && !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    own = name.starts_with("model") || name.starts_with("config.json");
  }
  if (own && !error) fs::remove_all(partial, error);
  if (own && !error) return;
  fail(ExitCode::data,
       "{}: exists already, and is no leftover of a conversion; valid: another name, "
       "or remove that first",
       partial);
}

[[noreturn]] void fail_to_write_tensors(const std::string& path) {
  fail(ExitCode::data, "{}: cannot be written: {}", path, std::strerror(errno));
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string folder, ElementType type,
                                     const std::vector<TensorShape>& tensors,
                                     std::int64_t shard_bytes)
    : folder_(std::move(folder)), partial_(folder_ + std::string(kPartial)), type_(type) {
  std::error_code unseen;
  if (fs::exists(fs::symlink_status(folder_, unseen))) {
    fail(ExitCode::data, "{}: exists already; valid: a new folder, or remove that first", folder_);
  }
  remove_leftover(partial_);
  for (const TensorShape& tensor : tensors) {
    const std::int64_t bytes = stored_bytes(tensor, type);
    if (shards_.empty() || shards_.back().bytes + bytes > shard_bytes) shards_.emplace_back();
    shards_.back().tensors.push_back(tensor);
    shards_.back().bytes += bytes;
  }
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    shards_[shard].name = shards_.size() == 1 ? std::string(kWholeTensors)
                                              : fmt::format("model-{:05}-of-{:05}.safetensors",
                                                            shard + 1, shards_.size());
  }
  std::error_code error;
  fs::create_directories(partial_, error);
  if (error) fail(ExitCode::data, "{}: cannot be made: {}", partial_, error.message());
  lock_.emplace(partial_);
  begin_shard();
}

SafetensorsWriter::~SafetensorsWriter() {
  if (finished_) return;
  file_.close();
  std::error_code ignored;  // an earlier failure is being reported
  fs::remove_all(partial_, ignored);
}

/// Pads with spaces, so that the elements begin at a multiple of 8 bytes.
std::string SafetensorsWriter::header_of(const Shard& shard) const {
  OrderedJson header;
  header["__metadata__"] = {{"format", "pt"}};  // transformers ask for it
  std::int64_t begin = 0;
  for (const TensorShape& tensor : shard.tensors) {
    const std::int64_t end = begin + stored_bytes(tensor, type_);
    header[tensor.name] = {
        {"dtype", word_of(type_)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}

std::string SafetensorsWriter::index() const {
  OrderedJson index, map;
  std::int64_t bytes = 0;
  for (const Shard& shard : shards_) {
    bytes += shard.bytes;
    for (const TensorShape& tensor : shard.tensors) map[tensor.name] = shard.name;
  }
  index["metadata"] = {{"total_size", bytes}};
  index["weight_map"] = map;
  return index.dump(2) + "\n";
}

void SafetensorsWriter::begin_shard() {
  const std::string path = partial_file(shards_[shard_].name);
  errno = 0;
  file_.open(path, std::ios::binary);
  file_ << header_of(shards_[shard_]);
  if (!file_) fail_to_write_tensors(path);
}

void SafetensorsWriter::end_shard() {
  const std::string path = partial_file(shards_[shard_].name);
  file_.close();
  if (!file_) fail_to_write_tensors(path);
  sync_to_disk(path);
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> elements) {
  if (tensor_ == shards_[shard_].tensors.size()) {
    end_shard();
    ++shard_;
    tensor_ = 0;
    begin_shard();
  }
  const TensorShape& tensor = shards_[shard_].tensors[tensor_++];
  if (tensor.name != name || stored_bytes(tensor, type_) != std::ssize(elements)) {
    fail(ExitCode::internal, "{}: {} with {} bytes where {} is due", partial_, name,
         elements.size(), tensor.name);
  }
  errno = 0;
  file_.write(reinterpret_cast<const char*>(elements.data()), std::ssize(elements));
  if (!file_) fail_to_write_tensors(partial_file(shards_[shard_].name));
}

void SafetensorsWriter::write_text(const std::string& name, std::string_view text) {
  write_whole(partial_file(name), text);
}

void SafetensorsWriter::finish() {
  end_shard();
  if (shards_.size() > 1) write_text(std::string(kTensorIndex), index());
  sync_to_disk(partial_);
  std::error_code error;
  fs::rename(partial_, folder_, error);
  if (error) fail(ExitCode::data, "{}: cannot be written: {}", folder_, error.message());
  finished_ = true;
  sync_to_disk(fs::absolute(folder_).parent_path().string());
}

}  // namespace cadenza::storage
