// SPDX-License-Identifier: Apache-2.0
// Whatever part of the model a rank holds, it reads the numbers that were written; a file that is
// damaged or of another model is refused.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cadenza/base/error.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "unit/model/saved.hpp"
#include "unit/storage/child.hpp"

namespace cadenza::model {
namespace {

using cadenza::test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Four layers that divide among two stages of two groups, and among two tensor ranks.
config::Model divisible_model() {
  config::Model model = test::small_model(false);
  model.layers = 4;
  model.ffn = 12;
  return model;
}

/// The message of the Error(data) that `work` throws; fails the test if there is none.
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::string refusal(const std::string& path, const config::Model& model) {
  return error_of([&] { CheckpointReader(path).require(model); });
}

/// The elements of a part's flat array, picked one by one out of the whole model's.
template <typename Sum>
std::vector<Sum> picked(const ParameterTable& part, const ParameterTable& whole,
                        const std::vector<Sum>& values) {
  std::vector<Sum> mine(static_cast<std::size_t>(part.elements));
  for (const ParameterInfo& info : part.entries) {
    const auto source = std::ranges::find(whole.entries, info.name, &ParameterInfo::name);
    const std::int64_t width = std::max<std::int64_t>(1, info.columns);
    for (std::int64_t i = 0; i < info.count(); ++i) {
      const std::int64_t row = info.row_begin + i / width;
      const std::int64_t column = info.column_begin + i % width;
      mine[static_cast<std::size_t>(info.offset + i)] = values[static_cast<std::size_t>(
          source->offset + row * std::max(width, info.whole_columns) + column)];
    }
  }
  return mine;
}

template <typename Sum>
std::vector<Sum> owned_of(const std::vector<Sum>& values, const std::vector<Range>& owned) {
  std::vector<Sum> mine;
  for (const Range& range : owned) {
    mine.insert(mine.end(), values.begin() + range.begin, values.begin() + range.end);
  }
  return mine;
}

/// A rank's part, and a share of the moments that begins and ends within rows.
template <typename Real>
void expect_read(const ModelPart& part) {
  const TemporaryFolder folder;
  const config::Model model = divisible_model();
  const Parameters<Real> whole = test::distinct_parameters<Real>(model);
  test::save(folder / "step.h5", whole, 12);

  const std::int64_t elements = make_parameter_table(model, part).elements;
  const std::vector<Range> owned{
      {3, elements / 3}, {elements / 3 + 5, elements / 2}, {elements - 4, elements}};
  MemoryLedger ledger;
  Parameters<Real> mine = make_parameters<Real>(model, part, 1, ledger, owned);
  const CheckpointReader checkpoint(folder / "step.h5");
  EXPECT_EQ(checkpoint.step(), 12);
  checkpoint.require(model);
  checkpoint.read(mine);

  const auto expected = [&](const auto& array) {
    return picked(mine.table, whole.table, testing::download(array));
  };
  EXPECT_EQ(testing::download(mine.values), expected(whole.values));
  EXPECT_EQ(testing::download(mine.first_moment), owned_of(expected(whole.first_moment), owned));
  EXPECT_EQ(testing::download(mine.second_moment), owned_of(expected(whole.second_moment), owned));
  EXPECT_EQ(test::download_double(mine.working),
            test::rounded_to<Real>(test::download_double(mine.values)));
}

TEST(CheckpointReader, GivesEveryPartItsNumbers) {
  const ModelPart slices_of_second_stage{{{1, 2}, {3, 4}}, false, true, 1, 2};
  const ModelPart first_stage{{{0, 2}}, true, false, 0, 1};
  for (const ModelPart& part :
       {whole_model(divisible_model()), slices_of_second_stage, first_stage}) {
    expect_read<float>(part);
    expect_read<double>(part);
    expect_read<bfloat16>(part);
  }
}

TEST(CheckpointReader, ConvertsBetweenTypes) {
  const TemporaryFolder folder;
  const config::Model model = test::small_model(true);
  test::save(folder / "step.h5", test::distinct_parameters<float>(model), 1);
  MemoryLedger ledger;
  auto read = test::whole_parameters<double>(model, 1, ledger);
  CheckpointReader(folder / "step.h5").read(read);
  EXPECT_EQ(testing::download(read.values),
            testing::download(test::distinct_parameters<double>(model).values));
}

TEST(CheckpointReader, OtherModelsAreRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "step.h5";
  const config::Model model = test::small_model(false);
  test::save(path, test::distinct_parameters<float>(model), 1);
  CheckpointReader(path).require(model);
  const auto with = [&](auto change) {
    config::Model other = model;
    change(other);
    return refusal(path, other);
  };
  EXPECT_THAT(with([](config::Model& m) { m.ffn = 7; }),
              AllOf(HasSubstr(path), HasSubstr("model.layers.0.mlp.gate_proj.weight"),
                    HasSubstr("has shape [11, 16], the experiment's model has [7, 16]")));
  EXPECT_THAT(with([](config::Model& m) { m.layers = 3; }),
              AllOf(HasSubstr("lacks model.layers.2."), HasSubstr("valid:")));
  EXPECT_THAT(with([](config::Model& m) { m.layers = 1; }), HasSubstr("holds model.layers.1."));
  EXPECT_THAT(with([](config::Model& m) { m.tie_embeddings = true; }),
              HasSubstr("holds lm_head.weight"));
}

TEST(CheckpointReader, MissingMomentsAreRefused) {
  const TemporaryFolder folder;
  const auto parameters = test::distinct_parameters<float>(test::small_model(false));
  CheckpointWriter writer(folder / "step.h5", 1);
  for (const ParameterInfo& info : parameters.table.entries) {
    writer.write(info.name, whole_shape(info), parameters.values.data() + info.offset);
  }
  writer.finish();
  EXPECT_THAT(refusal(folder / "step.h5", test::small_model(false)),
              HasSubstr("lacks optimizer/first_moment/model.embed_tokens.weight"));
}

TEST(CheckpointReader, OtherFilesAreRefused) {
  const TemporaryFolder folder;
  const config::Model model = test::small_model(false);
  std::ofstream(folder / "text.h5") << "this is not HDF5";
  EXPECT_THAT(refusal(folder / "text.h5", model), HasSubstr("text.h5: cannot open as an HDF5"));
  EXPECT_THAT(refusal(folder / "missing.h5", model), HasSubstr("No such file or directory"));
  storage::File::create(folder / "empty.h5").close();
  EXPECT_THAT(refusal(folder / "empty.h5", model),
              HasSubstr("is no checkpoint: found schema '', valid: cadenza-checkpoint/1"));
  storage::File trace = storage::File::create(folder / "trace.h5");
  trace.write_attribute("schema", std::string("cadenza-trace/1"));
  trace.close();
  EXPECT_THAT(refusal(folder / "trace.h5", model), HasSubstr("found schema 'cadenza-trace/1'"));
  CheckpointWriter(folder / "negative.h5", -3).finish();
  EXPECT_THAT(refusal(folder / "negative.h5", model), HasSubstr("found step -3"));
}

TEST(CheckpointReader, AFileThatIsCutAnywhereIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "step.h5";
  const config::Model model = test::small_model(false);
  test::save(path, test::distinct_parameters<float>(model), 1);
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path));
  for (std::int64_t left = size - 1; left >= 0; left -= std::max<std::int64_t>(1, size / 101)) {
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(left));
    EXPECT_THAT(refusal(path, model), HasSubstr(path)) << left;
  }
}

}  // namespace
}  // namespace cadenza::model
