// SPDX-License-Identifier: Apache-2.0
// Any layout and placement trains like a single rank: the losses of its steps, the final parameters
// and the bytes on the wire, with real messages.
#include <gmock/gmock.h>

#include <cmath>

#include "cadenza/base/error.hpp"
#include "unit/exec/tiny.hpp"

namespace cadenza::exec {
namespace {

using testing::Runner;
using testing::tiny_experiment;

struct Layout {
  config::PlacementKind placement;
  int servers;  ///< dedicated; the other ranks of the world train
};

std::string describe(const Layout& layout) {
  return fmt::format("{} with {} dedicated servers",
                     layout.placement == config::PlacementKind::cad ? "cad" : "colocated",
                     layout.servers);
}

/// All layouts that use exactly `ranks` ranks.
std::vector<Layout> layouts(int ranks) {
  std::vector<Layout> all;
  for (const auto placement : {config::PlacementKind::colocated, config::PlacementKind::cad}) {
    for (int servers = 0; servers <= 2 && servers < ranks; ++servers) {
      all.push_back({placement, servers});
    }
  }
  return all;
}

config::Experiment with_layout(const Layout& layout, int ranks) {
  config::Experiment e = tiny_experiment();
  e.attention.placement = layout.placement;
  e.attention.servers = layout.servers;
  e.parallel.data = ranks - layout.servers;
  return e;
}

template <typename Real>
struct Curve {
  std::vector<double> losses;
  std::vector<Accumulator<Real>> parameters;  ///< empty on dedicated servers
};

template <typename Real>
Curve<Real> train(const config::Experiment& experiment, comm::Communicator& world, int steps) {
  Runner<Real> runner(experiment, world);
  Curve<Real> curve;
  for (int step = 0; step < steps; ++step) curve.losses.push_back(runner.run(step).loss);
  if (const auto* p = runner.executor.parameters()) {
    curve.parameters.assign(p->values.data(), p->values.data() + p->table.elements);
  }
  return curve;
}

template <typename Real>
void expect_every_layout_trains_like_one_rank(int steps, double loss_tolerance,
                                              double parameter_tolerance) {
  const auto self = comm::make_self();
  const Curve<Real> reference =
      train<Real>(with_layout({config::PlacementKind::colocated, 0}, 1), *self, steps);
  const auto world = comm::make_world();
  for (const Layout& layout : layouts(world->size())) {
    SCOPED_TRACE(describe(layout));
    const Curve<Real> curve = train<Real>(with_layout(layout, world->size()), *world, steps);
    for (std::size_t step = 0; step < curve.losses.size(); ++step) {
      EXPECT_NEAR(curve.losses[step], reference.losses[step],
                  loss_tolerance * reference.losses[step])
          << "step " << step;
    }
    for (std::size_t i = 0; i < curve.parameters.size(); ++i) {
      ASSERT_NEAR(curve.parameters[i], reference.parameters[i], parameter_tolerance) << i;
    }
  }
}

TEST(Training, EveryLayoutTrainsLikeOneRankInFloat) {
  // AdamW divides by the root of the second moment: elements whose gradient is rounding noise may
  // differ.
  expect_every_layout_trains_like_one_rank<float>(10, 1e-5, 5e-3);
}

TEST(Training, EveryLayoutTrainsLikeOneRankInDouble) {
  expect_every_layout_trains_like_one_rank<double>(3, 1e-12, 1e-9);
}

TEST(Training, EveryLayoutTrainsLikeOneRankInBfloat16) {
  if (!kernels::supports_bfloat16()) GTEST_SKIP() << "no AVX-512 BF16 here";
  // Rows that travel are rounded once more, by 2^-8 at most: that changes by this part what updates
  // do to the loss, which falls by less than 1 of 4. AdamW moves an element by about the learning
  // rate a step, whatever its gradient: by twice that, at most, two elements drift apart.
  expect_every_layout_trains_like_one_rank<bfloat16>(10, 0x1p-8 / 4, 2 * 10 * 3e-3);
}

template <typename Real>
void expect_bytes_on_the_wire_equal_the_plans() {
  const auto world = comm::make_world();
  for (const Layout& layout : layouts(world->size())) {
    SCOPED_TRACE(describe(layout));
    Runner<Real> runner(with_layout(layout, world->size()), *world);
    const auto plan = runner.plan(0);
    runner.tracer.begin_step(0);
    runner.executor.run(plan);
    std::int64_t planned = 0;
    for (const auto& tick : plan.ticks) {
      for (const auto* p : {&tick.forward, &tick.backward}) {
        planned += p->bytes_sent_per_rank[static_cast<std::size_t>(world->rank())];
      }
    }
    EXPECT_EQ(runner.tracer.totals().bytes_sent, planned * runner.experiment.model.layers);
  }
}

TEST(Training, BytesOnTheWireEqualThePlans) {
  expect_bytes_on_the_wire_equal_the_plans<float>();
}

TEST(Training, BytesOnTheWireEqualThePlansInBfloat16) {
  if (!kernels::supports_bfloat16()) GTEST_SKIP() << "no AVX-512 BF16 here";
  expect_bytes_on_the_wire_equal_the_plans<bfloat16>();
}

TEST(Training, PlansForElementsOfAnotherSizeAreRefused) {
  const auto world = comm::make_world();
  Runner<float> runner(with_layout({config::PlacementKind::cad, 0}, world->size()), *world);
  const program::StepPlan planned = runner.plan(0);
  Runner<double> other(with_layout({config::PlacementKind::cad, 0}, world->size()), *world);
  other.tracer.begin_step(0);
  EXPECT_THROW(other.executor.run(planned), Error);
}

TEST(Training, RanksWithDifferentPlansStopOnAllRanks) {
  const auto world = comm::make_world();
  if (world->size() == 1) GTEST_SKIP() << "one rank cannot disagree";
  Runner<float> runner(with_layout({config::PlacementKind::cad, 0}, world->size()), *world);
  program::StepPlan plan = runner.plan(0);
  if (world->rank() == world->size() - 1) plan.hash ^= 1;
  try {
    runner.executor.run(plan);
    FAIL() << "not noticed on rank " << world->rank();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::communication);
  }
}

}  // namespace
}  // namespace cadenza::exec
