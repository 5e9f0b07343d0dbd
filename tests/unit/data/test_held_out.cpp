// SPDX-License-Identifier: Apache-2.0
// data.validation: every document is in one part, whole, whatever the seed.
#include <algorithm>
#include <set>

#include "data/held_out.hpp"
#include "data/packing.hpp"
#include "support.hpp"

namespace cadenza::data::test_held_out {
namespace {

using ::testing::HasSubstr;

std::vector<std::vector<Token>> part_of(const std::vector<std::int64_t>& lengths, double share,
                                        Part part) {
  return documents(PartCorpus(std::make_unique<MemoryCorpus>(numbered(lengths)), share, part));
}

TEST(HeldOut, EveryDocumentIsInOnePartInItsOrder) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 500; ++i) lengths.push_back(1 + i * 7 % 13);
  const auto all = documents(numbered(lengths));
  for (const double share : {0.01, 0.1, 0.5, 0.9}) {
    const auto training = part_of(lengths, share, Part::training);
    const auto validation = part_of(lengths, share, Part::validation);
    EXPECT_EQ(training.size() + validation.size(), all.size());
    EXPECT_NEAR(static_cast<double>(validation.size()), 500 * share, 40);
    // Tokens are numbered: merged by their first token, the parts are the corpus.
    std::vector<std::vector<Token>> merged;
    std::ranges::merge(
        training, validation, std::back_inserter(merged), {},
        [](const auto& d) { return d.front(); }, [](const auto& d) { return d.front(); });
    EXPECT_EQ(merged, all) << share;
  }
}

TEST(HeldOut, ALargerShareHoldsOutTheSameAndMore) {
  const std::vector<std::int64_t> lengths(300, 2);
  const auto few = part_of(lengths, 0.1, Part::validation);
  const auto more = part_of(lengths, 0.3, Part::validation);
  EXPECT_TRUE(std::ranges::includes(more, few));
  EXPECT_GT(more.size(), few.size());
}

TEST(HeldOut, PiecesOfADocumentStayTogether) {
  config::Data data;
  data.source = config::Source::synthetic;
  data.documents = 200;
  data.lengths.distribution = config::Distribution::constant;
  data.lengths.median = 10;
  data.max_document = 4;
  data.validation = {"0.2"};
  for (const auto& corpus :
       {open_corpus(data, 50, 1), open_corpus(data, 50, 1, {}, Part::validation)}) {
    const auto lengths = corpus->lengths();
    ASSERT_EQ(lengths.size() % 3, 0U);
    for (std::size_t i = 0; i < lengths.size(); ++i) EXPECT_EQ(lengths[i], i % 3 == 2 ? 2 : 4);
  }
}

TEST(HeldOut, AShareWithoutDocumentsIsRefused) {
  const auto message = [](double share, std::int64_t count) {
    try {
      part_of(std::vector<std::int64_t>(static_cast<std::size_t>(count), 3), share, Part::training);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::data);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message(1e-9, 8), HasSubstr("data.validation: found a share of 1e-09, which holds "
                                          "out 0 of 8 documents"));
  EXPECT_THAT(message(1 - 1e-9, 8), HasSubstr("which holds out 8 of 8 documents"));
  EXPECT_EQ(message(0.5, 100), "no error");
}

}  // namespace
}  // namespace cadenza::data::test_held_out
