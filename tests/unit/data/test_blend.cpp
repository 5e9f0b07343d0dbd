// SPDX-License-Identifier: Apache-2.0
// Blends: shares after every document, order and repetition, and what is refused.
#include "data/blend.hpp"

#include <cmath>
#include <memory>
#include <random>

#include "support.hpp"

namespace cadenza::data::test_blend {
namespace {

using Lengths = std::vector<std::int64_t>;

/// Corpora whose tokens have the corpus in their hundreds and count within it.
std::vector<std::unique_ptr<Corpus>> corpora(const std::vector<Lengths>& all) {
  std::vector<std::unique_ptr<Corpus>> made;
  for (const Lengths& lengths : all) {
    made.push_back(std::make_unique<MemoryCorpus>(numbered(lengths)));
  }
  return made;
}

BlendCorpus blend(const std::vector<Lengths>& all, const std::vector<double>& weights,
                  std::int64_t most = 100000) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < all.size(); ++i) names.push_back(std::string(1, char('a' + i)));
  return {corpora(all), names, weights, most};
}

/// Documents of which only lengths are asked.
class Lengthy : public Corpus {
 public:
  explicit Lengthy(Lengths lengths) : lengths_(std::move(lengths)) {}
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t, Range, std::span<Token>) const override { ADD_FAILURE(); }

 private:
  Lengths lengths_;
};

std::int64_t longest(const std::vector<Lengths>& all) {
  std::int64_t most = 0;
  for (const Lengths& lengths : all) most = std::max(most, std::ranges::max(lengths));
  return most;
}

/// Writes text files of one letter each, of these lengths in tokens (with begin and end).
config::Data texts(const TemporaryFolder& folder, const std::vector<Lengths>& all,
                   std::vector<double> weights) {
  config::Data data;
  data.source = config::Source::text;
  data.weights = std::move(weights);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string name(1, char('a' + i));
    for (std::size_t j = 0; j < all[i].size(); ++j) {
      const std::string file = name + "/" + std::to_string(1000 + j);
      folder.write(file, std::string(static_cast<std::size_t>(all[i][j] - 2), name.front()));
    }
    data.path.push_back(folder / name);
  }
  return data;
}

/// Checks every prefix of the blend of `data`, whose entries have files of one letter: shares
/// within a document, the documents of an entry in turn, and an end as soon as all have been read.
void check(const config::Data& data, const std::vector<Lengths>& all) {
  const auto corpus = open_corpus(data, kByteVocabulary, 1);
  const double sum = std::accumulate(data.weights.begin(), data.weights.end(), 0.0);
  double pass = 0;
  for (std::size_t e = 0; e < all.size(); ++e) {
    const auto tokens = std::accumulate(all[e].begin(), all[e].end(), std::int64_t{0});
    pass = std::max(pass, static_cast<double>(tokens) / (data.weights[e] / sum));
  }
  std::vector<std::int64_t> tokens(all.size()), documents(all.size());
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < std::ssize(corpus->lengths()); ++i) {
    bool ended = static_cast<double>(total) >= pass;
    for (std::size_t e = 0; e < all.size(); ++e) ended &= documents[e] >= std::ssize(all[e]);
    ASSERT_FALSE(ended) << "all were read before";
    const auto text = document(*corpus, i);
    const auto entry = static_cast<std::size_t>(text.at(1) - 'a');
    ASSERT_EQ(std::ssize(text),
              all[entry][static_cast<std::size_t>(documents[entry]) % all[entry].size()]);
    ++documents[entry];
    tokens[entry] += std::ssize(text);
    total += std::ssize(text);
    for (std::size_t e = 0; e < all.size(); ++e) {
      const double share = data.weights[e] / sum * static_cast<double>(total);
      ASSERT_LE(std::abs(static_cast<double>(tokens[e]) - share),
                static_cast<double>(longest(all)) + 1e-6)
          << "entry " << e << " after " << total << " tokens";
    }
  }
  for (std::size_t e = 0; e < all.size(); ++e) {
    ASSERT_GE(documents[e], std::ssize(all[e])) << "entry " << e << " was not read once";
  }
  ASSERT_GE(static_cast<double>(total), pass - 1e-6);
}

TEST(Blend, SharesOfEqualDocuments) {
  const BlendCorpus corpus = blend({{1, 1, 1, 1}, {1, 1}}, {2, 1});
  // Six tokens, each entry once: 'a' twice as often.
  EXPECT_EQ(Lengths(corpus.lengths().begin(), corpus.lengths().end()), Lengths(6, 1));
  std::vector<Token> found;
  for (const auto& one : documents(corpus)) found.push_back(one.front());
  EXPECT_EQ(found, (std::vector<Token>{0, 0, 1, 2, 1, 3}));
}

