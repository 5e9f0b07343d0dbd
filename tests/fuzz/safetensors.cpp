// SPDX-License-Identifier: Apache-2.0
// A folder of Hugging Face's tensors: the input is its one file, or, where it begins with a brace,
// the index of two sound ones.
#include "cadenza/storage/safetensors.hpp"

#include <filesystem>
#include <fstream>

#include "readers.hpp"

namespace cadenza::fuzz {
namespace {

namespace fs = std::filesystem;

void write_bytes(const fs::path& path, Bytes bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
}

/// One tensor of two numbers.
void write_shard(const fs::path& path, const std::string& name) {
  const std::string header =
      "{\"" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += header + std::string(8, '\0');
  write_bytes(path, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

class Folder {
 public:
  Folder() : path_(scratch_folder() / "tensors") { fs::create_directories(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

void read_safetensors(Bytes input) {
  const Folder folder;
  if (!input.empty() && input.front() == '{') {
    write_shard(folder.path() / "1.safetensors", "a");
    write_shard(folder.path() / "2.safetensors", "b");
    write_bytes(folder.path() / storage::kTensorIndex, input);
  } else {
    write_bytes(folder.path() / storage::kWholeTensors, input);
  }
  const storage::SafetensorsFolder read(folder.path().string());
  std::size_t bytes = 0;
  for (const std::string& name : read.names()) {
    const storage::Shape& shape = read.shape(name);
    if (shape.empty() || shape.size() > 2) continue;
    const auto values = read.read_part<double>(name, storage::Shape(shape.size(), 0), shape);
    const std::size_t count = shape[0] * (shape.size() > 1 ? shape[1] : 1);
    require(values.size() == count, "{} numbers of {}", values.size(), count);
    bytes += count * static_cast<std::size_t>(storage::bytes_of(read.type(name)));
  }
  require(bytes <= input.size() + 16, "{} bytes of tensors in an input of {}", bytes, input.size());
}

}  // namespace cadenza::fuzz
