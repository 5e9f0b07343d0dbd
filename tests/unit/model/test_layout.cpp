// SPDX-License-Identifier: Apache-2.0
// The model in pieces against the model on one rank: tensor groups, pipelines, chunks, microbatches
// in flight, halves and every way to recompute.
#include "unit/model/layout.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdio>
#include <tuple>

#include "unit/model/subject.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::model {
namespace {

using config::Recompute;
using test::Layout;
using test::LayoutResult;
using test::run_layout;
using test::Vector;

/// Six layers, four heads, a vocabulary that does not divide.
config::Model divisible_model(std::int64_t kv_heads, bool qwen = false) {
  config::Model model = test::small_model(qwen);
  model.tie_embeddings = false;
  model.layers = 6;
  model.kv_heads = kv_heads;
  model.ffn = 12;
  return model;
}

/// Microbatches of 16 tokens with a document's end in the middle.
std::vector<TokenBatch> batches(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  return {test::packed({1, 5, 2, 6, 2}, 13, random), test::packed({8, 3, 4, 1}, 13, random)};
}

void expect_near(const Vector& got, const Vector& expected, double bound, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    apart += std::pow(got[i] - expected[i], 2);
    size += std::pow(expected[i], 2);
  }
  EXPECT_LE(std::sqrt(apart), bound * std::sqrt(size)) << what;
}

void expect_near(const LayoutResult& got, const LayoutResult& expected, double bound) {
  expect_near(got.losses, expected.losses, bound, "loss");
  expect_near(got.dx, expected.dx, bound, "dx");
  ASSERT_EQ(got.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    expect_near(got.gradients.at(name), gradient, bound, name);
  }
}

TEST(Layouts, OnePieceIsTheModelAsItIsTested) {
  const config::Model model = divisible_model(2);
  const LayoutResult got =
      run_layout<double>(model, test::strong_values(model, 3), {batches(4)[0]}, {});
  test::Subject<double> subject(model, 16, 3);
  EXPECT_EQ(got.losses[0], subject.run<test::ByKernels>(batches(4)[0], 0.25));
  const Vector all = subject.gradients();
  for (const ParameterInfo& info : subject.parameters.table.entries) {
    const Vector gradient(all.begin() + info.offset, all.begin() + info.offset + info.count());
    EXPECT_EQ(got.gradients.at(info.name), gradient) << info.name;
  }
}

struct Pipeline {
  std::int64_t stages, chunks;
};

class Pieces : public ::testing::TestWithParam<std::tuple<int, Pipeline, bool>> {};

TEST_P(Pieces, EqualTheWhole) {
  const auto [tensor, pipeline, qwen] = GetParam();
  const config::Model model = divisible_model(tensor == 4 ? 4 : 2, qwen);
  const Vector values = test::strong_values(model, 5);
  const LayoutResult whole = run_layout<double>(model, values, batches(6), {});
  for (const Recompute recompute : test::kRecompute) {
    for (const bool halves : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << "recompute " << static_cast<int>(recompute) << ", halves " << halves);
      expect_near(run_layout<double>(model, values, batches(6),
                                     {pipeline.stages, pipeline.chunks, tensor, recompute, halves}),
                  whole, 1e-12);
    }
  }
}

TEST_P(Pieces, RecomputedIsKeptBitByBit) {
  const auto [tensor, pipeline, qwen] = GetParam();
  const config::Model model = divisible_model(4, qwen);
  const Vector values = test::strong_values(model, 7);
  Layout layout{pipeline.stages, pipeline.chunks, tensor};
  const LayoutResult kept = run_layout<float>(model, values, batches(8), layout);
  for (const Recompute recompute : test::kRecompute) {
    SCOPED_TRACE(static_cast<int>(recompute));
    layout.recompute = recompute;
    const LayoutResult got = run_layout<float>(model, values, batches(8), layout);
    EXPECT_EQ(got.losses, kept.losses);
    EXPECT_EQ(got.dx, kept.dx);
    EXPECT_EQ(got.gradients, kept.gradients);
  }
}

