// SPDX-License-Identifier: Apache-2.0
// Files that are made to do harm are refused in one line, before memory is taken for what they
// claim.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "cadenza/base/error.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "unit/storage/child.hpp"

namespace cadenza::storage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr hsize_t kHuge = hsize_t{1} << 40;
constexpr std::size_t kMemory = std::size_t{1} << 30;  // bytes that a refusal may ask for

void limit_memory() {
#ifndef __SANITIZE_ADDRESS__  // whose own memory is larger than any limit
  const rlimit limit{kMemory, kMemory};
  setrlimit(RLIMIT_DATA, &limit);
#endif
}

/// A file to plant things in, read back in a child whose memory is limited.
class Hostile : public ::testing::Test {
 protected:
  hid_t id() const { return file_.id(); }

  void attribute(const char* name, const Handle& type, const Handle& space, const void* value) {
    const Handle made(H5Acreate2(id(), name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
                      H5Aclose);
    ASSERT_TRUE(made);
    if (value != nullptr) H5Awrite(made.get(), type.get(), value);
  }
  Handle dataset(const char* name, hid_t type, const Handle& space, const Handle& creation) {
    Handle made(H5Dcreate2(id(), name, type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                H5Dclose);
    EXPECT_TRUE(made) << last_failure();
    return made;
  }
  /// What reading says; the test fails unless it is one Error(data) with little memory.
  std::string refusal(const std::function<void(const File&)>& read) {
    file_.close();
    const auto result = test::run_child([&] {
      limit_memory();
      try {
        read(File::open(path_));
      } catch (const Error& error) {
        std::puts(error.what());
        return static_cast<int>(error.code());
      } catch (const std::exception& error) {
        std::puts(error.what());
        return 100;
      }
      return 0;
    });
    EXPECT_FALSE(result.hung);
    EXPECT_EQ(result.signal, 0) << result.output;
    EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::data)) << result.output;
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
    EXPECT_THAT(result.output, HasSubstr(path_));
    return result.output;
  }

  static Handle simple(const Shape& shape, const Shape& most = {}) {
    return {H5Screate_simple(static_cast<int>(shape.size()), shape.data(),
                             most.empty() ? nullptr : most.data()),
            H5Sclose};
  }
  static Handle scalar() { return {H5Screate(H5S_SCALAR), H5Sclose}; }
  static Handle creation() { return {H5Pcreate(H5P_DATASET_CREATE), H5Pclose}; }
  static Handle copy(hid_t type) { return {H5Tcopy(type), H5Tclose}; }

  const test::TemporaryFolder folder_;
  const std::string path_ = folder_ / "hostile.h5";
  File file_ = File::create(path_, Protection::checksums);  // whose attributes may be large
};

