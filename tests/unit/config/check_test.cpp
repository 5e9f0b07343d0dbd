// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

namespace cadenza::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Check, HeadsFitTheModel) {
  EXPECT_EQ(error_of(changed("heads: 4", "heads: 5")),
            "e.yaml:5: model.heads: found 5, which does not divide model.d_model = 64; valid: a "
            "divisor of it");
  EXPECT_THAT(error_of(kGood, {"model.heads=64"}),
              AllOf(StartsWith("--set model.heads=64: found 64, "), HasSubstr("an even number")));
  EXPECT_EQ(error_of(kGood, {"model.kv_heads=3"}),
            "--set model.kv_heads=3: found 3, which does not divide model.heads = 4; valid: a "
            "divisor of it");
  EXPECT_THAT(error_of(kGood, {"model.kv_heads=8"}), HasSubstr("does not divide"));
}

TEST(Check, ANameStaysInsideTheRunsFolder) {
  EXPECT_THAT(error_of(changed("name: small", "name: ../small")),
              StartsWith("e.yaml:1: name: found ../small; valid: a name without '/'"));
}

TEST(Check, TheBatchIsWholeMicrobatchesOnEveryRank) {
  EXPECT_EQ(error_of(kGood, {"parallel.data=3"}),
            "e.yaml:10: batch.tokens: found 4096, no multiple of batch.microbatch x parallel.data "
            "= 512 x 3 = 1536; valid: e.g. 4608");
  EXPECT_EQ(
      error_of(kGood, {"batch.tokens=100"}),
      "--set batch.tokens=100: found 100, a batch smaller than one microbatch "
      "(batch.microbatch = 512); valid: a multiple of batch.microbatch x parallel.data = 512");
  EXPECT_EQ(parse(kGood, {"parallel.data=8"}).ranks(), 8);
  // The largest accepted values do not overflow the check itself.
  EXPECT_THAT(error_of(kGood, {"parallel.data=1048576", "batch.microbatch=2147483647",
                               "batch.tokens=1099511627776"}),
              HasSubstr("no multiple"));
}

TEST(Check, OnlyDataParallelism) {
  for (const std::string key : {"pipeline", "tensor", "context"}) {
    EXPECT_EQ(error_of(kGood, {"parallel." + key + "=2"}),
              "--set parallel." + key +
                  "=2: found 2; valid: 1 (this version runs data "
                  "parallelism)");
  }
}

TEST(Check, TextNeedsTheByteVocabulary) {
  EXPECT_THAT(error_of(kGood, {"model.vocab=258"}), HasSubstr("valid: an integer >= 259"));
  EXPECT_EQ(parse(kGood, {"model.vocab=259"}).model.vocab, 259);
  EXPECT_EQ(parse(kGood, {"model.vocab=8", "data.source=synthetic"}).model.vocab, 8);
}

TEST(Check, TokensNeedTheirDocumentEnd) {
  const std::string tokens = "data.source=tokens";
  EXPECT_THAT(error_of(kGood, {tokens}), HasSubstr("data.document_end: found nothing, but"));
  EXPECT_THAT(error_of(kGood, {tokens, "data.document_end=300"}),
              HasSubstr("found 300, outside the vocabulary; valid: an integer in [0, model.vocab = "
                        "300)"));
  EXPECT_EQ(parse(kGood, {tokens, "data.document_end=299"}).data.document_end, 299);
  const Overrides large = {tokens, "model.vocab=100000", "data.document_end=65536"};
  EXPECT_THAT(error_of(kGood, large), HasSubstr("data.dtype = uint16"));
  Overrides wide = large;
  wide.push_back("data.dtype=uint32");
  EXPECT_EQ(parse(kGood, wide).data.document_end, 65536);
}

TEST(Check, SourcesNeedTheirPath) {
  EXPECT_THAT(error_of(kGood, {"data.path=[]"}),
              StartsWith("--set data.path=[]: found nothing, but data.source = text requires it"));
  EXPECT_THAT(error_of(kGood, {"data={source: tokens, document_end: 0}"}),
              HasSubstr("data.path: found nothing"));
  EXPECT_TRUE(parse(kGood, {"data={source: synthetic}"}).data.path.empty());
}

TEST(Check, LengthsFitTheirDistribution) {
  const std::string synthetic = "data.source=synthetic";
  EXPECT_THAT(error_of(kGood, {synthetic, "data.lengths.distribution=list"}),
              HasSubstr("data.lengths.values: found an empty list"));
  EXPECT_THAT(error_of(kGood, {synthetic, "data.lengths.min=9", "data.lengths.max=8"}),
              HasSubstr("found 9, more than data.lengths.max = 8"));
  EXPECT_THAT(error_of(kGood, {synthetic, "data.lengths.min=513"}),
              HasSubstr("more than data.max_document = 512"));
  const Overrides constant = {synthetic, "data.lengths={distribution: constant, median: 7.5}"};
  EXPECT_THAT(error_of(kGood, constant), HasSubstr("found 7.5, but"));
  EXPECT_NO_THROW(parse(kGood, {"data.lengths.min=513"})) << "text has no drawn lengths";
}

TEST(Check, DocumentsOfOneToken) {
  EXPECT_THAT(error_of(kGood, {"data.max_document=1"}), HasSubstr("documents of one token"));
  EXPECT_THAT(error_of(kGood, {"batch.microbatch=1"}),
              HasSubstr("found 1; valid: an integer in [2"));
}

TEST(Check, TwoBetas) {
  EXPECT_EQ(error_of(kGood, {"optimizer.betas=[0.9]"}),
            "--set optimizer.betas=[0.9]: found 1 values; valid: two, e.g. [0.9, 0.95]");
}

std::string ranks_error(const Experiment& experiment, int ranks) {
  try {
    check_ranks(experiment, ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "";
}

TEST(CheckRanks, CountsTrainersAndServers) {
  const Experiment e = parse(kGood, {"parallel.data=2", "attention.servers=1"});
  EXPECT_EQ(ranks_error(e, 3), "");
  EXPECT_EQ(ranks_error(e, 2),
            "this experiment needs 3 ranks (data 2 × pipeline 1 × tensor 1 × context 1 = 2 "
            "trainers, 1 dedicated attention server); found 2: start it with mpirun -n 3");
  EXPECT_EQ(ranks_error(parse(kGood), 4),
            "this experiment needs 1 rank (data 1 × pipeline 1 × tensor 1 × context 1 = 1 "
            "trainer); found 4: start it with mpirun -n 1");
}

}  // namespace
}  // namespace cadenza::config
