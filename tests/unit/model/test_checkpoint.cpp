// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/checkpoint.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>

#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "unit/model/saved.hpp"
#include "unit/storage/child.hpp"

namespace cadenza::model {
namespace {

using cadenza::test::TemporaryFolder;
using test::distinct_parameters;
using test::save;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <typename Real>
void expect_stored(const storage::File& file, const std::string& prefix,
                   const ParameterTable& table, const Array<Real>& array) {
  const std::vector<Real> all = testing::download(array);
  for (const ParameterInfo& info : table.entries) {
    storage::Shape shape = {static_cast<hsize_t>(info.rows)};
    if (info.columns > 0) shape.push_back(static_cast<hsize_t>(info.columns));
    ASSERT_TRUE(file.contains(prefix + info.name)) << prefix << info.name;
    EXPECT_EQ(file.shape(prefix + info.name), shape);
    const std::vector<Real> expected(all.begin() + info.offset,
                                     all.begin() + info.offset + info.count());
    EXPECT_EQ(file.read<Real>(prefix + info.name, shape), expected) << prefix << info.name;
  }
}

template <typename Real>
void expect_round_trip(bool tied) {
  const TemporaryFolder folder;
  const config::Model model = test::small_model(tied);
  const Parameters<Real> parameters = distinct_parameters<Real>(model);
  const std::string path = folder / checkpoint_name(12);
  save(path, model, parameters, 12);
  const storage::File file = storage::File::open(path);
  EXPECT_EQ(file.read_attribute("step"), 12);
  EXPECT_EQ(file.read_text_attribute("experiment"), config::to_yaml(test::experiment_of(model)));
  EXPECT_EQ(file.contains("lm_head.weight"), !tied);
  expect_stored(file, "", parameters.table, test::masters(parameters));
  expect_stored(file, "optimizer/first_moment/", parameters.table, parameters.first_moment);
  expect_stored(file, "optimizer/second_moment/", parameters.table, parameters.second_moment);
}

TEST(Checkpoint, HoldsEveryParameterAndMoment) {
  expect_round_trip<float>(false);
  expect_round_trip<float>(true);
  expect_round_trip<double>(false);
  expect_round_trip<bfloat16>(false);  // whose masters are floats
}

TEST(Checkpoint, NamesSortByStep) {
  EXPECT_EQ(checkpoint_name(0), "step-00000000.h5");
  EXPECT_EQ(checkpoint_name(10), "step-00000010.h5");
  EXPECT_EQ(checkpoint_name(123456789), "step-123456789.h5");
}

std::vector<std::string> files_of(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.string())) {
    names.push_back(entry.path().filename());
  }
  return names;
}

TEST(Checkpoint, NewestComesFirstAndOtherFilesNever) {
  const TemporaryFolder folder;
  for (const char* name : {"step-00000002.h5", "step-00000010.h5", "step-100000000.h5",
                           "step-00000012.h5.partial", "step-.h5", "step-3x.h5", "steps.h5"}) {
    std::ofstream(folder / name) << "x";
  }
  EXPECT_THAT(checkpoints_in(folder.string()),
              ::testing::ElementsAre(folder / "step-100000000.h5", folder / "step-00000010.h5",
                                     folder / "step-00000002.h5"));
  EXPECT_THROW(checkpoints_in(folder / "missing"), Error);
}

TEST(Checkpoint, LeavesOneFileAndReplacesAnOlderOne) {
  const TemporaryFolder folder;
  const auto parameters = distinct_parameters<float>(test::small_model(false));
  const std::string path = folder / "step.h5";
  save(path, test::small_model(false), parameters, 1);
  save(path, test::small_model(false), parameters, 2);
  EXPECT_THAT(files_of(folder), ::testing::ElementsAre("step.h5"));
  EXPECT_EQ(storage::File::open(path).read_attribute("step"), 2);
}

