// SPDX-License-Identifier: Apache-2.0
// Bytes of what waits in host memory, as the executor copies and as the simulator prices them.
#include <gmock/gmock.h>

#include "cadenza/exec/memory/estimate.hpp"
#include "cadenza/program/operation_work.hpp"
#include "unit/exec/random_experiment.hpp"

namespace cadenza::exec::test_offload {
namespace {

TEST(Offload, SimulatedCopiesAreThoseOfTheModel) {
  int found = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    testing::Draw draw(seed);
    config::Experiment e = testing::draw_experiment(draw, 4, config::PlacementKind::colocated);
    e.attention.servers = 0;
    if (e.model.heads % e.parallel.tensor != 0 || e.model.kv_heads % e.parallel.tensor != 0 ||
        e.model.ffn % e.parallel.tensor != 0) {
      continue;
    }
    e.run.dtype = draw.any<config::Dtype>();
    e.run.residual = draw.any<config::Precision>();
    const program::StepShape step_shape(e);
    const std::int64_t rows = 12 * e.parallel.tensor;
    const std::int64_t copied =
        model::kept_bytes(e.model, model_part(e, step_shape.layout, 0),
                          capacity_of(e, step_shape, 0, rows, 1), e.run.recompute, e.run.dtype);
    EXPECT_EQ(program::OperationShapes(e, step_shape.layout).kept_bytes(rows), copied) << seed;
    ++found;
  }
  EXPECT_GT(found, 50);
}

}  // namespace
}  // namespace cadenza::exec::test_offload
