// SPDX-License-Identifier: Apache-2.0
// Timelines with known answers.
#include <gmock/gmock.h>

#include "cadenza/base/error.hpp"
#include "cadenza/cost/flops.hpp"
#include "cadenza/simulate/simulator.hpp"
#include "unit/program/support.hpp"
#include "unit/tiny_model.hpp"

namespace cadenza::simulate::test_timeline {
namespace {

using config::Machine;
using program::Instruction;
using program::Operation;
using program::plan_ticks;
using program::Program;
using program::StepShape;
using program::TickPlans;
using program::test::make_programs;

/// One document of `length` in every microbatch.
class OneLength : public data::Corpus {
 public:
  explicit OneLength(std::int64_t length) : lengths_(64, length) {}
  std::span<const std::int64_t> lengths() const override { return lengths_; }
  void read(std::int64_t, Range, std::span<data::Token>) const override {
    fail(ExitCode::data, "plans read no tokens");
  }

 private:
  std::vector<std::int64_t> lengths_;
};

config::Experiment experiment(int pipeline, int chunks, int microbatches) {
  config::Experiment e;
  e.model = tiny_model(8);
  e.model.vocab = 1;
  e.parallel.pipeline = pipeline;
  e.parallel.chunks = chunks;
  e.attention.placement = config::PlacementKind::zigzag;
  e.batch.microbatch = 256;
  e.batch.tokens = 256 * microbatches;
  e.data.max_document = 256;
  return e;
}

/// Messages take no time: what is left are computation and its order.
Machine free_messages() {
  Machine machine;
  machine.links.inside = {0, 1e30};
  return machine;
}

Result predict(const config::Experiment& e, const data::Corpus& corpus, const Machine& machine) {
  const data::Packer packer(corpus, e);
  const std::vector<TickPlans> tick_plans = plan_ticks(e, packer.batch(0));
  const StepShape step_shape(e);
  const Costs costs(machine, e, step_shape.layout);
  return simulate(e, step_shape, make_programs(step_shape, tick_plans), tick_plans, costs);
}

Result predict(const config::Experiment& e, const Machine& machine) {
  return predict(e, OneLength(e.batch.microbatch), machine);
}

/// All computation of the step on one rank.
double alone(const config::Experiment& e, const Machine& machine) {
  const std::vector<std::int64_t> lengths(
      static_cast<std::size_t>(e.batch.tokens / e.batch.microbatch), e.batch.microbatch);
  const double all = cost::step_flops(e.model, e.attention, lengths);
  return all / machine.attention.flops_per_second;  // both rates are the same
}

TEST(Simulator, OneRankTakesTheSumOfItsWork) {
  const Machine machine = free_messages();
  const config::Experiment e = experiment(1, 1, 3);
  const Result timeline = predict(e, machine);
  EXPECT_NEAR(timeline.seconds, alone(e, machine), 1e-12);
  EXPECT_NEAR(timeline.seconds, timeline.lower_bound_seconds, 1e-12);
}

TEST(Simulator, TwiceTheRatesTakeHalfTheTime) {
  const config::Experiment e = experiment(2, 1, 4);
  Machine machine;
  const double once = predict(e, machine).seconds;
  machine.attention.flops_per_second *= 2;
  machine.products.flops_per_second *= 2;
  machine.element_wise.bytes_per_second *= 2;
  machine.links.inside.bytes_per_second *= 2;
  machine.links.inside.latency_seconds /= 2;
  EXPECT_NEAR(predict(e, machine).seconds, once / 2, 1e-12);
}

// Megatron-LM, arXiv 2104.04473, section 2.2: with uniform stages the idle share of a step is
// (stages - 1) / (chunks x microbatches) of the time without it. The head is next to nothing here.
TEST(Simulator, HasTheBubbleOfTheFormula) {
  const Machine machine = free_messages();
  for (const int stages : {1, 2, 4}) {
    for (const int chunks : {1, 2}) {
      if (stages == 1 && chunks > 1) continue;
      const int microbatches = 8;
      const config::Experiment e = experiment(stages, chunks, microbatches);
      const Result timeline = predict(e, machine);
      const double even = timeline.lower_bound_seconds;
      const double bubble =
          static_cast<double>(stages - 1) / (chunks * static_cast<double>(microbatches));
      EXPECT_NEAR(timeline.seconds, even * (1 + bubble), 2e-3 * even) << stages << " " << chunks;
    }
  }
}

TEST(Simulator, MoreBandwidthNeverSlowsARing) {
  config::Experiment e = experiment(1, 1, 2);
  e.parallel.context = 4;
  double slower = 1e300;
  for (const double bandwidth : {1e7, 1e8, 1e9, 1e10, 1e12}) {
    Machine machine;
    machine.links.inside.bytes_per_second = bandwidth;
    const double seconds = predict(e, machine).seconds;
    EXPECT_LE(seconds, slower);
    EXPECT_GE(seconds, predict(e, machine).lower_bound_seconds);
    slower = seconds;
  }
}

TEST(Simulator, PingPongHidesTransfersThatOneStreamExposes) {
  config::Experiment e = experiment(1, 1, 8);
  e.parallel.data = 2;
  e.batch.tokens = 512 * 8;
  e.attention.placement = config::PlacementKind::cad;
  e.attention.block = 16;
  e.attention.tolerance = 0;
  // A long document on one rank, short ones on the other, and a slow network.
  class Uneven : public data::Corpus {
   public:
    Uneven() {
      for (int i = 0; i < 8; ++i) {
        lengths_.push_back(256);
        lengths_.insert(lengths_.end(), 16, 16);
      }
    }
    std::span<const std::int64_t> lengths() const override { return lengths_; }
    void read(std::int64_t, Range, std::span<data::Token>) const override {}

   private:
    std::vector<std::int64_t> lengths_;
  };
  Machine machine;
  machine.links.inside = {0, 2e8};
  const auto seconds = [&] { return predict(e, Uneven(), machine).seconds; };
  const double one_stream = seconds();
  e.attention.overlap = config::Overlap::ping_pong;
  EXPECT_LT(seconds(), one_stream);
}

TEST(Simulator, ADeadlockIsAnError) {
  const config::Experiment e = experiment(2, 1, 2);
  const data::Packer packer(OneLength(256), e);
  const std::vector<TickPlans> tick_plans = plan_ticks(e, packer.batch(0));
  const StepShape step_shape(e);
  std::vector<Program> programs = make_programs(step_shape, tick_plans);
  const Costs costs(Machine{}, e, step_shape.layout);
  std::erase_if(programs[0].instructions, [](const Instruction& instruction) {
    return instruction.operation == Operation::send;
  });
  EXPECT_THROW(simulate(e, step_shape, programs, tick_plans, costs), Error);
}

}  // namespace
}  // namespace cadenza::simulate::test_timeline
