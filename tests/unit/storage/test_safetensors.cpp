// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>

#include "cadenza/base/error.hpp"
#include "cadenza/storage/safetensors.hpp"
#include "unit/error_of.hpp"
#include "unit/storage/child.hpp"

namespace cadenza::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// What opening the folder says.
std::string error_of(const std::string& folder) {
  return test::error_of([&] { const SafetensorsFolder opened(folder); });
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A file of safetensors, by the format's description.
std::string file_of(const std::string& header, std::size_t data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + std::string(data, '\0');
}

std::string entry(const std::string& name, const std::string& type, const std::string& shape,
                  int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

TEST(Safetensors, ReadsPartsOfWhatWasWrittenInShards) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "model";
  const std::vector<TensorShape> tensors = {{"a", {3, 4}}, {"b", {5}}, {"c", {2, 2}}, {"d", {7}}};
  std::map<std::string, std::vector<float>> values;
  {
    SafetensorsWriter writer(path, ElementType::float32, tensors, 70);  // bytes: a and b, c and d
    float next = 0;
    for (const TensorShape& tensor : tensors) {
      const hsize_t count = tensor.shape[0] * (tensor.shape.size() > 1 ? tensor.shape[1] : 1);
      values[tensor.name].resize(count);
      std::iota(values[tensor.name].begin(), values[tensor.name].end(), next);
      next += static_cast<float>(count);
      writer.write(tensor.name, std::as_bytes(std::span(values[tensor.name])));
    }
    writer.write_text("config.json", "{}");
    EXPECT_FALSE(fs::exists(path));
    writer.finish();
  }
  EXPECT_FALSE(fs::exists(path + ".partial"));
  EXPECT_TRUE(fs::exists(path + "/model-00001-of-00002.safetensors"));
  EXPECT_TRUE(fs::exists(path + "/model-00002-of-00002.safetensors"));
  EXPECT_TRUE(SafetensorsFolder::is_at(path));
  const SafetensorsFolder read(path);
  EXPECT_THAT(read.names(), ::testing::ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(read.shape("a"), (Shape{3, 4}));
  EXPECT_EQ(read.type("a"), ElementType::float32);
  EXPECT_EQ(read.read_part<float>("a", {0, 0}, {3, 4}), values["a"]);
  EXPECT_EQ(read.read_part<double>("a", {1, 1}, {2, 2}), (std::vector<double>{5, 6, 9, 10}));
  EXPECT_EQ(read.read_part<float>("d", {2}, {3}),
            (std::vector<float>(values["d"].begin() + 2, values["d"].begin() + 5)));
  EXPECT_TRUE(read.read_part<float>("d", {2}, {0}).empty());
}

TEST(Safetensors, ConvertsEveryType) {
  const test::TemporaryFolder folder;
  const std::string path = folder.string();
  // 1, -2, the smallest of all, the largest, infinity of float16; 1, -2, 3.140625 of bfloat16.
  const std::vector<std::uint16_t> halves = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00};
  const std::vector<std::uint16_t> brains = {0x3f80, 0xc000, 0x4049};
  const std::vector<double> doubles = {1e-300, -0.1};
  std::string data(26 + 6, '\0');
  std::memcpy(data.data(), doubles.data(), 16);
  std::memcpy(data.data() + 16, halves.data(), 10);
  std::memcpy(data.data() + 26, brains.data(), 6);
  const std::string header = "{" + entry("d", "F64", "[2]", 0, 16) + "," +
                             entry("h", "F16", "[5]", 16, 26) + "," +
                             entry("b", "BF16", "[3]", 26, 32) + "}";
  write_file(path + "/model.safetensors", file_of(header, 0) + data);
  const SafetensorsFolder read(path);
  EXPECT_EQ(read.read_part<double>("d", {0}, {2}), doubles);
  EXPECT_EQ(read.read_part<float>("h", {0}, {5}),
            (std::vector<float>{1, -2, std::ldexp(1.0F, -24), 65504,
                                std::numeric_limits<float>::infinity()}));
  EXPECT_EQ(read.read_part<float>("b", {0}, {3}), (std::vector<float>{1, -2, 3.140625}));
  EXPECT_EQ(read.file_of("d"), path + "/model.safetensors");
}

TEST(Safetensors, RefusesWhatItsHeaderGetsWrong) {
  const test::TemporaryFolder folder;
  const std::string path = folder.string();
  const std::string a = entry("a", "F32", "[2,2]", 0, 16);
  const std::string huge = "[4611686018427387904,4]";
  struct Case {
    std::string bytes, message;
  };
  const std::vector<Case> cases = {
      {"", "begins with a header of 0 bytes in a file of 0"},
      {"1234567", "in a file of 7"},
      {file_of("{" + a + "}", 15), "has 80 bytes; valid: the 81 bytes that its header lists"},
      {file_of("{" + a + "}", 17), "has 82 bytes"},
      {file_of("{" + a, 16), "the header is broken JSON"},
      {file_of("[1]", 0), "the header is no JSON object"},
      {file_of("{" + a + "," + a + "}", 16), "the header has a twice"},
      {file_of("{\"a\":[[[[1]]]]}", 0), "the header is nested more than 3 deep"},
      {file_of("{\"a\":{\"dtype\":\"F32\"}}", 0), "the entry of a is malformed"},
      {file_of("{\"a\":3}", 0), "the entry of a is malformed"},
      {file_of("{" + entry("a", "F32", "[2,-2]", 0, 16) + "}", 16), "the entry of a is malformed"},
      {file_of("{" + entry("a", "F32", "[1.5]", 0, 4) + "}", 4), "the entry of a is malformed"},
      {file_of("{" + entry("a", "F8_E4M3", "[4]", 0, 4) + "}", 4),
       "a has elements of F8_E4M3; valid: F64, F32, F16 or BF16"},
      {file_of("{" + entry("a", "F32", "[3]", 0, 16) + "}", 16), "a [3] of F32 has bytes 0 to 16"},
      {file_of("{" + entry("a", "F32", "[4]", 16, 0) + "}", 16), "has bytes 16 to 0"},
      {file_of("{" + entry("a", "F32", huge, 0, 16) + "}", 16), "the entry of a is malformed"},
      {file_of("{" + entry("a", "F32", "[70368744177664,64]", 0, 0) + "}", 0), "has bytes 0 to 0"},
      {file_of("{" + a + "," + entry("b", "F32", "[2]", 8, 16) + "}", 16),
       "b begins at byte 8; valid: 16"},
      {file_of("{" + a + "," + entry("b", "F32", "[4]", 0, 16) + "}", 16),
       "two tensors begin at byte 0"},
      {file_of("{" + a + "," + entry("b", "F32", "[1]", 20, 24) + "}", 24),
       "b begins at byte 20; valid: 16"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10),
       "begins with a header of 18446744073709551615 bytes"},
  };
  for (const Case& wrong : cases) {
    write_file(path + "/model.safetensors", wrong.bytes);
    EXPECT_THAT(error_of(path), HasSubstr(wrong.message));
  }
  write_file(path + "/model.safetensors",
             file_of("{\"__metadata__\":{\"format\":\"pt\"}," + a + "}", 16));
  EXPECT_THAT(SafetensorsFolder(path).names(), ::testing::ElementsAre("a"));
  EXPECT_THROW(SafetensorsFolder(path).read_part<float>("b", {0}, {1}), Error);
}

