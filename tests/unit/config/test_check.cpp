// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

namespace cadenza::config::test_check {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Check, HeadsFitTheModel) {
  EXPECT_THAT(error_of(changed("heads: 4", "heads: 5")),
              StartsWith("e.yaml:5: model.heads: found 5, which does not divide model.d_model"));
  EXPECT_THAT(error_of(kGood, {"model.heads=64"}),
              AllOf(StartsWith("--set model.heads=64: found 64, "), HasSubstr("an even head_dim")));
  EXPECT_THAT(error_of(kGood, {"model.kv_heads=3"}),
              StartsWith("--set model.kv_heads=3: found 3, which does not divide model.heads"));
  EXPECT_THAT(error_of(kGood, {"model.kv_heads=8"}), HasSubstr("does not divide"));
}

TEST(Check, ANameStaysInsideTheRunsFolder) {
  EXPECT_THAT(error_of(changed("name: small", "name: ../small")),
              StartsWith("e.yaml:1: name: found ../small; valid: 1 to 100 visible characters"));
}

TEST(Check, TheBatchIsWholeMicrobatchesOnEveryRank) {
  EXPECT_THAT(error_of(kGood, {"parallel.data=3"}),
              AllOf(StartsWith("e.yaml:10: batch.tokens: found 4096, no multiple of"),
                    HasSubstr("512 x 3 = 1536; valid: e.g. 4608")));
  EXPECT_THAT(error_of(kGood, {"batch.tokens=100"}),
              StartsWith("--set batch.tokens=100: found 100, a batch smaller than one microbatch"));
  EXPECT_EQ(parse(kGood, {"parallel.data=8"}).ranks(), 8);
  // The largest accepted values do not overflow the check itself.
  EXPECT_THAT(error_of(kGood, {"parallel.data=131072", "batch.microbatch=2147483647",
                               "batch.tokens=1099511627776", "attention.placement=colocated"}),
              HasSubstr("no multiple"));
}

TEST(Check, LayoutsThatDoNotDivideSayWhatWould) {
  EXPECT_THAT(error_of(kGood, {"parallel.tensor=3"}),
              HasSubstr("parallel.tensor=3: found 3, which does not divide model.heads = 4; valid: "
                        "1, 2 or 4"));
  EXPECT_THAT(error_of(kGood, {"model.kv_heads=2", "parallel.tensor=4"}),
              HasSubstr("does not divide model.kv_heads = 2; valid: 1 or 2"));
  EXPECT_THAT(error_of(kGood, {"model.ffn=47", "parallel.tensor=2"}),
              HasSubstr("parallel.tensor=2: found 2, which does not divide model.ffn"));
  EXPECT_THAT(error_of(kGood, {"data.source=synthetic", "model.vocab=3", "parallel.tensor=4"}),
              AllOf(HasSubstr("parallel.tensor"), HasSubstr("model.vocab")));
  EXPECT_THAT(
      error_of(kGood, {"model.layers=6", "parallel.pipeline=4", "parallel.schedule=phase_aligned"}),
      AllOf(HasSubstr("parallel.pipeline=4: found 4, which does not divide model.layers = "
                      "6, with schedule phase_aligned"),
            HasSubstr("valid: 1, 2, 3 or 6, or parallel.schedule 1f1b")));
}

