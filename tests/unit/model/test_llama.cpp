// SPDX-License-Identifier: Apache-2.0
// The whole model against its definition: loss, and the gradient of every parameter by central
// differences of the reference in double; with attention by definition and by the kernels.
#include "cadenza/model/llama.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "unit/model/subject.hpp"

namespace cadenza::model {
namespace {

using test::ByDefinition;
using test::ByKernels;
using test::mixed_batch;
using test::norm_of;
using test::Subject;
using test::Vector;

class WholeModel : public ::testing::TestWithParam<bool> {};  // tied, with all of Qwen, or not

/// Biases without norms and norms without biases.
std::vector<config::Model> between_llama_and_qwen() {
  std::vector<config::Model> models(2, test::small_model(false));
  models[0].qkv_bias = true;
  models[1].qk_norm = true;
  return models;
}

void expect_central_differences(const config::Model& model) {
  Subject<double> subject(model, 17, 2);
  const TokenBatch batch = mixed_batch(3);
  const double scale = 0.25;
  const double loss = subject.run<ByDefinition>(batch, scale);
  const Vector gradients = subject.gradients();
  const auto reference = [&] {
    return test::reference_forward(subject.model, subject.parameters.table, subject.values, batch)
        .loss;
  };
  EXPECT_NEAR(loss, reference(), 1e-12 * loss);
  std::mt19937_64 random(4);
  for (const ParameterInfo& info : subject.parameters.table.entries) {
    std::uniform_int_distribution<std::int64_t> element(0, info.count() - 1);
    double largest = 0;
    for (int n = 0; n < 16; ++n) {
      const auto i = static_cast<std::size_t>(info.offset + element(random));
      const double expected = scale * test::derivative(reference, subject.values[i], 1e-4);
      EXPECT_NEAR(gradients[i], expected, 1e-8 * (1 + std::abs(expected)))
          << info.name << " element " << i - static_cast<std::size_t>(info.offset);
      largest = std::max(largest, std::abs(expected));
    }
    EXPECT_GT(largest, 1e-4) << info.name << ": too small to show an error";
  }
}

TEST_P(WholeModel, GradientOfEveryParameterIsCentralDifferences) {
  expect_central_differences(test::small_model(GetParam()));
}

TEST(Llama, BiasesAndNormsOfHeadsGoAlone) {
  for (const config::Model& model : between_llama_and_qwen()) expect_central_differences(model);
}

/// What the norm reads is kept: its output would not tell it where a weight is 0.
TEST(Llama, NormsOfHeadsHaveGradientsWhereTheirWeightsAreZero) {
  Subject<double> subject(test::small_model(true), 17, 2);
  for (const LayerOffsets& layer : subject.parameters.table.layers) {
    subject.values[static_cast<std::size_t>(layer.q_norm)] = 0;
    subject.values[static_cast<std::size_t>(layer.k_norm + 1)] = 0;
  }
  subject.set(subject.values);
  const TokenBatch batch = mixed_batch(3);
  subject.run<ByDefinition>(batch, 1);
  const Vector gradients = subject.gradients();
  const auto reference = [&] {
    return test::reference_forward(subject.model, subject.parameters.table, subject.values, batch)
        .loss;
  };
  for (const LayerOffsets& layer : subject.parameters.table.layers) {
    for (const std::int64_t element : {layer.q_norm, layer.k_norm + 1}) {
      const auto i = static_cast<std::size_t>(element);
      const double expected = test::derivative(reference, subject.values[i], 1e-4);
      EXPECT_NEAR(gradients[i], expected, 1e-8 * (1 + std::abs(expected)));
      EXPECT_GT(std::abs(expected), 1e-4);
    }
  }
}

/// ||a - b|| / ||b|| of one parameter.
double difference(const Vector& a, const Vector& b, const ParameterInfo& info) {
  const auto begin = static_cast<std::ptrdiff_t>(info.offset);
  const auto end = begin + static_cast<std::ptrdiff_t>(info.count());
  Vector apart;
  for (std::ptrdiff_t i = begin; i < end; ++i) {
    apart.push_back(a[static_cast<std::size_t>(i)] - b[static_cast<std::size_t>(i)]);
  }
  return norm_of(apart) / norm_of(Vector(b.begin() + begin, b.begin() + end));
}

template <typename Real>
void expect_kernels_follow(bool tied, double bound) {
  Subject<double> exact(test::small_model(tied), 17, 5);
  Subject<Real> subject(test::small_model(tied), 17, 5);
  const TokenBatch batch = mixed_batch(6);
  const double expected = exact.run<ByDefinition>(batch, 0.5);
  EXPECT_NEAR(subject.template run<ByKernels>(batch, 0.5), expected, bound * expected);
  const Vector gradients = subject.gradients(), reference = exact.gradients();
  for (const ParameterInfo& info : exact.parameters.table.entries) {
    EXPECT_LT(difference(gradients, reference, info), bound) << info.name;
  }
}

// The bounds leave a factor of about 200 for the roundings of two layers and their conditioning.
TEST_P(WholeModel, KernelsInTheSlotGiveTheSame) {
  expect_kernels_follow<double>(GetParam(), 200 * test::kRounding<double>);
  expect_kernels_follow<float>(GetParam(), 200 * test::kRounding<float>);
}

/// The weights are those that bfloat16 holds; some forty arrays are rounded to 8 bits between a
/// parameter and the loss: a handful of roundings
/// where they add up as independent numbers do, times the conditioning of the two layers.
TEST_P(WholeModel, Bfloat16FollowsDouble) {
  if (!kernels::supports_bfloat16()) GTEST_SKIP() << "no bfloat16 on this machine";
  constexpr double u = test::kRounding<bfloat16>;
  Subject<double> exact(test::small_model(GetParam()), 17, 5);
  Subject<bfloat16> subject(test::small_model(GetParam()), 17, 5);
  exact.set(test::rounded_to<bfloat16>(exact.values));
  const TokenBatch batch = mixed_batch(6);
  const double expected = exact.run<ByDefinition>(batch, 0.5);
  EXPECT_NEAR(subject.run<ByDefinition>(batch, 0.5), expected, 2 * u * expected);
  const Vector gradients = subject.gradients(), reference = exact.gradients();
  for (const ParameterInfo& info : exact.parameters.table.entries) {
    EXPECT_LT(difference(gradients, reference, info), 24 * u) << info.name;
  }
}

template <typename Real>
void expect_repeated_steps_equal(const config::Model& model) {
  Subject<Real> subject(model, 17, 21);
  const TokenBatch batch = mixed_batch(22);
  const double loss = subject.template run<ByDefinition>(batch, 0.5);
  const Vector gradients = subject.gradients();
  subject.clear();
  EXPECT_EQ(subject.template run<ByDefinition>(batch, 0.5), loss);
  EXPECT_EQ(subject.gradients(), gradients);
}

TEST_P(WholeModel, RepeatedStepsGiveTheSameBits) {
  expect_repeated_steps_equal<double>(test::small_model(GetParam()));
  expect_repeated_steps_equal<float>(test::small_model(GetParam()));
}

TEST_P(WholeModel, GradientsAddOverMicrobatches) {
  Subject<double> subject(test::small_model(GetParam()), 17, 7);
  const TokenBatch first = mixed_batch(8);
  std::mt19937_64 random(9);
  const TokenBatch second = test::packed({4, 3}, 13, random);  // smaller than what is allocated
  subject.run<ByDefinition>(first, 1);
  Vector sum = subject.gradients();
  subject.clear();
  subject.run<ByDefinition>(second, 1);
  const Vector alone = subject.gradients();
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += alone[i];
  subject.clear();
  subject.run<ByDefinition>(first, 1);
  subject.run<ByDefinition>(second, 1);
  EXPECT_THAT(subject.gradients(), ::testing::Pointwise(::testing::DoubleNear(1e-12), sum));
}

TEST_P(WholeModel, RowsLeftOverFromALargerMicrobatchDoNotMatter) {
  std::mt19937_64 random(10);
  const TokenBatch small = test::packed({4, 1, 3}, 13, random);
  Subject<double> roomy(test::small_model(GetParam()), 17, 11);
  roomy.run<ByDefinition>(mixed_batch(12), 1);
  roomy.clear();
  Subject<double> fitting(test::small_model(GetParam()), 8, 11);
  EXPECT_EQ(roomy.run<ByDefinition>(small, 1), fitting.run<ByDefinition>(small, 1));
  EXPECT_EQ(roomy.gradients(), fitting.gradients());
}

INSTANTIATE_TEST_SUITE_P(Head, WholeModel, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tied" : "Untied"; });

TEST(Llama, DocumentsDoNotSeeEachOther) {
  Subject<double> subject(test::small_model(false), 17, 13);
  std::mt19937_64 random(14);
  const TokenBatch left = test::packed({5}, 13, random), right = test::packed({9}, 13, random);
  TokenBatch both = left;
  both.tokens.insert(both.tokens.end(), right.tokens.begin(), right.tokens.end());
  both.positions.insert(both.positions.end(), right.positions.begin(), right.positions.end());
  both.targets.insert(both.targets.end(), right.targets.begin(), right.targets.end());
  const double sum = subject.run<ByKernels>(left, 1) + subject.run<ByKernels>(right, 1);
  EXPECT_NEAR(subject.run<ByKernels>(both, 1), sum, 1e-12 * sum);
}

TEST(Llama, DocumentsOfOneTokenHaveNoLossAndNoGradient) {
  Subject<double> subject(test::small_model(false), 3, 15);
  std::mt19937_64 random(16);
  EXPECT_EQ(subject.run<ByKernels>(test::packed({1, 1, 1}, 13, random), 1), 0);
  EXPECT_THAT(subject.gradients(), ::testing::Each(0.0));
}

TEST(Llama, NanInAParameterReachesTheLoss) {
  Subject<float> subject(test::small_model(false), 17, 17);
  for (const char* name : {"model.layers.0.self_attn.v_proj.weight", "model.norm.weight"}) {
    Vector values = subject.values;
    for (const ParameterInfo& info : subject.parameters.table.entries) {
      if (info.name == name) values[static_cast<std::size_t>(info.offset)] = std::nan("");
    }
    subject.set(values);
    EXPECT_TRUE(std::isnan(subject.run<ByKernels>(mixed_batch(18), 1))) << name;
  }
}

std::int64_t allocations = 0;

void count_allocation(Kokkos::Tools::SpaceHandle, const char*, const void*, std::uint64_t) {
  ++allocations;
}

/// Everything but core attention, whose results are left as they are.
template <typename Real>
void run_dense(Llama<Real>& llama, const TokenBatch& batch, int layers) {
  const Range rows{0, static_cast<std::int64_t>(batch.tokens.size())};
  llama.set_batch(0, 0, batch);
  llama.embed(0, rows);
  for (int layer = 0; layer < layers; ++layer) {
    llama.attention_inputs(0, layer, rows);
    llama.attention_outputs(0, layer, rows);
  }
  llama.loss(0, rows, 1);
  for (int layer = layers - 1; layer >= 0; --layer) {
    llama.attention_outputs_gradient(0, layer, rows);
    llama.attention_inputs_gradient(0, layer, rows);
  }
  llama.embed_gradient(0, rows);
  fence();
}

template <typename Real>
void expect_no_allocations() {
  namespace Tools = Kokkos::Tools::Experimental;
  Subject<Real> subject(test::small_model(false), 17, 23);
  const TokenBatch batch = mixed_batch(24);
  run_dense(subject.llama, batch, 2);  // libraries prepare products of these shapes
  Tools::set_allocate_data_callback(count_allocation);
  allocations = 0;
  const Array<Real> counted("counted", 1);
  EXPECT_EQ(allocations, 1);
  run_dense(subject.llama, batch, 2);
  EXPECT_EQ(allocations, 1);
  Tools::set_allocate_data_callback(nullptr);
}

TEST(Llama, StepsAllocateNothing) {
  expect_no_allocations<float>();
  expect_no_allocations<double>();
  if (kernels::supports_bfloat16()) expect_no_allocations<bfloat16>();
}

/// Gradients of the LM head [V, 2] and of the final norm's weight [2], row by row with all logits
/// of a row at once.
struct HeadGradient {
  HeadGradient(const Subject<double>& subject, const TokenBatch& batch, double scale)
      : head(static_cast<std::size_t>(2 * subject.model.vocab), 0.0) {
    const ParameterTable& table = subject.parameters.table;
    const double* weights = subject.values.data() + table.head;
    const double* norm_weights = subject.values.data() + table.final_norm;
    const auto reference = test::reference_forward(subject.model, table, subject.values, batch);
    loss = reference.loss;
    Vector p(head.size() / 2);
    for (std::size_t row = 0; row < batch.targets.size(); ++row) {
      if (batch.targets[row] < 0) continue;
      const double* hidden = reference.hidden.data() + 2 * row;
      double sum = 0;
      for (std::size_t v = 0; v < p.size(); ++v) {
        p[v] = std::exp(weights[2 * v] * hidden[0] + weights[2 * v + 1] * hidden[1]);
        sum += p[v];
      }
      for (double& share : p) share *= scale / sum;
      p[static_cast<std::size_t>(batch.targets[row])] -= scale;
      for (std::size_t c = 0; c < 2; ++c) {
        for (std::size_t v = 0; v < p.size(); ++v) {
          head[2 * v + c] += p[v] * hidden[c];
          norm[c] += p[v] * weights[2 * v + c] * hidden[c] / norm_weights[c];
        }
      }
    }
  }
  double loss = 0;
  Vector head, norm = {0, 0};
};

/// 2^22 logits are made at a time: 40 rows of this vocabulary need three chunks, the last one
/// smaller.
TEST(Llama, ChunksOfLogitsGiveTheWholeLossAndGradient) {
  config::Model model = test::small_model(false);
  model.layers = 1;
  model.d_model = 2;
  model.heads = model.kv_heads = 1;
  model.ffn = 1;
  model.vocab = std::int64_t{1} << 18;
  Subject<double> subject(model, 40, 19);
  std::mt19937_64 random(20);
  TokenBatch batch = test::packed({40}, model.vocab, random);
  for (const std::size_t row : {0, 15, 16, 31}) batch.targets[row] = -1;  // around the cuts
  const double scale = 0.125;
  const double loss = subject.run<ByDefinition>(batch, scale);
  const HeadGradient expected(subject, batch, scale);
  EXPECT_NEAR(loss, expected.loss, 1e-12 * loss);
  const Vector gradients = subject.gradients();
  const auto part = [&](std::int64_t offset, std::size_t count) {
    const auto begin = gradients.begin() + offset;
    return Vector(begin, begin + static_cast<std::ptrdiff_t>(count));
  };
  EXPECT_THAT(part(subject.parameters.table.final_norm, 2),
              ::testing::Pointwise(::testing::DoubleNear(1e-12), expected.norm));
  const Vector head = part(subject.parameters.table.head, expected.head.size());
  double largest = 0;
  for (std::size_t i = 0; i < head.size(); ++i) {
    largest = std::max(largest, std::abs(head[i] - expected.head[i]));
  }
  EXPECT_LT(largest, 1e-12);
}

}  // namespace
}  // namespace cadenza::model
