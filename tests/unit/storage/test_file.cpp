// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <random>

#include "cadenza/base/error.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "unit/error_of.hpp"
#include "unit/storage/child.hpp"

namespace cadenza::storage {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

template <typename T>
class FileRoundTrip : public ::testing::Test {};
using Types = ::testing::Types<float, double, std::int32_t, std::int64_t, std::uint64_t>;
TYPED_TEST_SUITE(FileRoundTrip, Types);

TYPED_TEST(FileRoundTrip, KeepsEveryBitOfRandomShapes) {
  using T = TypeParam;
  const test::TemporaryFolder folder;
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 20; ++trial) {
    Shape shape(random() % 5);
    std::size_t size = 1;
    for (hsize_t& extent : shape) size *= extent = random() % 6;
    std::vector<T> values(size);
    for (T& value : values) value = static_cast<T>(random());
    if (size > 0) values.back() = std::numeric_limits<T>::lowest();
    const std::string path = folder / "values.h5";
    File out = File::create(path);
    out.write("some/deep/group/values", shape, values.data());
    out.write("some/other", shape, values.data());
    out.close();

    const File in = File::open(path);
    EXPECT_EQ(in.shape("some/deep/group/values"), shape);
    EXPECT_EQ(in.read<T>("some/deep/group/values", shape), values);
    EXPECT_EQ(in.read<T>("/some/other", shape), values);
  }
}

TEST(File, ConvertsToTheTypeAsked) {
  const test::TemporaryFolder folder;
  const std::vector<double> values = {1.0, -2.5, 3.25};
  File out = File::create(folder / "a.h5");
  out.write("x", {3}, values.data());
  out.close();
  EXPECT_EQ(File::open(folder / "a.h5").read<float>("x", {3}),
            (std::vector<float>{1.0F, -2.5F, 3.25F}));
}

TEST(File, KnowsWhatItContains) {
  const test::TemporaryFolder folder;
  const float value = 1;
  File file = File::create(folder / "a.h5");
  file.write("group/x", {1}, &value);
  EXPECT_TRUE(file.contains("group/x"));
  EXPECT_TRUE(file.contains("/group/x"));
  EXPECT_FALSE(file.contains("group/y"));
  EXPECT_FALSE(file.contains("nowhere/at/all"));
}

TEST(File, KeepsAttributes) {
  const test::TemporaryFolder folder;
  File out = File::create(folder / "a.h5");
  out.write_attribute("step", std::int64_t{-12});
  out.write_attribute("rate", 0.5);
  out.write_attribute("name", std::string("Grüße"));
  out.write_attribute("empty", std::string());
  out.close();
  const File in = File::open(folder / "a.h5");
  EXPECT_EQ(in.read_attribute("step"), -12);
  EXPECT_EQ(in.read_text_attribute("name"), "Grüße");
  EXPECT_EQ(in.read_text_attribute("empty"), "");
  EXPECT_EQ(in.read_text_attribute("absent"), "");
  EXPECT_THAT(error_of([&] { in.read_attribute("absent"); }), HasSubstr("attribute absent"));
}

TEST(File, ReadsTextsOfVariableLength) {
  const test::TemporaryFolder folder;
  File out = File::create(folder / "a.h5");
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), H5T_VARIABLE);
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const char* text = "as h5py writes it";
  {
    const Handle attribute(
        H5Acreate2(out.id(), "name", type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    H5Awrite(attribute.get(), type.get(), static_cast<const void*>(&text));
  }
  out.close();
  EXPECT_EQ(File::open(folder / "a.h5").read_text_attribute("name"), text);
}

TEST(File, ReadsParts) {
  const test::TemporaryFolder folder;
  std::vector<double> values(3 * 4);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  File out = File::create(folder / "a.h5");
  out.write("x", {3, 4}, values.data());
  out.write("group/y", {12}, values.data());
  out.close();
  const File in = File::open(folder / "a.h5");
  EXPECT_EQ(in.datasets(), (std::vector<std::string>{"group/y", "x"}));
  EXPECT_EQ(in.read_part<double>("x", {1, 1}, {2, 3}), (std::vector<double>{5, 6, 7, 9, 10, 11}));
  EXPECT_EQ(in.read_part<float>("group/y", {10}, {2}), (std::vector<float>{10, 11}));
  EXPECT_THAT(error_of([&] {
                in.read_part<double>("x", {2, 0}, {2, 4});
              }),
              HasSubstr("dataset x from [2, 0], [2, 4] elements"));
}

TEST(File, KeepsTexts) {
  const test::TemporaryFolder folder;
  const std::vector<std::string> texts = {"ok", "", "Grüße, \"alle\""};
  File out = File::create(folder / "a.h5");
  out.write_texts("texts", texts);
  out.write_texts("group/none", {});
  out.close();
  const File in = File::open(folder / "a.h5");
  EXPECT_EQ(in.shape("texts"), Shape{3});
  EXPECT_EQ(in.shape("group/none"), Shape{0});
  const Handle dataset(H5Dopen2(in.id(), "texts", H5P_DEFAULT), H5Dclose);
  const Handle type(H5Dget_type(dataset.get()), H5Tclose);
  const std::size_t width = H5Tget_size(type.get());
  std::string all(3 * width, ' ');
  H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(std::string(all.substr(i * width, width).c_str()), texts[i]);
  }
}