TEST(Check, StagesThatDoNotFitTheModelAreRefused) {
  const auto error = [](const Overrides& more) {
    Overrides all = {"model.layers=5", "attention.placement=colocated"};
    all.insert(all.end(), more.begin(), more.end());
    return error_of(kGood, all);
  };
  EXPECT_THAT(error({"parallel.pipeline=6"}),
              HasSubstr("found 6 stages for model.layers = 5; valid: at most 5"));
  EXPECT_THAT(error({"parallel.pipeline=2", "parallel.chunks=3"}),
              HasSubstr("parallel.chunks=3: found 3 of each of 2 stages, for model.layers = 5; "
                        "valid: at most 2"));
  EXPECT_THAT(error({"parallel.stages=[5]"}),
              HasSubstr("parallel.stages=[5]: found a list with parallel.pipeline = 1; valid: []"));
  EXPECT_THAT(error({"parallel.pipeline=2", "parallel.stages=[2, 2, 1]"}),
              HasSubstr("found 3 numbers; valid: parallel.pipeline x parallel.chunks = 2 x 1 = 2"));
  EXPECT_THAT(error({"parallel.pipeline=2", "parallel.stages=[2, 2]"}),
              HasSubstr("found 4 layers in all; valid: numbers with the sum model.layers = 5"));
  EXPECT_THAT(error({"parallel.pipeline=2", "parallel.stages=[5, 0]"}),
              HasSubstr("parallel.stages[1]: found 0; valid: an integer in [1, 100000]"));
  EXPECT_THAT(error({"model.layers=4", "parallel.pipeline=2", "parallel.stages=[3, 1]",
                     "parallel.schedule=phase_aligned", "attention.placement=cad"}),
              AllOf(HasSubstr("found unequal numbers with schedule phase_aligned"),
                    HasSubstr("valid: [], or parallel.schedule 1f1b")));
}

/// A combination that is refused, and a part of the reason.
struct Refused {
  Overrides overrides;
  const char* reason;
};