std::string case_name(const ::testing::TestParamInfo<Pieces::ParamType>& info) {
  const auto [tensor, pipeline, qwen] = info.param;
  return "Tensor" + std::to_string(tensor) + "Stages" + std::to_string(pipeline.stages) + "Chunks" +
         std::to_string(pipeline.chunks) + (qwen ? "Qwen" : "");
}

/// All that can differ, or with sanitizers what each line of code needs.
std::vector<int> tensor_sizes() {
  return cadenza::testing::kSanitized ? std::vector{1, 2} : std::vector{1, 2, 4};
}
std::vector<Pipeline> pipelines() {
  if (cadenza::testing::kSanitized) return {{1, 1}, {2, 2}};  // of six layers, 1, 2, 1 and 2
  return {{1, 1}, {4, 1}, {1, 2}, {2, 3}, {2, 2}};            // of six layers
}
INSTANTIATE_TEST_SUITE_P(Layouts, Pieces,
                         ::testing::Combine(::testing::ValuesIn(tensor_sizes()),
                                            ::testing::ValuesIn(pipelines()), ::testing::Bool()),
                         case_name);

/// Embedding and head are one matrix, which gets gradients of both.
TEST(Layouts, TiedHeadInATensorGroup) {
  config::Model model = divisible_model(4);
  model.tie_embeddings = true;
  const Vector values = test::strong_values(model, 9);
  const LayoutResult whole = run_layout<double>(model, values, batches(10), {});
  for (const int tensor : {2, 4}) {
    expect_near(run_layout<double>(model, values, batches(10), {1, 1, tensor}), whole, 1e-12);
  }
}

/// Relative L2 of all gradients.
double gradient_error(const LayoutResult& got, const LayoutResult& expected) {
  double apart = 0, size = 0;
  for (const auto& [name, gradient] : expected.gradients) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      apart += std::pow(got.gradients.at(name)[i] - gradient[i], 2);
      size += std::pow(gradient[i], 2);
    }
  }
  return std::sqrt(apart / size);
}

/// What is rounded beside the inputs of products: docs/placements.md and docs/experiment.md have
/// these numbers.
TEST(Layouts, SumsAndResidualsInBfloat16) {
  config::Model model = divisible_model(8);
  model.layers = 4;
  model.d_model = 256;
  model.heads = 8;
  model.ffn = 352;
  model.vocab = 256;
  std::mt19937_64 random(15);
  const std::vector<TokenBatch> batch = {test::packed({48, 16}, 256, random)};
  const ParameterTable table = test::whole_table(model);
  Vector values = test::normal(table.elements, random, 0.06);
  for (auto i = static_cast<std::size_t>(table.matrix_elements); i < values.size(); ++i) {
    values[i] = 1;
  }
  for (double& value : values) value = static_cast<double>(static_cast<float>(bfloat16(value)));
  const LayoutResult exact = run_layout<double>(model, values, batch, {});
  using config::Precision;
  const auto error = [&](Layout layout, Precision sums, Precision residual) {
    layout.tensor_sums = sums;
    layout.residual = residual;
    return gradient_error(run_layout<bfloat16>(model, values, batch, layout), exact);
  };
  const double alone = error({}, Precision::sums, Precision::sums);
  const double rounded = error({}, Precision::sums, Precision::stored);
  std::printf("gradients of one rank: %.3e off, residual in bfloat16: %.3e\n", alone, rounded);
  EXPECT_GT(rounded, 1.1 * alone);
  EXPECT_LT(rounded, 3 * alone);
  for (const int tensor : {2, 4, 8}) {
    const Layout layout{1, 1, tensor};
    const double sums = error(layout, Precision::sums, Precision::sums);
    const double parts = error(layout, Precision::stored, Precision::sums);
    const double both = error(layout, Precision::stored, Precision::stored);
    std::printf("of %d ranks: %.3e, parts in bfloat16: %.3e, residual too: %.3e\n", tensor, sums,
                parts, both);
    EXPECT_LT(sums, 1.1 * alone);
    EXPECT_LT(parts, 1.2 * alone);
    EXPECT_NE(parts, sums);
    EXPECT_LT(both, 1.2 * rounded);
  }
  // Pipeline stages send what they store, and what is computed again is rounded again.
  for (const config::Recompute recompute : test::kRecompute) {
    EXPECT_DOUBLE_EQ(error({2, 1, 1, recompute}, Precision::sums, Precision::stored), rounded);
  }
}

