// SPDX-License-Identifier: Apache-2.0
// Keys that a choice ignores: one line each, unless another experiment of the same look uses them.
#include "cadenza/config/sweep.hpp"
#include "support.hpp"

namespace cadenza::config::test_belonging {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> unused(const Overrides& overrides, const std::string& text = kGood) {
  UnusedKeys keys;
  parse_experiment(text, "e.yaml", overrides, &keys);
  return keys.lines();
}

/// A key that is ignored until something else is said, too.
struct Ignored {
  std::string setting;
  Overrides beside;   ///< with which it is ignored
  const char* by;     ///< what ignores it
  Overrides instead;  ///< with which it is used
};

const Overrides kSynthetic = {"data={source: synthetic}"};

Overrides with(Overrides all, const Overrides& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Overrides lengths(const std::string& distribution) {
  return with(kSynthetic, {"data.lengths.distribution=" + distribution, "data.lengths.values=[3]",
                           "data.lengths.path=l"});
}

Overrides placed(const std::string& placement, int context = 2) {
  return {"attention.placement=" + placement, "parallel.context=" + std::to_string(context)};
}

Overrides rope(const std::string& kind) {
  return {"model.rope.scaling.kind=" + kind, "model.rope.scaling.original_context=64"};
}

const std::vector<Ignored>& ignored() {
  static const Overrides kSlash = {"attention.kind=vertical_slash"};
  static const Overrides kPooled = {"batch.packing=pooled"};
  static const std::vector<Ignored> all = {
      {"model.rope.scaling.original_context=64",
       {"model.rope.scaling.kind=linear"},
       "model.rope.scaling.kind = linear",
       rope("llama3")},
      {"model.rope.scaling.beta_fast=30", {}, "model.rope.scaling.kind = none", rope("yarn")},
      {"model.rope.scaling.beta_slow=2", {}, "model.rope.scaling.kind = none", rope("yarn")},
      {"model.rope.scaling.attention_factor=2", {}, "scaling.kind = none", rope("yarn")},
      {"model.rope.scaling.truncate=false", rope("llama3"), "scaling.kind = llama3", rope("yarn")},
      {"model.rope.scaling.low_frequency=2", {}, "scaling.kind = none", rope("llama3")},
      {"model.rope.scaling.high_frequency=8", {}, "scaling.kind = none", rope("llama3")},
      {"data.weights=[1]", kSynthetic, "data.source = synthetic", {"data.path=[a]"}},
      {"data.dtype=uint32",
       {},
       "data.source = text",
       {"data.source=tokens", "data.document_end=1"}},
      {"data.document_end=4", {}, "data.source = text", {"data.source=tokens"}},
      {"data.documents=7", {}, "data.source = text", kSynthetic},
      {"data.documents=7", lengths("file"), "data.lengths.distribution = file",
       lengths("histogram")},
      {"data.documents=7", with(lengths("histogram"), {"data.lengths.rule=prolong"}),
       "data.lengths.rule = prolong", lengths("list")},
      {"data.lengths.distribution=uniform", {}, "data.source = text", kSynthetic},
      {"data.lengths.min=7", lengths("constant"), "data.lengths.distribution = constant",
       lengths("pareto")},
      {"data.lengths.max=70", lengths("histogram"), "distribution = histogram", lengths("uniform")},
      {"data.lengths.median=70", lengths("uniform"), "distribution = uniform", lengths("constant")},
      {"data.lengths.sigma=2", lengths("pareto"), "distribution = pareto", lengths("lognormal")},
      {"data.lengths.alpha=2", lengths("lognormal"), "distribution = lognormal", lengths("pareto")},
      {"data.lengths.rule=pretrain", lengths("file"), "distribution = file", lengths("histogram")},
      {"data.lengths.stretch=2", lengths("file"), "distribution = file", lengths("histogram")},
      {"data.retrieval.facts=5",
       kSynthetic,
       "data.source = synthetic",
       {"data={source: retrieval}"}},
      {"data.retrieval.questions=2",
       kSynthetic,
       "data.source = synthetic",
       {"data={source: retrieval}"}},
      {"data.retrieval.task=values", {}, "data.source = text", {"data={source: retrieval}"}},
      {"data.retrieval.facts=5",
       {"data={source: retrieval}", "data.retrieval.task=common_words"},
       "data.retrieval.task = common_words",
       {"data={source: retrieval, retrieval: {task: variables}}"}},
      {"data.retrieval.answers=5",
       {"data={source: retrieval}"},
       "data.retrieval.task = needles",
       {"data={source: retrieval, retrieval: {task: frequent_words}}"}},
      {"data.retrieval.hops=5",
       {"data={source: retrieval}"},
       "data.retrieval.task = needles",
       {"data={source: retrieval, retrieval: {task: variables}}"}},
      {"data.retrieval.depth_min=0.5", {}, "data.source = text", {"data={source: retrieval}"}},
      {"data.retrieval.depth_max=0.5", {}, "data.source = text", {"data={source: retrieval}"}},
      {"data.retrieval.phrase=5", {}, "data.source = text", {"data={source: retrieval}"}},
      {"batch.longest=2", {}, "batch.packing = fixed", kPooled},
      {"batch.longest=2", placed("zigzag"), "batch.packing = fixed", placed("dynamic")},
      {"batch.break_even=200", {}, "batch.packing = fixed", {"batch.packing=balanced"}},
      {"batch.break_even=200", placed("all_gather"), "batch.packing = fixed",
       with(placed("all_gather"), {"attention.sharding=whole"})},
      {"parallel.schedule=interleaved",
       {},
       "parallel.pipeline = 1",
       {"parallel.pipeline=2", "attention.placement=colocated"}},
      {"parallel.shard=optimizer", {}, "parallel.data = 1", {"parallel.data=2"}},
      {"attention.kind=prefix", {}, "attention.prefix = 0", {"attention.prefix=3"}},
      {"attention.sparse.sinks=4", with(kSlash, {"attention.sparse.top_p=0.9"}),
       "attention.sparse.top_p = 0.9", kSlash},
      {"attention.sparse.window=4", with(kSlash, {"attention.sparse.top_p=0.9"}),
       "attention.sparse.top_p = 0.9",
       with(kSlash, {"attention.sparse.top_p=0.9", "attention.sparse.budgets=b.json"})},
      {"attention.placement=ring", {}, "parallel.context = 1", {"parallel.context=2"}},
      {"attention.placement=ulysses_ring", {}, "parallel.context = 1", {"parallel.context=4"}},
      {"attention.sharding=contiguous", placed("ring"), "attention.placement = ring",
       placed("all_gather")},
      {"attention.sharding=contiguous", placed("cad", 1), "parallel.context = 1", placed("cad")},
      {"attention.shard_unit=sequence", placed("striped"), "attention.placement = striped",
       placed("zigzag")},
      {"attention.shard_unit=sequence", placed("colocated", 1), "parallel.context = 1",
       placed("ulysses")},
      {"attention.shard_unit=sequence", with(placed("all_gather"), {"attention.sharding=whole"}),
       "attention.sharding = whole", placed("all_gather")},
      {"attention.block=64", with(placed("all_gather"), {"attention.sharding=whole"}),
       "attention.placement = all_gather", with(placed("all_gather"), {"attention.sharding=ptrr"})},
      {"attention.shard_unit=sequence", placed("cad"), "attention.placement = cad",
       with(placed("cad"), {"attention.sharding=zigzag"})},
      {"batch.longest=2", with(placed("cad"), {"attention.sharding=zigzag"}),
       "batch.packing = fixed", placed("cad")},
      {"attention.head_parallel=2", placed("ring"), "attention.placement = ring",
       placed("ulysses_ring")},
      {"attention.head_parallel=2",
       {"attention.placement=auto"},
       "attention.placement = auto",
       placed("ulysses_ring")},
      {"attention.inner_ring=2", placed("all_gather"), "attention.placement = all_gather",
       placed("block_striped")},
      {"attention.block=64", placed("ring"), "attention.placement = ring", placed("block_striped")},
      {"attention.tolerance=0.1",
       placed("all_gather"),
       "attention.placement = all_gather",
       {"attention.placement=cad"}},
      {"attention.bound=one_sided",
       placed("ring"),
       "placement = ring",
       {"attention.placement=auto"}},
      {"attention.priority=paper", placed("ring"), "placement = ring", placed("cad")},
      {"attention.split_keys=false", placed("ring"), "placement = ring", placed("cad")},
      {"attention.inputs=keep", placed("colocated", 1), "placement = colocated",
       placed("all_gather")},
      {"run.share_device=false", {}, "run.device = host", {"run.device=cuda"}},
      {"run.checkpoint.keep=2", {}, "run.checkpoint.every = 0", {"run.checkpoint.every=5"}},
  };
  return all;
}

TEST(Belonging, AKeyThatAChoiceIgnoresIsToldOf) {
  for (const Ignored& one : ignored()) {
    const std::string key = one.setting.substr(0, one.setting.find('='));
    SCOPED_TRACE(one.setting + " beside " + ::testing::PrintToString(one.beside));
    const auto about = [&](const Overrides& beside) {
      std::vector<std::string> lines = unused(with(beside, {one.setting}));
      std::erase_if(lines, [&](const std::string& line) {
        return line.find("--set " + one.setting + ": found ") != 0;
      });
      return lines;
    };
    EXPECT_THAT(about(one.beside),
                ElementsAre(HasSubstr(std::string(one.by) + " ignores; used with ")));
    EXPECT_THAT(about(one.instead), IsEmpty());
  }
}

TEST(Belonging, TheLineSaysWhereTheKeyStands) {
  EXPECT_THAT(unused({}, kGood + "attention: {placement: cad, inner_ring: 4}\n"),
              ElementsAre("e.yaml:14: attention.inner_ring: found 4, which attention.placement = "
                          "cad ignores; used with placement ring, zigzag, striped, block_striped, "
                          "double_ring or dynamic"));
  EXPECT_THAT(unused({"attention={placement: cad, inner_ring: 4}"}),
              ElementsAre(HasSubstr("--set attention={placement: cad, inner_ring: 4}: "
                                    "attention.inner_ring: found 4, which")));
}

TEST(Belonging, BlocksThatStripesTearAreToldOf) {
  const std::string why =
      "found striped with attention.kind = {}: a rank has few queries of each block, but computes "
      "whole blocks; faster: block_striped";
  for (const char* kind : {"vertical_slash", "xattention"}) {
    const Overrides sparse = {fmt::format("attention.kind={}", kind)};
    EXPECT_THAT(
        unused(with(placed("striped"), sparse)),
        ElementsAre("--set attention.placement=striped: " + fmt::format(fmt::runtime(why), kind)));
    EXPECT_THAT(
        unused(with(sparse, {"parallel.context=2"}), kGood + "attention: {placement: striped}\n"),
        ElementsAre("e.yaml:14: attention.placement: " + fmt::format(fmt::runtime(why), kind)));
    for (const char* other : {"block_striped", "zigzag", "cad"}) {
      EXPECT_THAT(unused(with(placed(other), sparse)), IsEmpty());
    }
  }
  EXPECT_THAT(unused(placed("striped")), IsEmpty());
}

TEST(Belonging, DefaultsAreNotToldOf) {
  EXPECT_THAT(unused({}), IsEmpty());
  EXPECT_THAT(unused({}, to_yaml(parse(kGood))), IsEmpty()) << "as the program writes it";
  EXPECT_THAT(unused(placed("ring"), to_yaml(parse(kGood))), IsEmpty());
  EXPECT_THAT(unused(with(placed("ring"), {"attention.inner_ring=1"})), IsEmpty());
}

TEST(Belonging, AFileIsNotToldOfWhatOnlyOneRunDoesWithout) {
  const std::string file = kGood + "attention: {placement: cad, tolerance: 0.1}\n";
  EXPECT_THAT(unused({"attention.placement=colocated"}, file), IsEmpty());
  EXPECT_THAT(unused({"attention.placement=colocated", "attention.tolerance=0.2"}, file),
              ElementsAre(HasSubstr("--set attention.tolerance=0.2: found 0.2, which")));
  EXPECT_THAT(
      unused({"run.steps=3"}, kGood + "attention: {placement: colocated, tolerance: 0.1}\n"),
      ElementsAre(HasSubstr("e.yaml:14: attention.tolerance: found 0.1, which")));
}

TEST(Belonging, ASweepIsSilentWhereAnotherPointUsesTheKey) {
  const Base base = parse_base(
      kGood + "parallel: {context: 4}\nattention: {inner_ring: 2, head_parallel: 2}\n", "e.yaml");
  const auto lines = [&](const std::string& placements, const Overrides& overrides = {}) {
    const Sweep sweep =
        parse_sweep("base: e.yaml\naxes: {attention.placement: [" + placements + "]}\n", "s.yaml");
    UnusedKeys keys;
    for (const SweepPoint& point : points_of(sweep)) {
      experiment_of(point, base, overrides, &keys);
    }
    return keys.lines();
  };
  EXPECT_THAT(lines("ring, double_ring, ulysses_ring"), IsEmpty());
  EXPECT_THAT(lines("double_ring, ulysses_ring, ring"), IsEmpty());
  EXPECT_THAT(lines("all_gather, ulysses, ulysses_ring"),
              ElementsAre(AllOf(HasSubstr("e.yaml:15: attention.inner_ring: found 2, which"),
                                HasSubstr("attention.placement = all_gather"))));
  EXPECT_THAT(lines("ring, cad", {"attention.tolerance=0.1", "attention.inner_ring=1",
                                  "attention.head_parallel=1"}),
              IsEmpty());
}

}  // namespace
}  // namespace cadenza::config::test_belonging