TEST(Safetensors, RefusesAnIndexThatItsFilesDoNotFit) {
  const test::TemporaryFolder folder;
  const std::string path = folder.string();
  const std::string index = path + "/model.safetensors.index.json";
  write_file(path + "/1.safetensors", file_of("{" + entry("a", "F32", "[2]", 0, 8) + "}", 8));
  write_file(path + "/2.safetensors", file_of("{" + entry("b", "F32", "[2]", 0, 8) + "}", 8));
  write_file(path + "/3.safetensors", file_of("{" + entry("a", "F32", "[2]", 0, 8) + "}", 8));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "is empty"},
      {"{}", "lacks weight_map"},
      {"{\"weight_map\": [1]}", "lacks weight_map"},
      {"{\"weight_map\": {\"a\": 1}}", "the file of a is 1"},
      {"{\"weight_map\": {\"a\": \"../1.safetensors\"}}",
       "valid: the name of a file in the folder"},
      {"{\"weight_map\": {\"a\": \"..\"}}", "valid: the name of a file in the folder"},
      {"{\"weight_map\": {\"a\": \"4.safetensors\"}}",
       "4.safetensors: cannot be read: No such file"},
      {"{\"weight_map\": {\"c\": \"1.safetensors\"}}", "1.safetensors: lacks c"},
      {"{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"1.safetensors\"}}", "lacks b"},
      {"{\"weight_map\": {\"a\": \"1.safetensors\", \"c\": \"3.safetensors\"}}",
       "a is in another file of the folder too"},
  };
  for (const auto& [text, message] : cases) {
    write_file(index, text);
    EXPECT_THAT(error_of(path), HasSubstr(message)) << text;
  }
  write_file(index, "{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"2.safetensors\"}}");
  EXPECT_THAT(SafetensorsFolder(path).names(), ::testing::ElementsAre("a", "b"));
  write_file(path + "/1.safetensors", file_of("{" + entry("a", "F32", "[2]", 0, 8) + "," +
                                                  entry("x", "F32", "[1]", 8, 12) + "}",
                                              12));
  EXPECT_THAT(error_of(path), HasSubstr("1.safetensors: holds x"));
  write_file(path + "/model.safetensors", file_of("{" + entry("a", "F32", "[2]", 0, 8) + "}", 8));
  EXPECT_THAT(error_of(path), HasSubstr("holds both"));
  EXPECT_THAT(error_of(path + "/nowhere"), HasSubstr("holds no tensors"));
}

