// SPDX-License-Identifier: Apache-2.0
#include "cadenza/storage/safetensors.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "cadenza/base/error.hpp"
#include "cadenza/base/text.hpp"

namespace cadenza::storage {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kMostHeaderBytes = 16 << 20;     // some 10^5 tensors
constexpr std::int64_t kMostElements = 1LL << 48;       // of a tensor: more than any file holds
constexpr std::int64_t kReadAtOnce = 16 << 20;          // bytes
constexpr std::string_view kMetadata = "__metadata__";  // of a header: texts for people

struct TypeWord {
  std::string_view word;
  ElementType type;
  std::int64_t bytes;
};

constexpr std::array<TypeWord, 4> kTypes = {{{"F64", ElementType::float64, 8},
                                             {"F32", ElementType::float32, 4},
                                             {"F16", ElementType::float16, 2},
                                             {"BF16", ElementType::bfloat16, 2}}};

[[noreturn]] void refuse_file(const std::string& path, const std::string& found,
                              const std::string& valid) {
  fail(ExitCode::data, "{}: {}; valid: {}", path, found, valid);
}

/// A text of a file, shortened for a message.
std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 64;
  return printable(text, kLongest);
}

/// Parses an object of objects of lists, which no name appears in twice.
Json parse_object(const std::string& path, std::string_view text, const char* what) {
  constexpr int kDeepest = 2;
  std::vector<std::set<std::string>> names(kDeepest + 1);
  const auto bound = [&](int depth, Json::parse_event_t event, Json& parsed) {
    const bool begins =
        event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (begins && depth > kDeepest) {
      refuse_file(path, fmt::format("{} is nested more than {} deep", what, kDeepest + 1),
                  "a file that safetensors wrote");
    }
    if (event == Json::parse_event_t::object_start) {
      names[static_cast<std::size_t>(depth)].clear();
    } else if (event == Json::parse_event_t::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!names[static_cast<std::size_t>(depth - 1)].insert(name).second) {
        refuse_file(path, fmt::format("{} has {} twice", what, shown(name)), "each name once");
      }
    }
    return true;
  };
  Json parsed;
  try {
    parsed = Json::parse(text, bound);
  } catch (const Json::exception&) {
    refuse_file(path, fmt::format("{} is broken JSON", what), "a file that safetensors wrote");
  }
  if (!parsed.is_object()) {
    refuse_file(path, fmt::format("{} is no JSON object", what), "a file that safetensors wrote");
  }
  return parsed;
}

std::ifstream open_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ExitCode::data, "{}: cannot be read: {}", path, std::strerror(errno));
  return file;
}

void read_bytes(std::ifstream& file, const std::string& path, std::int64_t offset,
                std::span<char> bytes) {
  file.seekg(offset);
  file.read(bytes.data(), std::ssize(bytes));
  if (!file || file.gcount() != std::ssize(bytes)) {
    refuse_file(path, fmt::format("ends before byte {}", offset + std::ssize(bytes)),
                "a whole file");
  }
}

/// A list of integers from 0 on; nothing where it is something else.
std::optional<std::vector<std::int64_t>> integers(const Json& entry, const char* key) {
  const auto list = entry.find(key);
  if (list == entry.end() || !list->is_array()) return std::nullopt;
  std::vector<std::int64_t> values;
  for (const Json& value : *list) {
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostElements)) {
      return std::nullopt;
    }
    values.push_back(value.get<std::int64_t>());
  }
  return values;
}

/// The number of elements of a shape; -1: more than any file holds.
std::int64_t count_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent > 0 && count > kMostElements / extent) return -1;
    count *= extent;
  }
  return count;
}

/// The header of a file and the number of its bytes, whose place the elements follow.
struct Header {
  Json tensors;
  std::int64_t end = 0;   ///< of the header in the file
  std::int64_t size = 0;  ///< of the file
};

Header read_header(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    refuse_file(path, error ? fmt::format("cannot be read: {}", error.message()) : "is no file",
                "a file that safetensors wrote");
  }
  Header header;
  header.size = static_cast<std::int64_t>(fs::file_size(path, error));
  std::ifstream file = open_file(path);
  std::uint64_t length = 0;
  if (header.size >= kLengthBytes) {
    read_bytes(file, path, 0, std::span(reinterpret_cast<char*>(&length), sizeof length));
  }
  const auto most =
      static_cast<std::uint64_t>(std::min(kMostHeaderBytes, header.size - kLengthBytes));
  if (header.size < kLengthBytes || length < 2 || length > most) {
    refuse_file(
        path, fmt::format("begins with a header of {} bytes in a file of {}", length, header.size),
        fmt::format("a file that safetensors wrote, with at most {} bytes of header",
                    kMostHeaderBytes));
  }
  std::string text(length, '\0');
  read_bytes(file, path, kLengthBytes, text);
  header.tensors = parse_object(path, text, "the header");
  header.end = kLengthBytes + static_cast<std::int64_t>(length);
  return header;
}