TEST_F(Hostile, TextsAsAnArray) {
  Handle type = copy(H5T_C_S1);
  H5Tset_size(type.get(), 8);
  const std::string values(8 * 100'000, 'x');
  attribute("schema", type, simple({100'000}), values.data());
  EXPECT_THAT(refusal([](const File& f) { f.read_text_attribute("schema"); }),
              HasSubstr("attribute schema has 100000 values; valid: 1"));
}

TEST_F(Hostile, TextsOfVariableLengthAsAnArray) {
  Handle type = copy(H5T_C_S1);
  H5Tset_size(type.get(), H5T_VARIABLE);
  const std::vector<const char*> values(1000, "x");
  attribute("schema", type, simple({1000}), static_cast<const void*>(values.data()));
  EXPECT_THAT(refusal([](const File& f) { f.read_text_attribute("schema"); }),
              HasSubstr("attribute schema has 1000 values; valid: 1"));
}

TEST_F(Hostile, NoValues) {
  attribute("schema", copy(H5T_C_S1), Handle(H5Screate(H5S_NULL), H5Sclose), nullptr);
  EXPECT_THAT(refusal([](const File& f) { f.read_text_attribute("schema"); }),
              HasSubstr("has 0 values"));
}

TEST_F(Hostile, NumbersWhereTextIsDue) {
  const double value = 1;
  attribute("schema", copy(H5T_NATIVE_DOUBLE), scalar(), &value);
  EXPECT_THAT(refusal([](const File& f) { f.read_text_attribute("schema"); }),
              HasSubstr("attribute schema holds float64; valid: text"));
}

TEST_F(Hostile, NumbersAsAnArray) {
  const std::array<std::int64_t, 3> values{};
  attribute("step", copy(H5T_NATIVE_INT64), simple({3}), values.data());
  EXPECT_THAT(refusal([](const File& f) { f.read_attribute("step"); }),
              HasSubstr("attribute step has 3 values; valid: 1"));
}

TEST_F(Hostile, NumbersThatWouldBeNarrowed) {
  const std::uint64_t value = std::uint64_t{1} << 63;
  attribute("step", copy(H5T_NATIVE_UINT64), scalar(), &value);
  EXPECT_THAT(refusal([](const File& f) { f.read_attribute("step"); }),
              HasSubstr("attribute step holds uint64; valid: int64 or smaller"));
}

TEST_F(Hostile, FractionsWhereWholeNumbersAreDue) {
  const double value = 1.5;
  attribute("step", copy(H5T_NATIVE_DOUBLE), scalar(), &value);
  file_.write("lengths", {1}, &value);
  EXPECT_THAT(refusal([](const File& f) { f.read_attribute("step"); }), HasSubstr("float64"));
  EXPECT_THAT(refusal([](const File& f) { f.read<std::int64_t>("lengths", {1}); }),
              HasSubstr("dataset lengths holds float64; valid: int64 or smaller"));
}

TEST_F(Hostile, OtherTypesOfValues) {
  const std::vector<std::string> texts = {"1", "2"};
  const std::int64_t value = 1;
  file_.write_texts("texts", texts);
  file_.write("whole", {1}, &value);
  const Handle record(H5Tcreate(H5T_COMPOUND, 8), H5Tclose);
  H5Tinsert(record.get(), "x", 0, H5T_NATIVE_DOUBLE);
  const Handle list(H5Tvlen_create(H5T_NATIVE_DOUBLE), H5Tclose);
  Handle named = copy(H5T_NATIVE_DOUBLE);
  H5Tcommit2(id(), "named", named.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  const double zero = 0;
  const hvl_t empty{0, nullptr};
  for (const auto& [name, type, v] :
       {std::tuple<const char*, const Handle&, const void*>("record", record, &zero),
        {"list", list, &empty},
        {"committed", named, &zero}}) {
    const Handle made = dataset(name, type.get(), simple({1}), creation());
    H5Dwrite(made.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, v);
  }
  named.reset();  // a file is closed when all that is in it is
  const auto read = [&](const char* name, hsize_t size) {
    return refusal([=](const File& f) { f.read<double>(name, {size}); });
  };
  EXPECT_THAT(read("texts", 2),
              HasSubstr("dataset texts holds text; valid: floating-point numbers"));
  EXPECT_THAT(read("whole", 1), HasSubstr("dataset whole holds int64"));
  EXPECT_THAT(read("record", 1), HasSubstr("dataset record holds records"));
  EXPECT_THAT(read("list", 1), HasSubstr("dataset list holds lists"));
  EXPECT_THAT(read("committed", 1), HasSubstr("dataset committed holds a named type"));
}

TEST_F(Hostile, ExtentsThatNothingWasWrittenFor) {
  dataset("contiguous", H5T_NATIVE_FLOAT, simple({kHuge}), creation());
  const Handle chunked = creation();
  const hsize_t chunk = 1024;
  H5Pset_chunk(chunked.get(), 1, &chunk);
  dataset("chunked", H5T_NATIVE_FLOAT, simple({kHuge}), chunked);
  H5Pset_deflate(chunked.get(), 9);
  dataset("compressed", H5T_NATIVE_FLOAT, simple({kHuge}), chunked);
  for (const char* name : {"contiguous", "chunked", "compressed"}) {
    EXPECT_THAT(refusal([=](const File& f) { f.read<float>(name, f.shape(name)); }),
                AllOf(HasSubstr(name), HasSubstr("[1099511627776] takes 4398046511104 bytes, of "
                                                 "which the file holds 0")));
  }
}

TEST_F(Hostile, ExtentsWhoseProductOverflows) {
  const Handle chunked = creation();
  const Shape chunk(4, 1);
  H5Pset_chunk(chunked.get(), 4, chunk.data());
  H5Pset_deflate(chunked.get(), 9);
  const hsize_t extent = hsize_t{1} << 62;
  const hsize_t wraps = (hsize_t{1} << 32) + 1;
  dataset("huge", H5T_NATIVE_FLOAT, simple({extent, extent, extent, 1}), chunked);
  dataset("wraps", H5T_NATIVE_FLOAT, simple({wraps, wraps, wraps, wraps}), chunked);
  for (const char* name : {"huge", "wraps"}) {
    EXPECT_THAT(refusal([=](const File& f) { f.shape(name); }),
                AllOf(HasSubstr(name), HasSubstr("takes 2^64 or more bytes")));
  }
}

/// One number in a chunk that a reader would have to unpack whole.
TEST_F(Hostile, AChunkMuchLargerThanItsDataset) {
  const Handle chunked = creation();
  const hsize_t chunk = hsize_t{1} << 25;
  H5Pset_chunk(chunked.get(), 1, &chunk);
  H5Pset_deflate(chunked.get(), 1);
  const float value = 1;
  H5Dwrite(dataset("x", H5T_NATIVE_FLOAT, simple({1}, {H5S_UNLIMITED}), chunked).get(),
           H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, &value);
  EXPECT_THAT(refusal([](const File& f) { f.read<float>("x", {1}); }),
              HasSubstr("takes 134217728 bytes"));
}

TEST_F(Hostile, StorageInOtherFiles) {
  std::ofstream(folder_ / "secret") << "not for you";
  const Handle external = creation();
  H5Pset_external(external.get(), (folder_ / "secret").c_str(), 0, 8);
  dataset("external", H5T_NATIVE_DOUBLE, simple({1}), external);
  const double value = 1;
  File other = File::create(folder_ / "other.h5");
  other.write("x", {1}, &value);
  other.close();
  const Handle virtual_ = creation();
  H5Pset_virtual(virtual_.get(), simple({1}).get(), (folder_ / "other.h5").c_str(), "x",
                 simple({1}).get());
  dataset("virtual", H5T_NATIVE_DOUBLE, simple({1}), virtual_);
  for (const char* name : {"external", "virtual"}) {
    EXPECT_THAT(refusal([=](const File& f) { f.read<double>(name, {1}); }),
                AllOf(HasSubstr(name), HasSubstr("is stored in other files; valid: in this file")));
  }
}

TEST_F(Hostile, LinksToOtherPlaces) {
  const double value = 1;
  File other = File::create(folder_ / "other.h5");
  other.write("group/x", {1}, &value);
  other.close();
  H5Lcreate_external((folder_ / "other.h5").c_str(), "group", id(), "group", H5P_DEFAULT,
                     H5P_DEFAULT);
  H5Lcreate_soft("/group/x", id(), "soft", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_soft("/nowhere", id(), "dangling", H5P_DEFAULT, H5P_DEFAULT);
  for (const char* name : {"group/x", "soft", "dangling"}) {
    EXPECT_THAT(refusal([=](const File& f) { f.read<double>(name, {1}); }), HasSubstr("is a link"));
  }
  EXPECT_THAT(refusal([](const File& f) { f.contains("group/x"); }),
              HasSubstr("group is a link; valid: a dataset of the file itself"));
  EXPECT_THAT(refusal([](const File& f) { f.datasets(); }), HasSubstr("is a link"));
}

TEST_F(Hostile, GroupsWithoutEnd) {
  Handle group(H5Gcreate2(id(), "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  for (int depth = 0; depth < 3000; ++depth) {
    group = Handle(H5Gcreate2(group.get(), "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  }
  group.reset();
  EXPECT_THAT(refusal([](const File& f) { f.datasets(); }), HasSubstr("groups nest too deeply"));
}

TEST_F(Hostile, PipesAreNotWaitedFor) {
  const std::string pipe = folder_ / "hostile.h5.pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(refusal([&](const File&) { File::open(pipe); }), HasSubstr("is a pipe; valid"));
  EXPECT_THROW(File::open("/dev/zero"), Error);
}

/// What is refused above is not refused because it is unusual.
TEST_F(Hostile, OrdinaryFilesAreRead) {
  const Handle packed = creation();
  const hsize_t chunk = 1024;
  H5Pset_chunk(packed.get(), 1, &chunk);
  H5Pset_deflate(packed.get(), 9);
  const std::vector<float> zeros(1 << 20);
  {
    const Handle made =
        dataset("zeros", H5T_NATIVE_FLOAT, simple({zeros.size()}, {H5S_UNLIMITED}), packed);
    H5Dwrite(made.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data());
    const Handle room = dataset("room", H5T_NATIVE_FLOAT, simple({1}, {H5S_UNLIMITED}), packed);
    H5Dwrite(room.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data());
  }
  const std::int32_t small = 7;
  file_.write("small", {1}, &small);
  file_.write("nothing", {0, 1'000'000}, &small);
  file_.write("scalar", {}, &small);
  file_.close();
  const File in = File::open(path_);
  EXPECT_EQ(in.read<float>("zeros", {zeros.size()}), zeros);
  EXPECT_EQ(in.read<float>("room", {1}), std::vector<float>{0});
  EXPECT_EQ(in.read<std::int64_t>("small", {1}), std::vector<std::int64_t>{7});
  EXPECT_EQ(in.read<std::int64_t>("scalar", {}), std::vector<std::int64_t>{7});
  EXPECT_EQ(in.shape("nothing"), (Shape{0, 1'000'000}));
}

}  // namespace
}  // namespace cadenza::storage
