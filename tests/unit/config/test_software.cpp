// SPDX-License-Identifier: Apache-2.0
// cluster.software: a known stack, or a file of one, gives keys that the experiment leaves out.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cadenza/config/sweep.hpp"
#include "support.hpp"

namespace cadenza::config::test_software {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kFile =
    "name: mine\n"                 // 1
    "source: a test\n"             // 2
    "residual: stored\n"           // 3
    "overlaps_tensor: false\n"     // 4
    "kept: {width: 8, ffn: 6}\n";  // 5

Software software_with(const std::string& file, const Overrides& overrides) {
  const auto read = [&](const std::string& path, const std::string& valid) {
    EXPECT_EQ(path, "stacks/mine.yaml");
    EXPECT_THAT(valid, HasSubstr("cluster.software"));
    return file;
  };
  return parse_experiment(kGood, "e.yaml", overrides, nullptr, HeadsOf::model, read)
      .cluster.software;
}

std::string refusal(const std::string& file) {
  try {
    software_with(file, {"cluster.software=stacks/mine.yaml"});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  ADD_FAILURE() << "accepted " << file;
  return "";
}

TEST(Software, IsThisProgramUnlessTheExperimentSaysOtherwise) {
  EXPECT_EQ(parse(kGood).cluster.software, Software{});
  EXPECT_EQ(parse(kGood, {"cluster.software=cadenza"}).cluster.software, Software{});
  EXPECT_EQ(parse(kGood, {"cluster.software={}"}).cluster.software, Software{});
  EXPECT_EQ(parse(kGood, {"cluster.software=\"\""}).cluster.software, Software{});
}

TEST(Software, HasTheKeysOfItsFile) {
  const Software mine = software_with(kFile, {"cluster.software=stacks/mine.yaml"});
  EXPECT_EQ(mine.name, "mine");
  EXPECT_EQ(mine.residual, Precision::stored);
  EXPECT_EQ(mine.gradients, Precision::sums);
  EXPECT_FALSE(mine.overlaps_tensor);
  EXPECT_EQ(mine.kept, (KeptBytes{8, 0, 0, 0, 6, 0, 0}));
  EXPECT_TRUE(mine.says_kept());
}

TEST(Software, HasWhatTheExperimentWritesFirst) {
  const Software mine = software_with(
      kFile, {"cluster.software={file: stacks/mine.yaml, overlaps_tensor: true, kept: {ffn: 8}}"});
  EXPECT_EQ(mine.name, "mine");
  EXPECT_TRUE(mine.overlaps_tensor);
  EXPECT_EQ(mine.kept, (KeptBytes{8, 0, 0, 0, 8, 0, 0}));
}

TEST(Software, IsWrittenWithAllItsKeys) {
  const Experiment experiment = parse(kGood, {"cluster.software=megatron"});
  EXPECT_EQ(experiment.cluster.software.name, "megatron");
  EXPECT_NE(experiment.cluster.software, Software{});
  EXPECT_EQ(parse(to_yaml(experiment)).cluster.software, experiment.cluster.software);
  EXPECT_EQ(experiment.cluster.even().software, experiment.cluster.software);
}

TEST(Software, CanBeAnAxisOfASweep) {
  const Sweep sweep = parse_sweep(
      "base: e.yaml\naxes: {cluster.software: [cadenza, megatron, torchtitan]}\n", "s.yaml");
  const Base base = parse_base(kGood, "e.yaml");
  std::vector<std::string> names;
  for (const SweepPoint& point : points_of(sweep)) {
    names.push_back(experiment_of(point, base, {}).cluster.software.name);
  }
  EXPECT_THAT(names, ::testing::ElementsAre("cadenza", "megatron", "torchtitan"));
}

/// A stack of the folder is known by the name of its file, which is its own.
TEST(Software, FilesHaveTheirNames) {
  namespace fs = std::filesystem;
  int files = 0;
  for (const auto& entry :
       fs::directory_iterator(fs::path(__FILE__).parent_path() / "../../../inputs/software")) {
    const std::string name = entry.path().stem().string();
    EXPECT_EQ(parse(kGood, {"cluster.software=" + name}).cluster.software.name, name);
    ++files;
  }
  EXPECT_GE(files, 2);
}

TEST(Software, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(error_of(kGood, {"cluster.software=megatorn"}),
              AllOf(StartsWith("--set cluster.software=megatorn: found megatorn; valid: cadenza, "),
                    HasSubstr("megatron, torchtitan"), HasSubstr("inputs/software")));
  EXPECT_THAT(error_of(kGood, {"cluster.software=[megatron]"}), HasSubstr("a block of keys"));
  EXPECT_THAT(error_of(kGood, {"cluster.software={file: [a]}"}), HasSubstr("found a list"));
  EXPECT_THAT(error_of(kGood, {"cluster.software=no/such.yaml"}),
              StartsWith("no/such.yaml: cannot be read: No such file or directory; valid: "
                         "cluster.software with a stack's YAML file"));
  EXPECT_THAT(error_of(kGood, {"cluster.software={overlaps_tensor: 2}"}),
              HasSubstr("found 2; valid: "));
}

TEST(Software, OfOthersNothingIsOffloaded) {
  EXPECT_THAT(error_of(kGood, {"cluster.software=megatron", "run.offload=activations"}),
              HasSubstr("found activations with cluster.software = megatron, of whose layers"));
}

TEST(Software, RefusesFilesThatAreNone) {
  EXPECT_THAT(refusal("name: mine\n"), HasSubstr("source: found nothing; valid: a text"));
  EXPECT_THAT(refusal("source: mine\n"), HasSubstr("name: found nothing; valid: a text"));
  EXPECT_THAT(refusal("name: a\nsource: b\noverlap_tensor: 3\n"),
              AllOf(HasSubstr("stacks/mine.yaml:3: overlap_tensor: found an unknown key"),
                    HasSubstr("'overlaps_tensor'")));
  EXPECT_THAT(refusal("name: a\nsource: b\noverlaps_tensor: many\n"),
              HasSubstr("stacks/mine.yaml:3: cluster.software.overlaps_tensor: found many"));
  EXPECT_THAT(refusal("name: [a\n"), StartsWith("stacks/mine.yaml:"));
  EXPECT_THAT(refusal(""), StartsWith("stacks/mine.yaml:"));
}

}  // namespace
}  // namespace cadenza::config::test_software