float from_float16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  float magnitude = 0;
  if (exponent == 0x1f) {
    magnitude = mantissa == 0 ? HUGE_VALF : std::nanf("");
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 0x400), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

template <typename Stored, typename T, typename Convert>
void convert_elements(std::span<const char> bytes, T* out, Convert convert) {
  for (std::size_t at = 0; at + sizeof(Stored) <= bytes.size(); at += sizeof(Stored)) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + at, sizeof stored);
    *out++ = static_cast<T>(convert(stored));
  }
}

template <typename T>
void convert_elements(ElementType type, std::span<const char> bytes, T* out) {
  const auto same = [](auto value) { return value; };
  switch (type) {
    case ElementType::float64:
      return convert_elements<double>(bytes, out, same);
    case ElementType::float32:
      return convert_elements<float>(bytes, out, same);
    case ElementType::float16:
      return convert_elements<std::uint16_t>(bytes, out, from_float16);
    case ElementType::bfloat16:
      return convert_elements<std::uint16_t>(bytes, out, from_bfloat16);
  }
}

}  // namespace

std::int64_t bytes_of(ElementType type) {
  return std::ranges::find(kTypes, type, &TypeWord::type)->bytes;
}

std::string_view word_of(ElementType type) {
  return std::ranges::find(kTypes, type, &TypeWord::type)->word;
}

bool SafetensorsFolder::is_at(const std::string& path) {
  std::error_code unseen;
  return fs::exists(fs::path(path) / kWholeTensors, unseen) ||
         fs::exists(fs::path(path) / kTensorIndex, unseen);
}

SafetensorsFolder::SafetensorsFolder(const std::string& path) : path_(path) {
  std::error_code unseen;
  const fs::path whole = fs::path(path) / kWholeTensors, index = fs::path(path) / kTensorIndex;
  const bool has_whole = fs::exists(whole, unseen), has_index = fs::exists(index, unseen);
  if (has_whole == has_index) {
    refuse_file(path,
                has_whole ? fmt::format("holds both {} and {}", kWholeTensors, kTensorIndex)
                          : "holds no tensors",
                fmt::format("a folder with either {} or {}", kWholeTensors, kTensorIndex));
  }
  if (has_whole) {
    add_file(whole.string());
  } else {
    add_indexed_files();
  }
}

std::vector<std::string> SafetensorsFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

const SafetensorsFolder::Tensor& SafetensorsFolder::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail(ExitCode::data, "{}: lacks the tensor {}", path_, name);
  return found->second;
}

/// Adds the tensors of one file, which must be all that it holds: one that was cut short, or has
/// something else in it, fails.
void SafetensorsFolder::add_file(const std::string& file) {
  const Header header = read_header(file);
  std::map<std::int64_t, std::string> begins;  // of bytes
  for (const auto& [name, entry] : header.tensors.items()) {
    if (name == kMetadata) continue;
    const Tensor tensor = read_entry(file, name, entry, header.end);
    if (!tensors_.emplace(name, tensor).second) {
      refuse_file(file, fmt::format("{} is in another file of the folder too", shown(name)),
                  "one place for each tensor");
    }
    if (tensor.end > tensor.begin && !begins.emplace(tensor.begin, name).second) {
      refuse_file(file, fmt::format("two tensors begin at byte {}", tensor.begin - header.end),
                  "a place for each");
    }
  }
  std::int64_t next = header.end;
  for (const auto& [begin, name] : begins) {
    if (begin != next) {
      refuse_file(file, fmt::format("{} begins at byte {}", shown(name), begin - header.end),
                  fmt::format("{}, where the tensor before ends", next - header.end));
    }
    next = tensors_.at(name).end;
  }
  if (next != header.size) {
    refuse_file(file, fmt::format("has {} bytes", header.size),
                fmt::format("the {} bytes that its header lists", next));
  }
}

