// SPDX-License-Identifier: Apache-2.0
// Whatever part of the model a rank holds, it reads the numbers that were written; a file that is
// damaged or of another model is refused.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <random>

#include "cadenza/base/error.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/storage/hdf5.hpp"
#include "unit/error_of.hpp"
#include "unit/model/saved.hpp"
#include "unit/sanitized.hpp"
#include "unit/storage/child.hpp"

namespace cadenza::model {
namespace {

using cadenza::test::error_of;
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

/// A rank's part, and a share of masters and moments that begins and ends within rows.
template <typename Real>
void expect_read(const ModelPart& part) {
  const TemporaryFolder folder;
  const config::Model model = divisible_model();
  const Parameters<Real> whole = test::distinct_parameters<Real>(model);
  test::save(folder / "step.h5", model, whole, 12);

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
  EXPECT_EQ(testing::download(mine.first_moment),
            test::owned_of(expected(whole.first_moment), owned));
  EXPECT_EQ(testing::download(mine.second_moment),
            test::owned_of(expected(whole.second_moment), owned));
  const auto values = expected(test::masters(whole));
  EXPECT_EQ(test::download_double(mine.weights),
            test::rounded_to<Real>({values.begin(), values.end()}));
  if (std::is_same_v<Real, Accumulator<Real>>) return;
  EXPECT_EQ(testing::download(mine.masters), test::owned_of(values, owned));
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
  test::save(folder / "step.h5", model, test::distinct_parameters<float>(model), 1);
  MemoryLedger ledger;
  auto read = test::whole_parameters<double>(model, 1, ledger);
  CheckpointReader(folder / "step.h5").read(read);
  EXPECT_EQ(testing::download(test::masters(read)),
            testing::download(test::masters(test::distinct_parameters<double>(model))));
}

/// A change of the model, and what it is refused with.
struct Change {
  void (*apply)(config::Model&);
  const char* refusal;
};

const Change kChanges[] = {
    {[](config::Model& m) { m.ffn = 7; }, "model.ffn: the checkpoint has 11, the experiment 7"},
    {[](config::Model& m) { m.layers = 3; },
     "model.layers: the checkpoint has 2, the experiment 3"},
    {[](config::Model& m) { m.layers = 1; },
     "model.layers: the checkpoint has 2, the experiment 1"},
    {[](config::Model& m) { m.tie_embeddings = true; },
     "model.tie_embeddings: the checkpoint has false, the experiment true"},
    {[](config::Model& m) {
       m.heads = 8;
       m.kv_heads = 4;
     },
     "model.heads: the checkpoint has 4, the experiment 8"},
    {[](config::Model& m) { m.rope.theta = 20; },
     "model.rope.theta: the checkpoint has 10.0, the experiment 20.0"},
    {[](config::Model& m) { m.norm_eps = 1e-6; },
     "model.norm_eps: the checkpoint has 1.0e-05, the experiment 1.0e-06"},
};

TEST(CheckpointReader, OtherModelsAreRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "step.h5";
  const config::Model model = test::small_model(false);
  test::save(path, model, test::distinct_parameters<float>(model), 1);
  CheckpointReader(path).require(model);
  for (const Change& change : kChanges) {
    config::Model other = model;
    change.apply(other);
    EXPECT_THAT(refusal(path, other), AllOf(HasSubstr(path), HasSubstr(change.refusal)));
    EXPECT_THROW(CheckpointReader(path).require(other), OtherModel);
  }
}

/// As written with another experiment.
void replace_experiment(const std::string& path, const std::string& yaml) {
  const storage::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
  H5Adelete(file.get(), "experiment");
  const storage::Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), yaml.size());
  const storage::Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const storage::Handle made(
      H5Acreate2(file.get(), "experiment", type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  ASSERT_GE(H5Awrite(made.get(), type.get(), yaml.data()), 0);
}

TEST(CheckpointReader, ModelsOfOtherVersions) {
  const TemporaryFolder folder;
  const std::string path = folder / "step.h5";
  const config::Model model = test::small_model(false);
  const std::string yaml = config::to_yaml(test::experiment_of(model));
  test::save(path, model, test::distinct_parameters<float>(model), 1);
  const auto with = [&](const std::string& old, const std::string& text) {
    return yaml.substr(0, yaml.find(old)) + text + yaml.substr(yaml.find(old) + old.size());
  };
  replace_experiment(path, with("model:\n", "model:\n  from_later: 1\n"));
  EXPECT_THAT(refusal(path, model), HasSubstr("model.from_later: the checkpoint has 1, the "
                                              "experiment no such key"));
  // Outside of the model other keys are told, and no more.
  replace_experiment(path, with("batch:\n", "batch:\n  from_later: 1\n"));
  CheckpointReader(path).require(model);
  EXPECT_EQ(CheckpointReader(path).differences(test::experiment_of(model)).size(), 1U);
  // As if the key had been added since: it has its default.
  replace_experiment(path, with("  norm_eps: 1.0e-05\n", ""));
  CheckpointReader(path).require(model);
  config::Model other = model;
  other.norm_eps = 1e-6;
  EXPECT_THAT(refusal(path, other), HasSubstr("model.norm_eps: the checkpoint has no such key"));
  for (const char* none : {"- a list", "model: [", "x"}) {
    replace_experiment(path, none);
    EXPECT_THAT(refusal(path, model), AllOf(HasSubstr(path), HasSubstr("holds no experiment")));
  }
}

TEST(CheckpointReader, NamesTheSettingsThatDiffer) {
  const TemporaryFolder folder;
  config::Experiment experiment = test::experiment_of(test::small_model(false));
  CheckpointWriter(folder / "step.h5", 3, experiment).finish();
  const auto keys = [&] {
    std::vector<std::string> names;
    for (const auto& d : CheckpointReader(folder / "step.h5").differences(experiment)) {
      names.push_back(d.key);
    }
    return names;
  };
  EXPECT_THAT(keys(), ::testing::IsEmpty());
  experiment.parallel.data = 2;  // decides no numbers
  experiment.model.ffn = 7;      // is refused
  EXPECT_THAT(keys(), ::testing::IsEmpty());
  experiment.seed = 7;
  experiment.data.path = {"other"};
  experiment.batch.tokens = 12;
  experiment.optimizer.lr = 1e-9;
  experiment.run.steps = 77;
  EXPECT_THAT(keys(), ::testing::ElementsAre("batch.tokens", "data.path", "optimizer.lr",
                                             "run.steps", "seed"));
}

TEST(CheckpointReader, MissingMomentsAreRefused) {
  const TemporaryFolder folder;
  const auto parameters = test::distinct_parameters<float>(test::small_model(false));
  CheckpointWriter writer(folder / "step.h5", 1, test::experiment_of(test::small_model(false)));
  const auto values = testing::download(test::masters(parameters));
  for (const ParameterInfo& info : parameters.table.entries) {
    writer.write(info.name, whole_shape(info), values.data() + info.offset);
  }
  writer.finish();
  EXPECT_THAT(refusal(folder / "step.h5", test::small_model(false)),
              HasSubstr("lacks optimizer/first_moment/model.embed_tokens.weight"));
}

/// A copy of a checkpoint in which `change` has changed the whole file.
std::string rewritten(const TemporaryFolder& folder, const std::function<void(hid_t)>& change) {
  const config::Model model = test::small_model(false);
  test::save(folder / "step.h5", model, test::distinct_parameters<float>(model), 1);
  const storage::Handle file(H5Fopen((folder / "step.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT),
                             H5Fclose);
  change(file.get());
  return folder / "step.h5";
}

/// What is missing or foreign in a file with the model's settings is damage: a reader of a chain's
/// checkpoints passes over it, which it must not do with those of another model.
/// As `cadenza convert` writes them.
TEST(CheckpointReader, ParametersAloneBeginAtStepZero) {
  const TemporaryFolder folder;
  const config::Model model = test::small_model(false);
  const Parameters<float> parameters = test::distinct_parameters<float>(model);
  const std::string path = folder / "start.h5";
  {
    CheckpointWriter writer(path, 0, test::experiment_of(model));
    test::for_each_dataset(parameters,
                           [&](const auto& name, const auto& shape, const auto* values) {
                             if (!name.starts_with(kOptimizerPrefix))
                               writer.write(name, shape, values);
                           });
    writer.finish();
  }
  const CheckpointReader reader(path);
  EXPECT_FALSE(reader.has_moments());
  reader.require(model);
  reader.verify(model);
  Parameters<float> read = test::distinct_parameters<float>(model);  // moments other than zero
  reader.read(read);
  EXPECT_EQ(testing::download(read.weights), testing::download(parameters.weights));
  for (const auto& moment : {read.first_moment, read.second_moment}) {
    EXPECT_THAT(testing::download(moment), ::testing::Each(0.0F));
  }
}

TEST(CheckpointReader, LostAndForeignDatasetsAreDamage) {
  const config::Model model = test::small_model(false);
  const auto refused = [&](const std::function<void(hid_t)>& change) {
    const TemporaryFolder folder;
    const std::string path = rewritten(folder, change);
    try {
      CheckpointReader(path).require(model);
    } catch (const OtherModel& error) {
      ADD_FAILURE() << "passes for another model: " << error.what();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::data);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused([](hid_t file) { H5Ldelete(file, "lm_head.weight", H5P_DEFAULT); }),
              HasSubstr("step.h5: is damaged: lacks lm_head.weight"));
  EXPECT_THAT(refused([](hid_t file) {
                H5Lmove(file, "lm_head.weight", file, "renamed", H5P_DEFAULT, H5P_DEFAULT);
                H5Lmove(file, "model.norm.weight", file, "lm_head.weight", H5P_DEFAULT,
                        H5P_DEFAULT);
                H5Lmove(file, "renamed", file, "model.norm.weight", H5P_DEFAULT, H5P_DEFAULT);
              }),
              HasSubstr("step.h5: is damaged: lm_head.weight has shape [16]"));
  EXPECT_THAT(refused([](hid_t file) {
                H5Ocopy(file, "lm_head.weight", file, "another", H5P_DEFAULT, H5P_DEFAULT);
              }),
              HasSubstr("step.h5: is damaged: holds another"));
  EXPECT_THAT(refused([](hid_t file) { H5Adelete(file, "experiment"); }),
              HasSubstr("step.h5: is damaged: lacks the attribute experiment"));
}

TEST(CheckpointReader, ADatasetWithoutChecksumsIsRefused) {
  const TemporaryFolder folder;
  const std::string path = rewritten(folder, [](hid_t file) {
    const storage::Handle old(H5Dopen2(file, "lm_head.weight", H5P_DEFAULT), H5Dclose);
    const storage::Handle space(H5Dget_space(old.get()), H5Sclose);
    H5Ldelete(file, "lm_head.weight", H5P_DEFAULT);
    const storage::Handle data(H5Dcreate2(file, "lm_head.weight", H5T_NATIVE_FLOAT, space.get(),
                                          H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                               H5Dclose);
    const std::vector<float> zeros(
        static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get())));
    H5Dwrite(data.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data());
  });
  EXPECT_THAT(refusal(path, test::small_model(false)),
              HasSubstr("lm_head.weight has no checksum (Fletcher32)"));
}

TEST(CheckpointReader, ADatasetWithTwoNamesIsRefused) {
  const TemporaryFolder folder;
  const std::string path = rewritten(folder, [](hid_t file) {
    H5Ldelete(file, "lm_head.weight", H5P_DEFAULT);
    H5Lcreate_hard(file, "optimizer/first_moment/lm_head.weight", file, "lm_head.weight",
                   H5P_DEFAULT, H5P_DEFAULT);
  });
  EXPECT_THAT(refusal(path, test::small_model(false)),
              HasSubstr("lm_head.weight has a second name"));
}

TEST(CheckpointReader, OtherFilesAreRefused) {
  const TemporaryFolder folder;
  const config::Model model = test::small_model(false);
  std::ofstream(folder / "text.h5") << "this is not HDF5";
  EXPECT_THAT(refusal(folder / "text.h5", model), HasSubstr("text.h5: is not an HDF5 file"));
  EXPECT_THAT(refusal(folder / "missing.h5", model), HasSubstr("missing.h5: no such file"));
  storage::File::create(folder / "empty.h5").close();
  EXPECT_THAT(refusal(folder / "empty.h5", model),
              HasSubstr("is not a checkpoint: found schema ''; valid: cadenza-checkpoint/2"));
  storage::File trace = storage::File::create(folder / "trace.h5");
  trace.write_attribute("schema", std::string("cadenza-trace/1"));
  trace.close();
  EXPECT_THAT(refusal(folder / "trace.h5", model), HasSubstr("found schema 'cadenza-trace/1'"));
  CheckpointWriter(folder / "negative.h5", -3, {}).finish();
  EXPECT_THAT(refusal(folder / "negative.h5", model), HasSubstr("found step -3"));
  CheckpointWriter(folder / checkpoint_name(12), 13, {}).finish();
  EXPECT_THAT(refusal(folder / checkpoint_name(12), model),
              HasSubstr("found step 13; valid: 12, as in the file's name"));
}

TEST(CheckpointReader, AFileThatIsCutAnywhereIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "step.h5";
  const config::Model model = test::small_model(false);
  test::save(path, model, test::distinct_parameters<float>(model), 1);
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path));
  for (std::int64_t left = size - 1; left >= 0; left -= std::max<std::int64_t>(1, size / 101)) {
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(left));
    EXPECT_THAT(refusal(path, model), HasSubstr(path)) << left;
  }
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// All numbers of a checkpoint of the model, bit by bit.
std::vector<float> numbers_of(const std::string& path, const config::Model& model) {
  MemoryLedger ledger;
  auto parameters = test::whole_parameters<float>(model, 1, ledger);
  const CheckpointReader checkpoint(path);
  checkpoint.require(model);
  checkpoint.read(parameters);
  std::vector<float> all{static_cast<float>(checkpoint.step())};
  for (const auto& array :
       {parameters.weights, parameters.first_moment, parameters.second_moment}) {
    const std::vector<float> part = testing::download(array);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

/// Wherever a bit has changed, the file is refused or gives the same numbers.
TEST(CheckpointReader, NoFlippedBitIsLoaded) {
  const TemporaryFolder folder;
  const std::string path = folder / checkpoint_name(1);
  config::Model model = test::small_model(false);
  test::save(path, model, test::distinct_parameters<float>(model), 1);
  const std::string sound = contents(path);
  const std::vector<float> expected = numbers_of(path, model);
  std::mt19937_64 random(23);
  int refused = 0;
  constexpr int kFlips = cadenza::testing::kSanitized ? 200 : 600;
  for (int flip = 0; flip < kFlips; ++flip) {
    // Half of them early in the file, where HDF5 has its own structures.
    const std::size_t range = flip % 2 == 0 ? sound.size() : sound.size() / 16;
    const std::size_t bit = random() % (8 * range);
    std::string damaged = sound;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    std::ofstream(path, std::ios::binary) << damaged;
    try {
      EXPECT_EQ(numbers_of(path, model), expected) << "bit " << bit;
    } catch (const OtherModel& error) {
      ADD_FAILURE() << "bit " << bit << " passes for another model: " << error.what();
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.code(), ExitCode::data);
      EXPECT_THAT(error.what(), HasSubstr(path)) << "bit " << bit;
    }
  }
  EXPECT_GT(refused, kFlips / 2);  // the rest hit bytes that nothing uses
}

/// Written by another program, with checksums that hold.
TEST(CheckpointReader, NumbersThatNoTrainingLeavesAreDamage) {
  const TemporaryFolder folder;
  const std::string path = folder / "step.h5";
  const config::Model model = test::small_model(false);
  for (const auto& [name, value] :
       {std::pair<std::string, float>("model.layers.1.mlp.up_proj.weight", std::nanf("")),
        {"optimizer/first_moment/model.norm.weight", std::numeric_limits<float>::infinity()},
        {"optimizer/second_moment/model.layers.1.mlp.up_proj.weight", -1.0F}}) {
    test::save(path, model, test::distinct_parameters<float>(model), 1);
    CheckpointReader(path).verify(model);
    const bool matrix = name.find("mlp") != std::string::npos;
    {
      const storage::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
      const storage::Handle dataset(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), H5Dclose);
      std::vector<float> values(matrix ? 11 * 16 : 16, 1.0F);
      values[matrix ? 3 * 16 + 5 : 3] = value;
      H5Dwrite(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    }
    for (const bool whole : {false, true}) {
      EXPECT_THAT(error_of([&] {
                    whole ? CheckpointReader(path).verify(model) : void(numbers_of(path, model));
                  }),
                  AllOf(HasSubstr(path), HasSubstr("is damaged: " + name),
                        HasSubstr(fmt::format("has {} in row 3", value))));
    }
  }
}

TEST(CheckpointReader, HostileAttributesAreRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "step.h5";
  const config::Model model = test::small_model(false);
  {
    storage::File file = storage::File::create(path);
    storage::Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.get(), 8);
    const hsize_t count = 7000;
    const storage::Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
    const storage::Handle made(
        H5Acreate2(file.id(), "schema", type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
        H5Aclose);
    H5Awrite(made.get(), type.get(), std::string(count * 8, 'x').data());
  }
  EXPECT_THAT(refusal(path, model), HasSubstr("attribute schema has 7000 values; valid: 1"));
  storage::File file = storage::File::create(path);
  file.write_attribute("schema", "two\nlines" + std::string(1000, 'x'));
  file.close();
  EXPECT_THAT(refusal(path, model), AllOf(HasSubstr("'two\\nlines"), HasSubstr("xxx...'")));
}

}  // namespace
}  // namespace cadenza::model
