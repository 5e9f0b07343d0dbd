// SPDX-License-Identifier: Apache-2.0
// attention.overlap and attention.tolerance: auto come to the same on every rank of a run, at its
// start and for every step.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "app/planner/search/search.hpp"
#include "cadenza/comm/communicator.hpp"
#include "cadenza/config/load.hpp"
#include "cadenza/program/step_plan.hpp"

namespace cadenza::app::test_decisions {
namespace {

config::Experiment experiment(int ranks) {
  return config::parse_experiment(
      "model: {layers: 6, d_model: 128, heads: 4, ffn: 256, vocab: 300}\n"
      "data: {source: synthetic, max_document: 4096, lengths: {median: 500, sigma: 1.5}}\n"
      "batch: {tokens: 24576, microbatch: 4096}\nattention: {block: 32}\n",
      "e.yaml", {fmt::format("parallel.data={}", ranks)});
}

template <typename T>
void expect_same_everywhere(comm::Communicator& world, T mine) {
  std::vector<T> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  for (const T& other : all) EXPECT_EQ(other, mine);
}

TEST(Decisions, AreTheSameOnAllRanks) {
  const auto world = comm::make_world();
  if (24576 / 4096 % world->size() != 0) GTEST_SKIP() << "6 microbatches for so many ranks";
  const config::Experiment given = experiment(world->size());
  const auto corpus = data::open_corpus(given.data, given.model.vocab, given.seed);
  const data::Packer packer(*corpus, given);
  for (const double bytes_per_second : {1e7, 1e9, 1e12}) {
    config::Machine machine;
    machine.links.inside.bytes_per_second = bytes_per_second;
    const config::Experiment e = search_layout(given, *corpus, machine).experiment;
    expect_same_everywhere(*world, e.attention.overlap);
    for (int step = 0; step < 3; ++step) {
      const program::StepPlan plan =
          program::plan_step(e, packer, static_cast<Rank>(world->rank()), step, machine);
      expect_same_everywhere(*world, plan.hash);
      for (const program::TickPlans& tick : plan.tick_plans) {
        ASSERT_FALSE(tick.forward.trials.empty());
        expect_same_everywhere(*world, tick.forward.trials.front().tolerance);
        expect_same_everywhere(*world, tick.forward.trials.front().layer_seconds);
      }
    }
  }
}

}  // namespace
}  // namespace cadenza::app::test_decisions