TEST(Check, CombinationsThatMakeNoSenseAreRefusedWithTheReason) {
  const std::vector<Refused> refused = {
      {{"parallel.context=2", "attention.placement=colocated"}, "no rank has all tokens"},
      {{"parallel.context=8", "attention.placement=ulysses"},
       "does not divide the 4 heads (model.heads / parallel.tensor) that ulysses splits; valid: "
       "1, 2 or 4"},
      {{"parallel.context=4", "attention.placement=ulysses_ring", "attention.head_parallel=3"},
       "does not divide parallel.context = 4"},
      {{"parallel.context=8", "attention.placement=ulysses_ring", "attention.head_parallel=8"},
       "does not divide model.heads / parallel.tensor = 4"},
      {{"parallel.context=4", "attention.placement=double_ring", "attention.inner_ring=3"},
       "attention.inner_ring=3: found 3, which does not divide parallel.context = 4"},
      {{"attention.placement=ring", "attention.servers=1"}, "1 dedicated servers with placement"},
      {{"parallel.tensor=2", "attention.servers=1"}, "a multiple of parallel.tensor = 2"},
      {{"attention.mixed=true"}, "with placement auto, or cad and attention.servers >= 1"},
      {{"model.layers=4", "parallel.pipeline=2", "model.tie_embeddings=true"},
       "embedding and head are on different stages"},
      {{"model.layers=4", "parallel.pipeline=2", "parallel.schedule=1f1b", "attention.servers=1"},
       "valid: phase_aligned"},
      {{"model.layers=4", "parallel.pipeline=2", "parallel.chunks=2",
        "parallel.schedule=phase_aligned", "attention.placement=cad"},
       "found 2 with schedule phase_aligned"},
      {{"model.layers=4", "parallel.chunks=2", "attention.placement=ring"}, "interleaved"},
      {{"model.layers=12", "parallel.pipeline=3", "parallel.chunks=2", "attention.placement=ring"},
       "8 microbatches per data-parallel rank and step"},
      {{"model.layers=4", "parallel.pipeline=2", "attention.placement=cad",
        "attention.inputs=keep"},
       "other servers than its forward pass; valid: resend"},
      {{"attention.inputs=keep", "run.recompute=layer"}, "which recomputes Q, K and V"},
      {{"attention.overlap=ping_pong", "attention.placement=striped"}, "sees keys of the second"},
      {{"attention.kind=window"}, "attention.kind = window requires it; valid: 1 or more tokens"},
      {{"attention.window=8"}, "found 8 with attention.kind = full; valid: only with kind window"},
      {{"attention.sinks=4"}, "valid: only with kind window"},
      {{"attention.kind=window", "attention.window=9", "attention.prefix=4"},
       "found 4 with attention.kind = window; valid: only with kind prefix"},
      {{"attention.chunk=4096"}, "valid: only with kind dual_chunk"},
      {{"attention.local=4"}, "valid: only with kind dual_chunk"},
      {{"attention.cap=paper"}, "found paper with attention.kind = full"},
      {{"attention.sparse.block=32"}, "valid: only with kind vertical_slash or xattention"},
      {{"attention.kind=vertical_slash", "attention.sparse.block=0"}, "attention.sparse.block"},
      {{"attention.kind=vertical_slash", "attention.sparse.top_p=1.5"}, "attention.sparse.top_p"},
      {{"attention.kind=vertical_slash", "attention.sparse.top_p=-0.1"}, "attention.sparse.top_p"},
      {{"attention.kind=vertical_slash", "attention.sparse.sinks=2000"},
       "attention.sparse.columns keeps only 1024"},
      {{"attention.kind=vertical_slash", "attention.sparse.slashes=8", "attention.sparse.window=9"},
       "attention.sparse.slashes keeps only 8"},
      {{"attention.kind=vertical_slash", "attention.sparse.columns=0", "attention.sparse.slashes=0",
        "attention.sparse.sinks=0", "attention.sparse.window=0"},
       "nothing but the blocks of the diagonal"},
      {{"attention.layers=[full]"}, "valid: only with another attention.kind than full"},
      {{"attention.kind=window", "attention.window=8", "attention.layers=[window, prefix]"},
       "found prefix with attention.kind window; valid: window and full"},
      {{"attention.kind=window", "attention.window=8", "attention.layers=[window, ful]"},
       "attention.layers[1]: found ful, nearest is 'full'"},
      {{"attention.kind=window", "attention.window=8", "attention.layers=window"},
       "valid: a list of full, window"},
      {{"attention.kind=vertical_slash", "attention.layers=[full, full, vertical_slash]",
        "model.layers=2"},
       "found no vertical_slash for any of 2 layers; valid: at least one"},
      {{"attention.kind=dual_chunk", "attention.layers=[dual_chunk, full]"},
       "whose keys lie at other positions"},
      {{"attention.kind=window", "attention.window=8", "attention.layers=[window, window, full]",
        "model.layers=4", "parallel.pipeline=2", "attention.placement=cad"},
       "the same kinds in the same order in all stages, or another parallel.schedule"},
      {{"attention.kind=window", "attention.window=8", "attention.layers=[window, window, full]",
        "model.layers=4", "parallel.pipeline=2", "attention.placement=cad", "attention.servers=1"},
       "at once; valid: the same kinds in the same order in all stages"},
      {{"attention.kind=xattention", "attention.layers=[xattention, full]", "model.layers=4",
        "parallel.pipeline=2", "attention.placement=cad"},
       "several stages at once; valid: one kind, or another parallel.schedule"},
      {{"attention.kind=vertical_slash", "attention.overlap=ping_pong"},
       "half of a microbatch has a part"},
      {{"attention.kind=vertical_slash", "attention.window=8"}, "only with kind window"},
      {{"attention.kind=vertical_slash", "attention.sparse.stride=8"}, "only with kind xattention"},
      {{"attention.kind=vertical_slash", "attention.sparse.threshold=1"},
       "only with kind xattention"},
      {{"attention.kind=xattention", "attention.sparse.columns=8"},
       "only with kind vertical_slash"},
      {{"attention.kind=xattention", "attention.sparse.top_p=0.5"},
       "only with kind vertical_slash"},
      {{"attention.kind=xattention", "attention.sparse.stride=24"}, "a divisor of the block"},
      {{"attention.kind=xattention", "attention.sparse.stride=1"}, "at most 64 times smaller"},
      {{"attention.kind=xattention", "attention.sparse.block=8"}, "a divisor of the block"},
      {{"attention.kind=xattention", "attention.sparse.threshold=0"}, "(0, 1]"},
      {{"attention.kind=xattention", "attention.sparse.threshold=1.5"},
       "attention.sparse.threshold"},
      {{"attention.kind=xattention", "attention.overlap=ping_pong"},
       "half of a microbatch has a part"},
      {{"attention.kind=dual_chunk", "attention.chunk=8", "attention.local=8"},
       "found 8 of attention.chunk = 8 tokens; valid: fewer"},
      {{"attention.kind=prefix", "attention.prefix=4", "attention.overlap=ping_pong"},
       "found ping_pong with attention.kind prefix"},
      {{"model.rope.scaling.factor=2"}, "found 2 with model.rope.scaling.kind = none"},
      {{"model.rope.scaling.kind=yarn", "model.rope.scaling.factor=2"},
       "found 0, but model.rope.scaling.kind = yarn requires it"},
      {{"model.rope.scaling.original_context=9"}, "valid: only with kind yarn or llama3"},
      {{"model.rope.scaling.kind=yarn", "model.rope.scaling.original_context=9",
        "model.rope.theta=1"},
       "model.rope.theta=1: found 1 with model.rope.scaling.kind = yarn, which"},
      {{"model.rope.theta=0.5"}, "valid: a finite number >= 1"},
      {{"model.rope.scaling.beta_slow=1e-300"}, "valid: a number in [1e-06, 1000000]"},
      {{"model.rope.scaling.beta_slow=40"}, "found 40 with beta_fast = 32; valid: less"},
      {{"model.rope.scaling.low_frequency=4"}, "found 4 with high_frequency = 4; valid: less"},
      {{"model.rope.scaling.mscale=1"}, "both above 0, or neither"},
      {{"batch.outliers=[9, 8]", "batch.packing=balanced"}, "do not ascend"},
      {{"batch.outliers=[8]"}, "valid: only with packing balanced"},
      {{"run.device=cuda", "run.transport=mpi"}, "valid: auto, nccl, staged"},
      {{"cluster.faults=[{rank: 0, speed: 0.5, phase: optimizer, work: dense}]"},
       "a fault of rank 0 with phase optimizer and work dense, of which there is none"},
  };
  for (const Refused& one : refused) {
    EXPECT_THAT(error_of(kGood, one.overrides), HasSubstr(one.reason)) << one.reason;
  }
}

