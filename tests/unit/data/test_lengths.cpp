// SPDX-License-Identifier: Apache-2.0
// Lengths from files: histograms with the published sampling rules, packed sequences as published.
#include <cmath>
#include <map>

#include "support.hpp"

namespace cadenza::data::test_lengths {
namespace {

using config::Distribution;
using config::DrawRule;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kUncut = std::int64_t{1} << 40;

std::string shipped(const std::string& name) {
  const auto root = std::filesystem::path(__FILE__).parent_path() / "../../..";
  return (root / "inputs/lengths" / name).string();
}

config::Data from(Distribution distribution, const std::string& path) {
  config::Data data;
  data.source = config::Source::synthetic;
  data.max_document = kUncut;
  data.lengths.distribution = distribution;
  data.lengths.path = path;
  return data;
}

std::vector<std::int64_t> lengths(const config::Data& data, std::uint64_t seed = 42) {
  const auto corpus = open_corpus(data, 50, seed);
  return {corpus->lengths().begin(), corpus->lengths().end()};
}

/// The complaint about a file with these bytes.
std::string complaint(Distribution distribution, const std::string& bytes) {
  const TemporaryFolder folder;
  try {
    lengths(from(distribution, folder.write("lengths", bytes)));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

TEST(LengthFile, IsTakenInOrderWhateverTheNumberOfDocuments) {
  const TemporaryFolder folder;
  config::Data data = from(Distribution::file, folder.write("lines.txt", "5\n\n 300 \r\n1"));
  data.documents = 2;
  EXPECT_THAT(lengths(data), ElementsAre(5, 300, 1));
  data.lengths.path = folder.write("list.json", " [5, 300,\n 1]\n");
  EXPECT_THAT(lengths(data), ElementsAre(5, 300, 1));
  data.max_document = 200;
  EXPECT_THAT(lengths(data), ElementsAre(5, 200, 100, 1));
}

TEST(LengthFile, SaysWhatIsWrongWithIt) {
  const Distribution file = Distribution::file;
  EXPECT_THAT(complaint(file, ""), HasSubstr("it is empty"));
  EXPECT_THAT(complaint(file, "\n \n"), HasSubstr("found no length"));
  EXPECT_THAT(complaint(file, "[]"), HasSubstr("found an empty list"));
  EXPECT_THAT(complaint(file, "5\nseven\n"), HasSubstr("found 'seven' in line 2"));
  EXPECT_THAT(complaint(file, "5\n0\n"), HasSubstr("found '0' in line 2"));
  EXPECT_THAT(complaint(file, "-3"), HasSubstr("found '-3' in line 1"));
  EXPECT_THAT(complaint(file, "5 6"), HasSubstr("found '5 6' in line 1"));
  EXPECT_THAT(complaint(file, "99999999999999999999"), HasSubstr("in line 1"));
  EXPECT_THAT(complaint(file, std::to_string(kUncut + 1)), HasSubstr("an integer in [1, "));
  EXPECT_THAT(complaint(file, "[5,\n6"), HasSubstr("broken JSON in line 2"));
  EXPECT_THAT(complaint(file, "[5, 1.5]"), HasSubstr("found 1.5 as entry 1"));
  EXPECT_THAT(complaint(file, "4\n3.5\n"), HasSubstr("found '3.5' in line 2"));
  EXPECT_THAT(complaint(file, "[4.0]"), HasSubstr("found 4.0 as entry 0"));
  EXPECT_THAT(complaint(file, "[-3]"), HasSubstr("found -3 as entry 0"));
  EXPECT_THAT(complaint(file, "[1e999]"), HasSubstr("out of range in line 1"));
  for (const char* large :
       {"9223372036854775808", "18446744073709551615", "18446744073709551616"}) {
    EXPECT_THAT(complaint(file, fmt::format("[{}]", large)), HasSubstr("as entry 0"));
  }
  EXPECT_THAT(complaint(file, "[[[[["), HasSubstr("found a list as entry 0"));
  EXPECT_THAT(complaint(file, "[{\"a\":"), HasSubstr("found an object as entry 0"));
  EXPECT_THAT(complaint(file, "[\"\x1b[2J\"]"), HasSubstr("broken JSON in line 1"));
  EXPECT_EQ(complaint(file, std::to_string(kUncut)), "");
}

TEST(LengthFile, ThatCannotBeReadIsNamed) {
  for (const auto distribution : {Distribution::file, Distribution::histogram}) {
    const TemporaryFolder folder;
    for (const std::string& path : {folder / "none.json", folder.path()}) {
      try {
        lengths(from(distribution, path));
        ADD_FAILURE() << path;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::data);
        EXPECT_THAT(error.what(), HasSubstr("data.lengths.path: '" + path + "': cannot be read: "));
      }
    }
  }
}

TEST(Histogram, SaysWhatIsWrongWithIt) {
  const Distribution histogram = Distribution::histogram;
  EXPECT_THAT(complaint(histogram, "{}"), HasSubstr("found no list"));
  EXPECT_THAT(complaint(histogram, "[]"), HasSubstr("found an empty list"));
  EXPECT_THAT(complaint(histogram, "[[5, 1], ["), HasSubstr("broken JSON in line 1"));
  EXPECT_THAT(complaint(histogram, "[[5, 1], [6]]"), HasSubstr("found a row of 1 as entry 1"));
  EXPECT_THAT(complaint(histogram, "[[1, 2, 3]]"), HasSubstr("entry 0"));
  EXPECT_THAT(complaint(histogram, "[[1.5, 2]]"), HasSubstr("1.5"));
  EXPECT_THAT(complaint(histogram, "[[[[1]], 1]]"), HasSubstr("found a list as"));
  EXPECT_THAT(complaint(histogram, "[[9, 9223372036854775807], [9, 9223372036854775807]]"),
              HasSubstr("entry 0"));
  EXPECT_THAT(complaint(histogram, "[5, 6]"), HasSubstr("found 5 as entry 0"));
  EXPECT_THAT(complaint(histogram, "[[0, 1]]"), HasSubstr("found 0 as length of entry 0"));
  EXPECT_THAT(complaint(histogram, "[[5, -1]]"), HasSubstr("found -1 as count of entry 0"));
  EXPECT_THAT(complaint(histogram, "[[5, 100000000], [6, 1]]"), HasSubstr("more than 100000000"));
  EXPECT_THAT(complaint(histogram, "[[5, 0]]"), HasSubstr("found no document"));
}

TEST(Histogram, IndependentDrawsFollowTheCounts) {
  const TemporaryFolder folder;
  config::Data data =
      from(Distribution::histogram, folder.write("h", "[[10, 1], [7, 0], [30, 3]]"));
  data.documents = 20000;
  data.lengths.stretch = 1.5;
  std::map<std::int64_t, int> counts;
  for (const std::int64_t length : lengths(data)) ++counts[length];
  ASSERT_EQ(counts.size(), 2u);
  EXPECT_NEAR(counts[15], 5000, 250);
  EXPECT_NEAR(counts[45], 15000, 250);
  EXPECT_EQ(lengths(data, 1), lengths(data, 1));
  EXPECT_NE(lengths(data, 1), lengths(data, 2));
}

TEST(Histogram, ProlongHasLongDocumentsFirst) {
  const TemporaryFolder folder;
  config::Data data =
      from(Distribution::histogram, folder.write("h", "[[100, 4], [65535, 2], [70000, 50]]"));
  data.lengths.rule = DrawRule::prolong;
  data.lengths.stretch = 4;
  const auto found = lengths(data);
  ASSERT_EQ(found.size(), 4u * 50 + 6 / 2);
  const auto replaced = std::count(found.begin(), found.begin() + 200, 4 * 65536);
  EXPECT_NEAR(replaced, 60, 20);
  EXPECT_EQ(std::count(found.begin(), found.begin() + 200, 70000), 200 - replaced);
  for (auto i = found.begin() + 200; i != found.end(); ++i)
    EXPECT_THAT(*i, ::testing::AnyOf(112, 65536));
}

TEST(Histogram, PretrainDrawsTenThousandStretched) {
  config::Data data = from(Distribution::histogram, shipped("pretrain.json"));
  data.lengths.rule = DrawRule::pretrain;
  data.lengths.stretch = 2;
  const auto found = lengths(data);
  ASSERT_EQ(found.size(), 10000u);
  double tokens = 0, of_long = 0;
  int longs = 0;
  for (const std::int64_t length : found) {
    EXPECT_EQ(length % 16, 0);
    tokens += static_cast<double>(length);
    if (length < 2 * 65536) continue;
    of_long += static_cast<double>(length);
    ++longs;
  }
  // Published: 4.1 % of the documents (2112 of 51608) hold 55 % of the tokens.
  EXPECT_NEAR(longs, 409, 60);
  EXPECT_NEAR(of_long / tokens, 0.55, 0.04);
}

/// Documents per sequence and the mean of sum(length^2) / C^2 over the first sequences.
struct Packed {
  double documents = 0;
  double squares = 0;
};

Packed pack(const config::Data& data, std::int64_t tokens, std::int64_t sequences) {
  config::Experiment experiment;
  experiment.batch.tokens = tokens;
  experiment.batch.microbatch = tokens;
  const auto corpus = open_corpus(data, 50, 42);
  const Packer packer(*corpus, experiment);
  Packed sum;
  for (std::int64_t step = 0; step < sequences; ++step) {
    for (const std::int64_t length : packer.batch(step).lengths()) {
      const double share = static_cast<double>(length) / static_cast<double>(tokens);
      sum.documents += 1;
      sum.squares += share * share;
    }
  }
  sum.documents /= static_cast<double>(sequences);
  sum.squares /= static_cast<double>(sequences);
  return sum;
}

TEST(Histogram, PretrainPacksAsPublished) {
  for (const std::int64_t tokens : {131072, 262144, 524288}) {
    config::Data data = from(Distribution::histogram, shipped("pretrain.json"));
    data.lengths.rule = DrawRule::pretrain;
    data.lengths.stretch = static_cast<double>(tokens) / 65536;
    const Packed found = pack(data, tokens, 480);
    EXPECT_NEAR(found.documents, 9.8, 0.7) << tokens;
    EXPECT_NEAR(found.squares, 0.47, 0.03) << tokens;
  }
}

TEST(Histogram, ProlongPacksAsPublished) {
  const std::map<std::int64_t, double> squares = {{131072, 0.71}, {262144, 0.55}, {524288, 0.50}};
  for (const auto& [tokens, expected] : squares) {
    config::Data data = from(Distribution::histogram, shipped("prolong.json"));
    data.lengths.rule = DrawRule::prolong;
    data.lengths.stretch = static_cast<double>(tokens) / 65536;
    EXPECT_NEAR(pack(data, tokens, 40).squares, expected, 0.08) << tokens;
  }
}

TEST(PackedSequences, AreWholeSequencesAsPublished) {
  const std::map<std::string, std::int64_t> lists = {
      {"packed_pretrain_128K.txt", 480}, {"packed_pretrain_256K.txt", 240},
      {"packed_pretrain_384K.txt", 160}, {"packed_pretrain_512K.txt", 240},
      {"packed_prolong_128K.txt", 480},  {"packed_prolong_256K.txt", 240},
      {"packed_prolong_384K.txt", 160},  {"packed_prolong_512K.txt", 240}};
  for (const auto& [name, sequences] : lists) {
    const std::int64_t tokens = 1024 * std::stoll(name.substr(name.rfind('_') + 1));
    const auto found = lengths(from(Distribution::file, shipped(name)));
    std::int64_t total = 0;
    for (const std::int64_t length : found) {
      const std::int64_t begin = total / tokens;
      total += length;
      ASSERT_EQ((total - 1) / tokens, begin) << name << ": a document across two sequences";
    }
    EXPECT_EQ(total, sequences * tokens) << name;
  }
}

}  // namespace
}  // namespace cadenza::data::test_lengths
