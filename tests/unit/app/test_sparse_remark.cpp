// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "app/planner/step_report.hpp"

namespace cadenza::app::test_sparse_remark {
namespace {

using ::testing::HasSubstr;

config::Experiment experiment() {
  config::Experiment of;
  of.attention.kind = config::AttentionKind::vertical_slash;
  of.attention.sparse.dense_below = 4096;
  of.data.max_document = of.batch.microbatch = 8192;
  of.run.steps = 20;
  return of;
}

TEST(SparseRemark, SaysNothingWhereSomethingMayBeSparse) {
  config::Experiment of = experiment();
  EXPECT_EQ(never_sparse(of), "");
  of.data.max_document = 4096;
  EXPECT_EQ(never_sparse(of), "");
  of.attention.sparse.dense_steps = 19;
  EXPECT_EQ(never_sparse(of), "");
  of.attention.kind = config::AttentionKind::full;
  of.data.max_document = 10;
  EXPECT_EQ(never_sparse(of), "");
}

TEST(SparseRemark, NamesTheKeyThatMakesEverythingDense) {
  config::Experiment of = experiment();
  of.data.max_document = 4095;
  EXPECT_THAT(never_sparse(of), HasSubstr("at most 4095 tokens, attention.sparse.dense_below is "
                                          "4096"));
  of = experiment();
  of.attention.sparse.dense_steps = 20;
  EXPECT_THAT(never_sparse(of), HasSubstr("attention.sparse.dense_steps is 20, run.steps 20"));
}

}  // namespace
}  // namespace cadenza::app::test_sparse_remark