TEST(Check, CombinationsThatMakeSenseAreTaken) {
  const std::vector<Overrides> taken = {
      {"parallel.tensor=4", "attention.servers=4"},
      {"model.layers=4", "parallel.pipeline=2", "attention.servers=1"},
      {"model.layers=4", "parallel.pipeline=2", "parallel.chunks=2", "attention.placement=zigzag",
       "parallel.context=3"},
      {"parallel.context=8", "attention.placement=ulysses_ring", "attention.head_parallel=2"},
      {"model.layers=5", "parallel.pipeline=2", "attention.placement=colocated"},
      {"model.layers=5", "parallel.pipeline=2", "parallel.schedule=1f1b", "parallel.stages=[4, 1]"},
      {"model.layers=4", "parallel.pipeline=2", "parallel.stages=[2, 2]"},
      {"attention.servers=1", "attention.mixed=true", "attention.overlap=ping_pong"},
      {"model.layers=4", "parallel.pipeline=2", "attention.placement=cad", "parallel.schedule=1f1b",
       "attention.inputs=keep"},
      {"attention.overlap=ping_pong", "run.recompute=mlp"},
      {"attention.overlap=ping_pong", "run.recompute=layer"},
      {"attention.kind=window", "attention.window=1", "attention.overlap=ping_pong"},
      {"attention.kind=window", "attention.window=8", "attention.layers=[window, full]",
       "model.layers=4", "parallel.pipeline=2", "attention.placement=cad"},
      {"attention.kind=window", "attention.window=8", "attention.layers=[window, window, full]",
       "model.layers=4", "parallel.pipeline=2", "attention.placement=cad",
       "parallel.schedule=1f1b"},
      {"attention.kind=window", "attention.window=8", "attention.sinks=100"},
      {"attention.kind=prefix", "attention.prefix=100000000"},
      {"attention.kind=prefix", "attention.prefix=0"},
      {"attention.kind=vertical_slash", "attention.sparse.slashes=0"},
      {"attention.kind=vertical_slash", "attention.sparse.slashes=8", "attention.sparse.columns=0"},
      {"attention.kind=dual_chunk", "attention.overlap=ping_pong"},
      {"attention.kind=vertical_slash", "attention.sparse.top_p=1", "attention.sparse.slashes=1"},
      {"attention.kind=vertical_slash", "attention.sparse.columns=1099511627776"},
      {"attention.kind=xattention", "attention.sparse.stride=8", "attention.sparse.threshold=1"},
      {"attention.kind=xattention", "attention.sparse.block=64", "attention.sparse.stride=1"},
      {"model.rope.scaling.kind=linear", "model.rope.scaling.factor=4"},
      {"attention.kind=dual_chunk", "attention.chunk=1", "attention.local=0",
       "attention.cap=paper"},
      {"batch.packing=balanced", "batch.outliers=[100, 200]"},
      {"attention.placement=auto", "run.memory=1000000000"},
  };
  for (const Overrides& one : taken) EXPECT_NO_THROW(parse(kGood, one)) << one.front();
}