TEST(File, CreateReplaces) {
  const test::TemporaryFolder folder;
  const float value = 1;
  File first = File::create(folder / "a.h5");
  first.write("x", {1}, &value);
  first.close();
  File second = File::create(folder / "a.h5");
  EXPECT_FALSE(second.contains("x"));
}

TEST(File, ErrorsNameFileDatasetAndReason) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "a.h5";
  const std::vector<float> values(6);
  File file = File::create(path);
  file.write("x", {2, 3}, values.data());
  EXPECT_THAT(error_of([&] {
                file.read<float>("x", {3, 2});
              }),
              AllOf(HasSubstr(path), HasSubstr("x has shape [2, 3], expected [3, 2]")));
  EXPECT_THAT(error_of([&] { file.shape("y"); }), AllOf(HasSubstr(path), HasSubstr("dataset y")));
  EXPECT_THAT(error_of([&] { file.write("x", {6}, values.data()); }),
              AllOf(HasSubstr(path), HasSubstr("dataset x"), HasSubstr("exists")));
  EXPECT_THAT(error_of([&] { File::open(folder / "missing.h5"); }),
              HasSubstr("missing.h5: no such file"));
  EXPECT_THAT(error_of([&] { File::create(folder / "missing/a.h5"); }),
              AllOf(HasSubstr("missing/a.h5"), HasSubstr("No such file or directory")));
  EXPECT_THAT(error_of([&] { File::create(path + "/a.h5"); }), HasSubstr("Not a directory"));
  std::ofstream(folder / "text.h5") << "this is not HDF5";
  EXPECT_THAT(error_of([&] { File::open(folder / "text.h5"); }),
              HasSubstr("text.h5: is not an HDF5 file"));
  EXPECT_THAT(error_of([&] { File::open(folder.string()); }),
              HasSubstr(folder.string() + ": is a folder"));
}

TEST(File, UnwritableFolderIsRefused) {
  if (geteuid() == 0) {
    // Root passes permission bits; /proc takes new files from nobody.
    EXPECT_THAT(error_of([] { File::create("/proc/a.h5"); }), HasSubstr("/proc/a.h5"));
    return;
  }
  const test::TemporaryFolder folder;
  std::filesystem::permissions(
      folder.string(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_THAT(error_of([&] { File::create(folder / "a.h5"); }), HasSubstr("Permission denied"));
  std::filesystem::permissions(folder.string(), std::filesystem::perms::owner_all);
}

/// Wherever the disk is full, in data or in HDF5's own structures, small or large datasets: one
/// error, and an ordinary exit without a word.
TEST(File, FullDiskIsOneErrorAndAQuietExit) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "full.h5";
  const std::vector<double> values(20000, 0.5);
  const auto write_all = [&] {
    File file = File::create(path);
    for (int i = 0; i < 40; ++i) {
      file.write("group/small" + std::to_string(i), {64}, values.data());
    }
    file.write("large", {values.size()}, values.data());
    file.close();
  };
  write_all();
  const auto size = std::filesystem::file_size(path);
  std::mt19937_64 random(11);
  std::vector<std::size_t> limits = {0, 1, 48, 95, 96, 800, 2048, size - 1};
  for (int i = 0; i < 40; ++i) limits.push_back(random() % size);
  for (const std::size_t limit : limits) {
    const auto result = test::run_child([&] {
      test::limit_file_size(limit);
      try {
        write_all();
      } catch (const Error& error) {
        std::puts(error.what());
        return static_cast<int>(error.code());
      }
      return 0;
    });
    EXPECT_FALSE(result.hung) << "limit " << limit;
    EXPECT_EQ(result.exit_code, 3) << "limit " << limit << " signal " << result.signal;
    EXPECT_THAT(result.output, AllOf(HasSubstr(path), HasSubstr("File too large")));
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
  }
}

}  // namespace
}  // namespace cadenza::storage