/// A vocabulary whose logits are made in chunks, on ranks with slices of different size.
TEST(Layouts, ChunksOfLogitsInATensorGroup) {
  config::Model model = divisible_model(2);
  model.layers = 1;
  model.d_model = 4;
  model.heads = 2;
  model.vocab = (std::int64_t{1} << 19) + 1;
  std::mt19937_64 random(11);
  const std::vector<TokenBatch> batch = {test::packed({16, 8}, model.vocab, random)};
  const Vector values = test::strong_values(model, 12);
  expect_near(run_layout<double>(model, values, batch, {1, 1, 2}),
              run_layout<double>(model, values, batch, {}), 1e-12);
}

/// Rows that fill a microbatch up to a multiple: token 0, position 0, no target.
TEST(Layouts, PaddingChangesNothing) {
  const config::Model model = divisible_model(4);
  const Vector values = test::strong_values(model, 13);
  std::mt19937_64 random(14);
  const TokenBatch batch = test::packed({7, 6}, 13, random);
  TokenBatch padded = batch;
  for (int row = 0; row < 3; ++row) {
    padded.tokens.push_back(0);
    padded.positions.push_back(0);
    padded.targets.push_back(-1);
  }
  LayoutResult whole = run_layout<double>(model, values, {batch}, {});
  whole.dx.resize(16 * 16, 0.0);
  expect_near(run_layout<double>(model, values, {padded}, {2, 1, 4}), whole, 1e-12);
}

/// Products are rounded before they are summed over a tensor group, streams and gradients before
/// they travel to it in bfloat16: a little more than on one rank, whose bounds are in llama_test.
template <typename Real>
void expect_pieces_follow(std::int64_t width, double bound) {
  config::Model model = divisible_model(4);
  model.layers = 2;
  model.d_model = width;
  Vector values = test::strong_values(model, 15);
  const double share = std::sqrt(16.0 / static_cast<double>(width));  // logits as of a width of 16
  for (double& value : values) value = static_cast<float>(value * share);
  const LayoutResult exact = run_layout<double>(model, values, batches(16), {});
  for (const Recompute recompute : test::kRecompute) {
    expect_near(run_layout<Real>(model, values, batches(16), {2, 1, 2, recompute, true}), exact,
                bound);
  }
}

TEST(Layouts, FloatFollowsDouble) {
  expect_pieces_follow<float>(16, 300 * test::kRounding<float>);
}

TEST(Layouts, Bfloat16FollowsDouble) {
  if (!kernels::supports_bfloat16()) GTEST_SKIP() << "no bfloat16 on this machine";
  expect_pieces_follow<bfloat16>(128, 36 * test::kRounding<bfloat16>);
}

/// Without their sum over the tensor group, norms see the gradient of their own rows alone.
TEST(Layouts, GradientsOfNormsNeedTheirReduction) {
  const config::Model model = divisible_model(2, true);
  const Vector values = test::strong_values(model, 17);
  const LayoutResult whole = run_layout<double>(model, values, batches(18), {});
  Layout layout{1, 1, 2};
  layout.reduces_norms = false;
  const LayoutResult got = run_layout<double>(model, values, batches(18), layout);
  for (const auto& [name, gradient] : whole.gradients) {
    const bool norm = name.find("norm") != name.npos;
    double apart = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      apart = std::max(apart, std::abs(gradient[i] - got.gradients.at(name)[i]));
    }
    EXPECT_EQ(apart > 1e-3, norm) << name;
  }
}

}  // namespace
}  // namespace cadenza::model