TEST(Schedule, AutoFollowsThePlacement) {
  const auto schedule = [](const Overrides& more) {
    Overrides all = {"model.layers=4", "parallel.pipeline=2"};
    all.insert(all.end(), more.begin(), more.end());
    const Experiment e = parse(kGood, all);
    return e.pipeline_schedule();
  };
  EXPECT_EQ(schedule({"attention.placement=cad"}), PipelineSchedule::phase_aligned);
  EXPECT_EQ(schedule({"attention.placement=cad", "model.layers=5"}), PipelineSchedule::one_f_one_b);
  EXPECT_EQ(schedule({"attention.placement=cad", "parallel.stages=[1, 3]"}),
            PipelineSchedule::one_f_one_b);
  EXPECT_EQ(schedule({"attention.placement=cad", "parallel.chunks=2"}),
            PipelineSchedule::interleaved);
  EXPECT_EQ(schedule({"attention.placement=cad", "attention.servers=1"}),
            PipelineSchedule::phase_aligned);
  EXPECT_EQ(schedule({"attention.placement=colocated"}), PipelineSchedule::one_f_one_b);
  EXPECT_EQ(schedule({"attention.placement=ring", "parallel.chunks=2"}),
            PipelineSchedule::interleaved);
}

TEST(Auto, WhatAnExperimentLeavesOutIsOpen) {
  const Experiment open = parse(kGood, {"attention.placement=auto"});
  EXPECT_TRUE(open.parallel.open.pipeline && open.parallel.open.tensor &&
              open.parallel.open.context && open.parallel.open.shard);
  EXPECT_EQ(open.attention.overlap, Overlap::automatic);
  EXPECT_TRUE(open.run.recompute_open && open.attention.open.servers);
  const Experiment given = parse(kGood, {"attention.placement=auto", "parallel.tensor=2",
                                         "run.recompute=none", "parallel.context=auto"});
  EXPECT_FALSE(given.parallel.open.tensor || given.run.recompute_open);
  EXPECT_EQ(given.parallel.tensor, 2);
  EXPECT_TRUE(given.parallel.open.context);
  EXPECT_EQ(to_yaml(parse(to_yaml(given))), to_yaml(given));
  EXPECT_THAT(to_yaml(given), HasSubstr("  context: auto\n"));
}

TEST(Auto, IsTheDefaultBesideAnyOtherPlacement) {
  const Experiment e = parse(kGood, {"run.recompute=auto", "parallel.tensor=auto"});
  EXPECT_EQ(e.run.recompute, Recompute::none);
  EXPECT_EQ(e.parallel.tensor, 1);
  EXPECT_EQ(to_yaml(e), to_yaml(parse(kGood)));
}

TEST(Auto, WrongValuesAreNamedWithIt) {
  EXPECT_THAT(error_of(kGood, {"parallel.tensor=many"}),
              HasSubstr("parallel.tensor=many: found many; valid: auto, an integer in [1, "));
  EXPECT_THAT(error_of(kGood, {"run.recompute=all"}), HasSubstr("valid: auto, none, mlp"));
}