TEST(Blend, SmallEntriesAreRepeatedUntilAllAreRead) {
  const BlendCorpus corpus = blend({{5, 5}, Lengths(30, 1)}, {0.5, 0.5});
  std::vector<Token> found;
  for (const auto& one : documents(corpus)) {
    if (one.size() == 5) found.push_back(one.front());
  }
  EXPECT_EQ(found, (std::vector<Token>{0, 5, 0, 5, 0, 5})) << "30 tokens of each";
  EXPECT_EQ(corpus.lengths().size(), 36U);
}

TEST(Blend, PrefixesOfManySmallWeights) {
  // Where an entry has half of the weight, taking turns would leave it far behind.
  TemporaryFolder folder;
  std::vector<Lengths> all(21, Lengths(10, 4));
  all[0] = Lengths(200, 4);
  std::vector<double> weights(21, 0.025);
  weights[0] = 0.5;
  check(texts(folder, all, weights), all);
}

TEST(Blend, PrefixesOfRandomDocuments) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 12; ++trial) {
    TemporaryFolder folder;
    std::vector<Lengths> all(1 + random() % 5);
    std::vector<double> weights;
    for (Lengths& lengths : all) {
      const int scale = trial % 2 == 0 ? 10 : 200;
      lengths.resize(1 + random() % 12);
      for (auto& length : lengths) length = 3 + random() % scale;
      weights.push_back(0.05 + static_cast<double>(random() % 1000) / 100);
    }
    SCOPED_TRACE(trial);
    ASSERT_NO_FATAL_FAILURE(check(texts(folder, all, weights), all));
  }
}

TEST(Blend, DocumentsAreCutBefore) {
  TemporaryFolder folder;
  config::Data data;
  data.source = config::Source::tokens;
  data.document_end = 9;
  data.max_document = 2;
  data.weights = {3, 1};
  data.path = {folder.write("a.bin", as_bytes<std::uint16_t>({1, 2, 3, 9, 4, 9})),
               folder.write("b.bin", as_bytes<std::uint16_t>({7, 8}))};
  // So long documents leave room for those of other entries.
  EXPECT_EQ(documents(*open_corpus(data, 10, 1)),
            (std::vector<std::vector<Token>>{{1, 2}, {7, 8}, {3, 9}, {4, 9}}));
}

TEST(Blend, WithoutWeightsEntriesFollowOneAnother) {
  TemporaryFolder folder;
  config::Data data = texts(folder, {{3, 4}, {5}}, {});
  const auto corpus = open_corpus(data, kByteVocabulary, 1);
  EXPECT_EQ(Lengths(corpus->lengths().begin(), corpus->lengths().end()), (Lengths{3, 4, 5}));
}

TEST(Blend, RefusesToRepeatTooOften) {
  expect_error(ExitCode::data,
               {"data.weights: found 999 for 'a', whose 2 documents of 4 tokens would be repeated "
                "2.5e+03 times in a pass of 5e+03 documents and 1e+04 tokens",
                "valid: weights nearer to the sizes of the entries, with at most 5000 documents"},
               [] {
                 blend({{2, 2}, Lengths(10, 1)}, {999, 1}, 5000);
               });
  EXPECT_EQ(blend({{2, 2}, Lengths(10, 1)}, {999, 1}, 5100).lengths().size(), 5005U);
  for (const std::vector<double>& weights :
       {std::vector<double>{1e-300, 1}, {1, 1e300}, {5e-324, 1}, {5e-324, 1.7e308}}) {
    expect_error(ExitCode::data, {"data.weights: found", "for 'b'", "at most 100000 documents"},
                 [&] {
                   blend({{1}, {1}}, weights);
                 });
  }
  EXPECT_EQ(blend({{1}, {1}}, {1.7e308, 1.7e308}).lengths().size(), 2U);
  // Few documents, but more tokens than positions may have.
  std::vector<std::unique_ptr<Corpus>> huge;
  huge.push_back(std::make_unique<Lengthy>(Lengths{std::int64_t{1} << 59}));
  huge.push_back(std::make_unique<Lengthy>(Lengths{std::int64_t{1} << 58}));
  expect_error(ExitCode::data, {"pass of 7 documents and 2.31e+18 tokens"}, [&] {
    BlendCorpus(std::move(huge), {"a", "b"}, {1, 3}, 100000);
  });
}

}  // namespace
}  // namespace cadenza::data::test_blend