/// @param data  byte of the file at which elements begin
SafetensorsFolder::Tensor SafetensorsFolder::read_entry(const std::string& file,
                                                        const std::string& name, const Json& entry,
                                                        std::int64_t data) {
  const auto shape = integers(entry, "shape");
  const auto offsets = integers(entry, "data_offsets");
  const auto type = entry.find("dtype");
  if (!shape || !offsets || offsets->size() != 2 || type == entry.end() || !type->is_string()) {
    refuse_file(file, fmt::format("the entry of {} is malformed", shown(name)),
                "dtype, shape and two data_offsets");
  }
  const auto word = type->get<std::string>();
  const auto known = std::ranges::find(kTypes, word, &TypeWord::word);
  if (known == kTypes.end()) {
    refuse_file(file, fmt::format("{} has elements of {}", shown(name), shown(word)),
                "F64, F32, F16 or BF16");
  }
  const std::int64_t begin = offsets->front(), end = offsets->back();
  const std::int64_t count = count_of(*shape);
  if (count < 0 || count > kMostElements / known->bytes || end - begin != count * known->bytes) {
    refuse_file(file,
                fmt::format("{} [{}] of {} has bytes {} to {}", shown(name),
                            fmt::join(*shape, ", "), known->word, begin, end),
                "as many bytes as its elements take");
  }
  return {file, known->type, Shape(shape->begin(), shape->end()), data + begin, data + end};
}

/// Adds the files that the index names, and requires that they have the tensors that it lists.
void SafetensorsFolder::add_indexed_files() {
  const std::string path = (fs::path(path_) / kTensorIndex).string();
  const std::string text =
      read_text(path, {ExitCode::data, path, "an index of safetensors", kMostHeaderBytes});
  const Json index = parse_object(path, text, "the index");
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    refuse_file(path, "lacks weight_map", "an object that names the file of every tensor");
  }
  std::set<std::string> files;
  for (const auto& [name, file] : map->items()) {
    const std::string plain = file.is_string() ? file.get<std::string>() : "";
    if (plain.empty() || plain == "." || plain == ".." ||
        plain.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      refuse_file(path,
                  fmt::format("the file of {} is {}", shown(name), shown(file.dump(-1, ' ', true))),
                  "the name of a file in the folder");
    }
    files.insert(plain);
  }
  for (const std::string& file : files) add_file((fs::path(path_) / file).string());
  for (const auto& [name, file] : map->items()) {
    const std::string listed = (fs::path(path_) / file.get<std::string>()).string();
    const auto tensor = tensors_.find(name);
    if (tensor == tensors_.end() || tensor->second.file != listed) {
      refuse_file(listed, fmt::format("lacks {}", shown(name)),
                  fmt::format("the tensors that {} lists", kTensorIndex));
    }
  }
  for (const auto& [name, tensor] : tensors_) {
    if (!map->contains(name)) {
      refuse_file(tensor.file, fmt::format("holds {}", shown(name)),
                  fmt::format("the tensors that {} lists", kTensorIndex));
    }
  }
}

template <typename T>
std::vector<T> SafetensorsFolder::read_part(const std::string& name, const Shape& begin,
                                            const Shape& count) const {
  const Tensor& tensor = find(name);
  if (tensor.shape.empty() || tensor.shape.size() > 2) {
    fail(ExitCode::data, "{}: {} has {} axes; valid: one or two", tensor.file, name,
         tensor.shape.size());
  }
  const bool matrix = tensor.shape.size() == 2;
  const auto width = static_cast<std::int64_t>(matrix ? tensor.shape[1] : 1);
  const auto rows = static_cast<std::int64_t>(count[0]);
  const auto first_row = static_cast<std::int64_t>(begin[0]);
  const auto columns = static_cast<std::int64_t>(matrix ? count[1] : 1);
  const auto first_column = static_cast<std::int64_t>(matrix ? begin[1] : 0);
  const std::int64_t bytes = bytes_of(tensor.type);
  std::vector<T> values(static_cast<std::size_t>(rows * columns));
  if (values.empty()) return values;
  std::ifstream file = open_file(tensor.file);
  const std::int64_t rows_at_once = std::max<std::int64_t>(1, kReadAtOnce / (width * bytes));
  std::vector<char> read;
  for (std::int64_t row = 0; row < rows; row += rows_at_once) {
    const std::int64_t some = std::min(rows_at_once, rows - row);
    read.resize(static_cast<std::size_t>(some * width * bytes));
    read_bytes(file, tensor.file, tensor.begin + (first_row + row) * width * bytes, read);
    for (std::int64_t i = 0; i < some; ++i) {
      const std::span<const char> part(read.data() + (i * width + first_column) * bytes,
                                       static_cast<std::size_t>(columns * bytes));
      convert_elements(tensor.type, part, values.data() + (row + i) * columns);
    }
  }
  return values;
}

template std::vector<float> SafetensorsFolder::read_part(const std::string&, const Shape&,
                                                         const Shape&) const;
template std::vector<double> SafetensorsFolder::read_part(const std::string&, const Shape&,
                                                          const Shape&) const;

}  // namespace cadenza::storage