TEST(Auto, MicrobatchesAreOfWholeSequences) {
  const Overrides open = {"attention.placement=auto", "batch.microbatch=auto",
                          "data.max_document=256"};
  const Experiment e = parse(kGood, open);
  EXPECT_TRUE(e.batch.microbatch_open);
  EXPECT_EQ(e.batch.microbatch, 256);
  EXPECT_THAT(to_yaml(e), HasSubstr("  microbatch: auto\n"));
  EXPECT_EQ(to_yaml(parse(to_yaml(e))), to_yaml(e));
  EXPECT_FALSE(parse(kGood, {"attention.placement=auto"}).batch.microbatch_open);
  const auto with = [&](const char* more) {
    Overrides all = open;
    all.emplace_back(more);
    return all;
  };
  EXPECT_THAT(error_of(kGood, with("attention.placement=cad")),
              HasSubstr("placement=cad: found cad with batch.microbatch = auto, which placement "));
  for (const std::string sequence : {"0", "4294967296"}) {
    EXPECT_THAT(error_of(kGood, with(("data.max_document=" + sequence).c_str())),
                HasSubstr("microbatch=auto: found auto with data.max_document = " + sequence +
                          ", whose multiples it tries; valid: an integer"));
  }
  EXPECT_THAT(error_of(kGood, with("batch.tokens=4000")),
              HasSubstr("batch.tokens=4000: found 4000, no multiple of data.max_document = 256 "
                        "(batch.microbatch auto); valid: e.g. 4096"));
  EXPECT_THAT(error_of(kGood, {"batch.microbatch=some"}),
              HasSubstr("valid: auto, an integer in [2"));
}

TEST(Auto, TheBatchNeedNotFeedAsManyDataRanksAsThereAreRanks) {
  EXPECT_NO_THROW(parse(kGood, {"attention.placement=auto", "parallel.data=64"}));
  EXPECT_THAT(error_of(kGood, {"attention.placement=cad", "parallel.data=64"}),
              HasSubstr("no multiple of batch.microbatch x parallel.data"));
}

TEST(Check, TextNeedsTheByteVocabulary) {
  EXPECT_THAT(error_of(kGood, {"model.vocab=258"}), HasSubstr("valid: an integer >= 259"));
  EXPECT_EQ(parse(kGood, {"model.vocab=259"}).model.vocab, 259);
  EXPECT_EQ(parse(kGood, {"model.vocab=8", "data.source=synthetic"}).model.vocab, 8);
}

TEST(Check, TheDocumentEndIsAToken) {
  const std::string tokens = "data.source=tokens";
  EXPECT_THAT(error_of(kGood, {tokens, "data.document_end=300"}),
              HasSubstr("found 300, outside the vocabulary; valid: an integer in [0, model.vocab = "
                        "300)"));
  EXPECT_EQ(parse(kGood, {tokens, "data.document_end=299"}).data.document_end, 299);
}

TEST(Check, EveryEntryHasAPositiveWeight) {
  const std::string path = "data.path=[a, b]";
  EXPECT_THAT(parse(kGood, {path, "data.weights=[7, 0.3]"}).data.weights,
              ::testing::ElementsAre(7.0, 0.3));
  EXPECT_THAT(parse(kGood, {path, "data.weights=[]"}).data.weights, ::testing::IsEmpty());
  for (const char* weights : {"[1]", "[1, 2, 3]"}) {
    EXPECT_THAT(error_of(kGood, {path, std::string("data.weights=") + weights}),
                HasSubstr("weights with 2 entries of data.path; valid: one for each, or []"));
  }
  for (const char* weight : {"0", "-0.5", ".nan", ".inf", "1e999", "half", "[1]"}) {
    EXPECT_THAT(error_of(kGood, {path, fmt::format("data.weights=[1, {}]", weight)}),
                HasSubstr(fmt::format("data.weights[1]: found ")))
        << weight;
  }
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
  EXPECT_THAT(error_of(kGood, {synthetic, "data.lengths.distribution=file"}),
              HasSubstr("data.lengths.path: found nothing, but data.lengths.distribution = file"));
  EXPECT_THAT(error_of(kGood, {synthetic, "data.lengths.distribution=histogram"}),
              HasSubstr("data.lengths.path: found nothing"));
  EXPECT_THAT(error_of(kGood, {"data.lengths.stretch=0"}), HasSubstr("a number in (0, 1000000]"));
  EXPECT_NO_THROW(parse(kGood, {"data.lengths.min=513"})) << "text has no drawn lengths";
}

TEST(Check, DocumentsOfOneToken) {
  EXPECT_THAT(error_of(kGood, {"data.max_document=1"}), HasSubstr("documents of one token"));
  EXPECT_THAT(error_of(kGood, {"batch.microbatch=1"}),
              HasSubstr("found 1; valid: auto, an integer in [2"));
}