TEST(Checkpoint, UnfinishedOneLeavesNothing) {
  const TemporaryFolder folder;
  {
    CheckpointWriter writer(folder / "step.h5", 3, {});
    writer.write("model.norm.weight", {2}, std::vector<float>{1, 2}.data());
    EXPECT_THAT(files_of(folder), ::testing::ElementsAre("step.h5.partial"));
  }
  EXPECT_THAT(files_of(folder), IsEmpty());
}

TEST(Checkpoint, WhatKilledWritersLeftIsRemovedAndNothingElse) {
  const TemporaryFolder folder;
  for (const char* name : {"step-00000002.h5", "step-00000012.h5.partial", "notes.partial",
                           "step-3.h5.part", "step-x.h5.partial"}) {
    std::ofstream(folder / name) << "x";
  }
  remove_partial_checkpoints(folder.string());
  EXPECT_THAT(files_of(folder),
              ::testing::UnorderedElementsAre("step-00000002.h5", "notes.partial", "step-3.h5.part",
                                              "step-x.h5.partial"));
  remove_partial_checkpoints(folder / "missing");
}

TEST(Checkpoint, NumbersThatNoReaderTakesAreNotWritten) {
  const TemporaryFolder folder;
  const std::string moment = "optimizer/second_moment/model.norm.weight";
  for (const auto& [name, value] :
       {std::pair<std::string, float>("model.norm.weight", std::nanf("")),
        {"model.norm.weight", -std::numeric_limits<float>::infinity()},
        {"optimizer/first_moment/model.norm.weight", std::numeric_limits<float>::infinity()},
        {moment, -1e-30F}}) {
    try {
      CheckpointWriter writer(folder / "step.h5", 3, {});
      writer.write(name, {3}, std::vector<float>{0, 1, value}.data());
      ADD_FAILURE() << name << " was written";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::numerics);
      EXPECT_THAT(error.what(), HasSubstr("element 2 of " + name));
    }
  }
  EXPECT_THAT(files_of(folder), IsEmpty());
  CheckpointWriter(folder / "step.h5", 3, {}).write(moment, {1}, std::vector<float>{-0.0F}.data());
}

TEST(Checkpoint, UnwritablePlaceIsADataError) {
  const TemporaryFolder folder;
  const auto parameters = distinct_parameters<float>(test::small_model(false));
  std::filesystem::create_directory(folder / "taken.h5");
  for (const std::string& path : {folder / "missing/step.h5", folder / "taken.h5"}) {
    try {
      save(path, test::small_model(false), parameters, 1);
      ADD_FAILURE() << path << " was written";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::data);
      EXPECT_THAT(error.what(), HasSubstr(path));
    }
  }
  EXPECT_THAT(files_of(folder), ::testing::ElementsAre("taken.h5"));
}

TEST(Checkpoint, FullDiskLeavesTheOlderOneAndNothingElse) {
  const TemporaryFolder folder;
  const std::string path = folder / "step.h5";
  const config::Model model = test::small_model(false);
  save(path, model, distinct_parameters<float>(model), 1);
  const std::vector<float> values(100'000, 1.5F);
  const auto child = cadenza::test::run_child([&] {
    cadenza::test::limit_file_size(200'000);
    try {
      CheckpointWriter writer(path, 2, {});
      writer.write("model.norm.weight", {100'000}, values.data());
      writer.finish();
    } catch (const Error& error) {
      std::printf("%s\n", error.what());
      return static_cast<int>(error.code());
    }
    return 0;
  });
  EXPECT_EQ(child.exit_code, static_cast<int>(ExitCode::data)) << child.output;
  EXPECT_THAT(child.output, HasSubstr(path));
  // A child that leaves Kokkos running hears of it on a device.
  const std::string said = child.output.substr(0, child.output.find("Kokkos::Cuda ERROR"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << child.output;
  EXPECT_THAT(files_of(folder), ::testing::ElementsAre("step.h5"));
  EXPECT_EQ(storage::File::open(path).read_attribute("step"), 1);
}

}  // namespace
}  // namespace cadenza::model
