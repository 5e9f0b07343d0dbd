// SPDX-License-Identifier: Apache-2.0
// What plans of sparse attention are weighed by comes back from a checkpoint bit by bit; damaged
// rows are refused.
#include <gmock/gmock.h>

#include <functional>
#include <limits>

#include "cadenza/base/error.hpp"
#include "unit/model/saved.hpp"
#include "unit/storage/child.hpp"

namespace cadenza::model {
namespace {

using cadenza::test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

SparseCounts counts_of(std::int64_t kept) {
  SparseCounts counts;
  for (const int layer : {0, 1}) {
    for (const std::int64_t length : {200, 5000}) {
      SparseCounts::Rows& rows = counts.rows[SparsePlace::of(layer, length)];
      rows.kept.fill(kept + layer);
      rows.causal.fill(7 * length);
    }
  }
  return counts;
}

SparseEstimates two_steps() {
  SparseEstimates estimates;
  estimates.add(counts_of(50));
  estimates.add(counts_of(31));
  return estimates;
}

std::string saved(const TemporaryFolder& folder, const SparseEstimates& estimates) {
  const config::Model model = test::small_model(false);
  const std::string path = folder / "step.h5";
  CheckpointWriter writer(path, 2, test::experiment_of(model));
  const auto parameters = test::distinct_parameters<float>(model);
  test::for_each_dataset(parameters, [&](const auto& name, const auto& shape, const auto* values) {
    writer.write(name, shape, values);
  });
  writer.write(estimates);
  writer.finish();
  return path;
}

TEST(CheckpointEstimates, ComeBack) {
  const TemporaryFolder folder;
  const config::Model model = test::small_model(false);
  const SparseEstimates written = two_steps();
  const CheckpointReader reader(saved(folder, written));
  reader.require(model);
  reader.verify(model);
  const SparseEstimates read = reader.estimates(model);
  EXPECT_EQ(read.next, written.next);
  EXPECT_EQ(read.after, written.after);
  EXPECT_NE(read.next, read.after);
}

TEST(CheckpointEstimates, AreEmptyWhereThereWereNone) {
  const TemporaryFolder folder;
  const config::Model model = test::small_model(false);
  const CheckpointReader reader(saved(folder, {}));
  reader.require(model);
  EXPECT_TRUE(reader.estimates(model).next.empty());
  EXPECT_TRUE(reader.estimates(model).after.empty());
}

/// Rows of a file that are not those of its writer.
struct Rows {
  std::vector<std::int64_t> places = {0, 0, 8, 1, 0, 8};  // [2, 3]
  std::vector<double> shares = std::vector<double>(64, 0.5);
  storage::Shape place_shape = {2, 3};
  storage::Shape share_shape = {2, 32};
};

std::string refusal(const Rows& rows) {
  const TemporaryFolder folder;
  const config::Model model = test::small_model(false);
  const std::string path = folder / "step.h5";
  storage::File file = storage::File::create(path, storage::Protection::checksums);
  file.write_attribute("schema", std::string(kCheckpointSchema));
  file.write_attribute("step", std::int64_t{1});
  if (!rows.places.empty()) file.write(kEstimatePlaces, rows.place_shape, rows.places.data());
  if (!rows.shares.empty()) file.write(kEstimateShares, rows.share_shape, rows.shares.data());
  file.close();
  try {
    CheckpointReader(path).estimates(model);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_THAT(error.what(), HasSubstr(path));
    return error.what();
  }
  return "none";
}

TEST(CheckpointEstimates, DamagedRowsAreRefused) {
  EXPECT_EQ(refusal({}), "none");
  Rows rows;
  for (const double share : {-0.1, 1.01, std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::infinity()}) {
    rows = {};
    rows.shares[40] = share;
    EXPECT_THAT(refusal(rows), AllOf(HasSubstr("in row 1"), HasSubstr("shares from 0 to 1")));
  }
  for (const auto& [at, number] : std::vector<std::pair<std::size_t, std::int64_t>>{
           {0, 2}, {0, -1}, {4, -1}, {4, 2}, {5, 0}, {5, 42}, {3, 0}}) {
    rows = {};
    rows.places[at] = number;
    EXPECT_THAT(refusal(rows), HasSubstr("a layer below 2 and 1 to 41 binary digits"))
        << at << ' ' << number;
  }
}

TEST(CheckpointEstimates, WrongShapesAreRefused) {
  Rows rows;
  rows.place_shape = {3, 2};
  EXPECT_THAT(refusal(rows), HasSubstr(kEstimatePlaces));
  rows = {};
  rows.share_shape = {32, 2};
  EXPECT_THAT(refusal(rows), HasSubstr(kEstimateShares));
  rows = {};
  rows.share_shape = {1, 64};
  EXPECT_THAT(refusal(rows), HasSubstr(kEstimateShares));
  rows = {};
  rows.shares.clear();
  EXPECT_THAT(refusal(rows), HasSubstr(kEstimateShares));
  rows = {};
  rows.places.clear();
  EXPECT_THAT(refusal(rows), HasSubstr(kEstimatePlaces));
}

}  // namespace
}  // namespace cadenza::model