TEST(Check, TwoBetas) {
  for (const std::string set : {"optimizer.betas=[0.9]", "optimizer.betas=[0.9, 0.9, 0.9]"}) {
    EXPECT_THAT(error_of(kGood, {set}),
                AllOf(StartsWith("--set " + set + ": found "), HasSubstr("valid: two numbers")));
  }
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
  EXPECT_THAT(ranks_error(e, 2),
              AllOf(HasSubstr("3 ranks"), HasSubstr("2 trainers, 1 dedicated attention server"),
                    HasSubstr("found 2: start it with mpirun -n 3")));
  EXPECT_THAT(ranks_error(parse(kGood), 4), AllOf(HasSubstr("1 rank ("), HasSubstr("1 trainer)"),
                                                  HasSubstr("found 4: start it with mpirun -n 1")));
}

TEST(Capacity, IsRead) {
  const Experiment e = parse(kGood, {"parallel.data=4", "attention.capacity=[[3, 50], [0, 120]]"});
  ASSERT_EQ(e.attention.capacity.size(), 2u);
  EXPECT_EQ(e.attention.capacity[0], (std::array<double, 2>{3, 50}));
  EXPECT_TRUE(parse(kGood).attention.capacity.empty());
  EXPECT_NO_THROW(parse(kGood, {"attention.capacity=[[0, 50]]", "attention.placement=auto"}));
}

TEST(Capacity, SaysWhatIsWrong) {
  const auto error = [](const std::string& rows, const std::string& placement = "cad") {
    return error_of(kGood, {"attention.capacity=" + rows, "attention.placement=" + placement});
  };
  EXPECT_THAT(error("[[1, 50]]"), HasSubstr("attention.capacity=[[1, 50]]: found rank 1; valid:"));
  EXPECT_THAT(error("[[0.5, 50]]"), HasSubstr("found rank 0.5"));
  EXPECT_THAT(error("[[0, 0]]"),
              HasSubstr("found 0 % for rank 0; valid: an integer in [1, 10000]"));
  EXPECT_THAT(error("[[0, 0.5]]"), HasSubstr("found 0.5 % for rank 0"));
  EXPECT_THAT(error("[[0, 10001]]"), HasSubstr("found 10001 %"));
  EXPECT_THAT(error("[[0, -5]]"), HasSubstr("found -5"));
  EXPECT_THAT(error("[[0, 50], [0, 60]]"), HasSubstr("found rank 0 twice"));
  EXPECT_THAT(error("[[0, 50, 1]]"), HasSubstr("found a row of 3"));
  EXPECT_THAT(error("50"), HasSubstr("found 50"));
  EXPECT_THAT(error("[[0, 50]]", "colocated"),
              HasSubstr("found 1 rank with placement colocated, packing fixed and context 1, which "
                        "give all ranks the same; valid:"));
}

TEST(Capacity, IsForWhatGivesRanksDifferentWork) {
  const auto keys = [](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"attention.capacity=[[0, 50]]", "parallel.context=2",
                                    "attention.placement=zigzag"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  EXPECT_NO_THROW(parse(kGood, keys({})));
  EXPECT_THAT(error_of(kGood, keys({"attention.placement=striped"})),
              HasSubstr("give all ranks the same"));
  EXPECT_NO_THROW(parse(kGood, keys({"attention.placement=striped", "batch.packing=pooled"})));
  EXPECT_NO_THROW(parse(kGood, keys({"parallel.context=1", "parallel.data=2",
                                     "attention.placement=colocated", "batch.packing=balanced"})));
}

/// Packing asks for a replica's ranks, which the search has not chosen yet.
TEST(Capacity, PackingAsksForALayout) {
  const std::vector<std::string> open = {"attention.capacity=[[0, 50]]", "attention.placement=auto",
                                         "batch.packing=balanced"};
  EXPECT_THAT(error_of(kGood, open), HasSubstr("a layout left to placement auto"));
  std::vector<std::string> closed = open;
  for (const char* key : {"pipeline", "tensor", "context"}) {
    closed.push_back(std::string("parallel.") + key + "=1");
  }
  EXPECT_NO_THROW(parse(kGood, closed));
}

}  // namespace
}  // namespace cadenza::config::test_check