TEST(Safetensors, LeavesNothingUnlessFinished) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "model";
  const std::vector<float> values(4);
  {
    SafetensorsWriter writer(path, ElementType::float32, {{"a", {4}}, {"b", {4}}});
    writer.write("a", std::as_bytes(std::span(values)));
    EXPECT_THROW(writer.write("c", std::as_bytes(std::span(values))), Error);
  }
  EXPECT_TRUE(fs::is_empty(folder.string()));
  fs::create_directory(path);
  EXPECT_THROW(SafetensorsWriter(path, ElementType::float32, {{"a", {4}}}), Error);
  EXPECT_TRUE(fs::exists(path)) << "what was there is left alone";
}

TEST(Safetensors, ALeftoverIsReplacedAndNothingElse) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "model", partial = path + ".partial";
  const std::vector<float> values(4);
  const auto write = [&] {
    SafetensorsWriter writer(path, ElementType::float32, {{"a", {4}}});
    writer.write("a", std::as_bytes(std::span(values)));
    writer.finish();
  };
  fs::create_directory(partial);
  write_file(partial + "/notes.txt", "mine");
  EXPECT_THROW(write(), Error);
  EXPECT_TRUE(fs::exists(partial + "/notes.txt"));
  fs::rename(partial + "/notes.txt", partial + "/model-00001-of-00002.safetensors");
  {
    const Lock other(partial);
    EXPECT_THROW(write(), Error) << "another process writes it";
  }
  EXPECT_FALSE(fs::exists(path));
  write();
  EXPECT_EQ(SafetensorsFolder(path).names(), std::vector<std::string>{"a"});
  EXPECT_FALSE(fs::exists(partial));
}

}  // namespace
}  // namespace cadenza::storage
