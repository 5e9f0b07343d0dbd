// SPDX-License-Identifier: Apache-2.0
// Folders of tensors as Hugging Face's transformers save them: `model.safetensors`, or shards that
// `model.safetensors.index.json` lists. A file (github.com/huggingface/safetensors) is the length
// of a header in 8 bytes, the header, a JSON object {name: {dtype, shape, data_offsets}}, and the
// elements of all tensors, little-endian, in row-major order, one tensor after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cadenza/storage/hdf5.hpp"
#include "cadenza/storage/new_file.hpp"

namespace cadenza::storage {

/// Type of a tensor's elements.
enum class ElementType { float64, float32, float16, bfloat16 };

std::int64_t bytes_of(ElementType type);
std::string_view word_of(ElementType type);  ///< as in headers: "F64", "F32", "F16", "BF16"

inline constexpr std::string_view kWholeTensors = "model.safetensors";
inline constexpr std::string_view kTensorIndex = "model.safetensors.index.json";

/// Files are not trusted: a header is bounded, and the tensors that it lists must be all that the
/// file holds.
class SafetensorsFolder {
 public:
  /// Whether `path` is a folder with one of the two names above.
  static bool is_at(const std::string& path);

  /// Reads the headers. @throws Error(data), as all members do
  explicit SafetensorsFolder(const std::string& path);

  const std::string& path() const { return path_; }
  std::vector<std::string> names() const;  ///< of all tensors, sorted
  bool contains(const std::string& name) const { return tensors_.contains(name); }
  const Shape& shape(const std::string& name) const { return find(name).shape; }
  ElementType type(const std::string& name) const { return find(name).type; }
  const std::string& file_of(const std::string& name) const { return find(name).file; }
  /// Reads elements [begin, begin + count) along the one or two axes of a tensor, in row-major
  /// order, and converts them to T, float or double.
  template <typename T>
  std::vector<T> read_part(const std::string& name, const Shape& begin, const Shape& count) const;

 private:
  struct Tensor {
    std::string file;  ///< path
    ElementType type = ElementType::float32;
    Shape shape;
    std::int64_t begin = 0;  ///< of its bytes in the file
    std::int64_t end = 0;
  };
  const Tensor& find(const std::string& name) const;
  static Tensor read_entry(const std::string& file, const std::string& name,
                           const nlohmann::json& entry, std::int64_t data);
  void add_file(const std::string& file);
  void add_indexed_files();

  std::string path_;
  std::map<std::string, Tensor> tensors_;
};

struct TensorShape {
  std::string name;
  Shape shape;
};

/// Writes such a folder completely or not at all: until finish() it is called <folder>.partial;
/// without finish() that is removed, by the next writer if the process is killed.
class SafetensorsWriter {
 public:
  /// Tensors of one file, as many as transformers write; a larger tensor has one of its own.
  static constexpr std::int64_t kShardBytes = 5'000'000'000;

  /// @param tensors  all of them, in the order in which they will be written
  /// @throws Error(data), as all members do; also if something is called `folder` already, or
  /// another process is writing it
  SafetensorsWriter(std::string folder, ElementType type, const std::vector<TensorShape>& tensors,
                    std::int64_t shard_bytes = kShardBytes);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  ElementType type() const { return type_; }
  /// Writes the elements of the next tensor, which is `name`, in the type of the folder.
  void write(const std::string& name, std::span<const std::byte> elements);
  /// Writes another file of the folder.
  void write_text(const std::string& name, std::string_view text);
  void finish();

 private:
  struct Shard {
    std::string name;
    std::vector<TensorShape> tensors;
    std::int64_t bytes = 0;
  };
  std::string partial_file(const std::string& name) const { return partial_ + "/" + name; }
  std::string header_of(const Shard& shard) const;
  std::string index() const;
  void begin_shard();
  void end_shard();

  std::string folder_;
  std::string partial_;
  ElementType type_;
  std::vector<Shard> shards_;
  std::size_t shard_ = 0;   ///< the one that is being written
  std::size_t tensor_ = 0;  ///< the next one of it
  std::ofstream file_;
  std::optional<Lock> lock_;  ///< of the partial folder
  bool finished_ = false;
};

}  // namespace cadenza::storage
