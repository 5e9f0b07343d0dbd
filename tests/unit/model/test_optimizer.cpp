// SPDX-License-Identifier: Apache-2.0
#include "cadenza/model/parameters.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "unit/model/support.hpp"

namespace cadenza::model {
namespace {

using test::kRounding;
using test::norm_of;
using test::Vector;

config::Optimizer options() {
  config::Optimizer optimizer;
  optimizer.lr = 1e-2;
  optimizer.betas = {0.8, 0.95};
  optimizer.eps = 1e-6;
  optimizer.weight_decay = 0.3;
  optimizer.clip = 2.0;
  return optimizer;
}

/// One parameter as the paper's algorithm 2 writes it (arXiv 1711.05101).
struct Scalar {
  double value = 0, m = 0, v = 0;
  void update(double gradient, const config::Optimizer& o, double rate, double decay, int t) {
    m = o.betas[0] * m + (1 - o.betas[0]) * gradient;
    v = o.betas[1] * v + (1 - o.betas[1]) * gradient * gradient;
    const double m_hat = m / (1 - std::pow(o.betas[0], t));
    const double v_hat = v / (1 - std::pow(o.betas[1], t));
    value -= rate * (m_hat / (std::sqrt(v_hat) + o.eps) + decay * value);
  }
};

bool decays(const ParameterTable& table, std::size_t element) {
  for (const ParameterInfo& info : table.entries) {
    const auto begin = static_cast<std::size_t>(info.offset);
    if (element >= begin && element < begin + static_cast<std::size_t>(info.count())) {
      return info.columns > 0;
    }
  }
  ADD_FAILURE() << "element " << element << " belongs to no parameter";
  return false;
}

/// Several updates with random gradients, some below the clipping threshold and some above it.
template <typename Real>
void expect_reference_updates() {
  using Sum = Accumulator<Real>;
  std::mt19937_64 random(1);
  MemoryLedger ledger;
  const config::Optimizer optimizer = options();
  Parameters<Real> parameters = test::whole_parameters<Real>(test::small_model(true), 5, ledger);
  const auto count = static_cast<std::size_t>(parameters.table.elements);
  std::vector<Scalar> expected(count);
  const Vector start = test::download_double(test::masters(parameters));
  for (std::size_t i = 0; i < count; ++i) expected[i].value = start[i];
  for (int step = 0; step < 6; ++step) {
    const double deviation = (step % 2 == 0 ? 0.5 : 2.0) / std::sqrt(static_cast<double>(count));
    Vector gradient = test::normal(static_cast<std::int64_t>(count), random, 2 * deviation);
    test::write_rows(gradient, parameters.gradients.data());
    const double norm = std::sqrt(squared_gradient_norm(parameters));
    EXPECT_NEAR(norm, norm_of(gradient), 1e-12 * norm);
    EXPECT_EQ(norm > optimizer.clip, step % 2 == 1);
    const double rate = 1e-2 / (1 + step);
    adamw(parameters, optimizer, rate, norm, step);
    const double scale = norm > optimizer.clip ? optimizer.clip / norm : 1.0;
    for (std::size_t i = 0; i < count; ++i) {
      const double decay = decays(parameters.table, i) ? optimizer.weight_decay : 0.0;
      expected[i].update(gradient[i] * scale, optimizer, rate, decay, step + 1);
    }
  }
  const Vector values = test::download_double(test::masters(parameters));
  const Vector first = test::download_double(parameters.first_moment);
  const Vector second = test::download_double(parameters.second_moment);
  for (std::size_t i = 0; i < count; ++i) {
    // Per update: a dozen roundings of a change of at most about the rate, two of the value.
    const double bound = 6 * kRounding<Sum> * (12 * 1e-2 + 2 * std::abs(expected[i].value));
    ASSERT_NEAR(values[i], expected[i].value, bound) << i;
    ASSERT_NEAR(first[i], expected[i].m, 64 * kRounding<Sum> * 0.1) << i;
    ASSERT_NEAR(second[i], expected[i].v, 64 * kRounding<Sum> * 0.01) << i;
  }
  EXPECT_EQ(test::download_double(parameters.weights), test::rounded_to<Real>(values));
}

TEST(Adamw, FollowsTheScalarAlgorithm) {
  expect_reference_updates<double>();
  expect_reference_updates<float>();
  expect_reference_updates<bfloat16>();
}

/// Values after one update from the same start.
Vector updated(const config::Optimizer& optimizer, double norm) {
  MemoryLedger ledger;
  std::mt19937_64 random(2);
  Parameters<double> parameters =
      test::whole_parameters<double>(test::small_model(true), 5, ledger);
  test::write_rows(test::normal(parameters.table.elements, random, 1e-6),
                   parameters.gradients.data());
  adamw(parameters, optimizer, 0.1, norm, 0);
  return test::download_double(test::masters(parameters));
}

TEST(Adamw, ClipsOnlyAboveTheThreshold) {
  config::Optimizer optimizer = options();
  const Vector free = updated(optimizer, 0.5);
  EXPECT_EQ(updated(optimizer, optimizer.clip), free);
  EXPECT_NE(updated(optimizer, std::nextafter(optimizer.clip, 3.0) * 1.5), free);
  optimizer.clip = 0;
  EXPECT_EQ(updated(optimizer, 1e9), free);
}

TEST(Adamw, WithoutGradientMatricesDecayAndVectorsStay) {
  MemoryLedger ledger;
  const config::Optimizer optimizer = options();
  Parameters<double> parameters =
      test::whole_parameters<double>(test::small_model(false), 5, ledger);
  const Vector before = test::download_double(test::masters(parameters));
  adamw(parameters, optimizer, 0.1, 0.0, 0);
  const Vector after = test::download_double(test::masters(parameters));
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double keep = decays(parameters.table, i) ? 1 - 0.1 * optimizer.weight_decay : 1.0;
    EXPECT_DOUBLE_EQ(after[i], keep * before[i]);
  }
}

/// Ranges that cut [0, elements) into shares, dealt to `ranks` in turn: some ranks get several
/// pieces, some cuts lie inside of parameters and some shares on both sides of the last matrix.
std::vector<std::vector<Range>> random_shares(std::int64_t elements, std::size_t ranks,
                                              std::mt19937_64& random) {
  std::vector<std::int64_t> cuts = {0, elements};
  std::uniform_int_distribution<std::int64_t> cut(0, elements);
  for (int n = 0; n < 7; ++n) cuts.push_back(cut(random));
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::vector<Range>> shares(ranks);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i] < cuts[i + 1]) shares[i % ranks].push_back({cuts[i], cuts[i + 1]});
  }
  return shares;
}

/// What each rank updated of the values, moments as well; the rest of them stays as it is.
template <typename Real>
void expect_shares_equal_whole(std::uint64_t seed) {
  using Sum = Accumulator<Real>;
  std::mt19937_64 random(seed);
  MemoryLedger ledger;
  const config::Model model = test::small_model(seed % 2 == 0);
  Parameters<Real> whole = test::whole_parameters<Real>(model, 5, ledger);
  const std::int64_t elements = whole.table.elements;
  std::vector<Parameters<Real>> ranks;
  for (const auto& owned : random_shares(elements, 1 + seed % 4, random)) {
    ranks.push_back(make_parameters<Real>(model, whole_model(model), 5, ledger, owned));
  }
  const Vector start_weights = test::download_double(whole.weights);
  const Vector gradient = test::normal(elements, random);
  test::write_rows(gradient, whole.gradients.data());
  for (int step = 0; step < 2; ++step) adamw(whole, options(), 0.1, 4.0, step);
  const Vector values = test::download_double(test::masters(whole));
  const Vector weights = test::download_double(whole.weights);
  double squares = 0;
  for (Parameters<Real>& rank : ranks) {
    test::write_rows(gradient, rank.gradients.data());
    squares += squared_gradient_norm(rank);
    for (int step = 0; step < 2; ++step) adamw(rank, options(), 0.1, 4.0, step);
    Vector expected_weights = start_weights;
    std::int64_t moment = 0;
    for (const Range& owned : rank.owned) {
      std::copy(weights.begin() + owned.begin, weights.begin() + owned.end,
                expected_weights.begin() + owned.begin);
      for (const auto& [mine, all] :
           std::array{std::pair(rank.first_moment, whole.first_moment),
                      std::pair(rank.second_moment, whole.second_moment)}) {
        EXPECT_EQ(test::read_rows<Sum>(mine.data() + moment, owned.size()),
                  test::read_rows<Sum>(all.data() + owned.begin, owned.size()));
      }
      moment += owned.size();
    }
    EXPECT_EQ(rank.first_moment.extent(0), static_cast<std::size_t>(moment));
    EXPECT_EQ(test::download_double(rank.weights), expected_weights);
    if (std::is_same_v<Real, Sum>) continue;
    EXPECT_EQ(test::download_double(rank.masters), test::owned_of(values, rank.owned));
  }
  EXPECT_NEAR(squares, squared_gradient_norm(whole), 1e-12 * squares);
}

TEST(Adamw, SharesOfTheElementsMakeTheWholeUpdate) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    expect_shares_equal_whole<double>(seed);
    expect_shares_equal_whole<float>(seed);
    expect_shares_equal_whole<bfloat16>(seed);
  }
}

TEST(GradientNorm, CountsWhatATensorGroupRepeatsOnce) {
  std::mt19937_64 random(3);
  for (const int size : {1, 2}) {
    double squares = 0, expected = 0;
    for (int rank = 0; rank < size; ++rank) {
      MemoryLedger ledger;
      config::Model model = test::small_model(true);
      model.ffn = 12;
      ModelPart part = whole_model(model);
      part.tensor_rank = rank;
      part.tensor_size = size;
      auto parameters = make_parameters<double>(model, part, 5, ledger,
                                                all_elements(make_parameter_table(model, part)));
      const Vector gradient = test::normal(parameters.table.elements, random);
      test::write_rows(gradient, parameters.gradients.data());
      squares += squared_gradient_norm(parameters);
      const std::int64_t counted =
          rank == 0 ? parameters.table.elements : parameters.table.sliced_elements;
      const double norm = norm_of({gradient.begin(), gradient.begin() + counted});
      expected += norm * norm;
    }
    EXPECT_NEAR(squares, expected, 1e-12 * expected);
  }
}

struct RateCase {
  std::int64_t warmup;
  config::Schedule schedule;
  std::int64_t step, steps;
  double share;  ///< of lr
};

TEST(LearningRate, FollowsItsTable) {
  constexpr auto cosine = config::Schedule::cosine;
  constexpr auto constant = config::Schedule::constant;
  const double eighth = 0.5 * (1 + std::cos(std::numbers::pi / 8));
  const std::vector<RateCase> table = {
      {4, cosine, 0, 20, 0.25},   {4, cosine, 3, 20, 1.0},   {4, cosine, 4, 20, 1.0},
      {4, cosine, 6, 20, eighth}, {4, cosine, 12, 20, 0.5},  {4, cosine, 20, 20, 0.0},
      {4, constant, 0, 20, 0.25}, {4, constant, 3, 20, 1.0}, {4, constant, 19, 20, 1.0},
      {0, cosine, 0, 8, 1.0},     {0, cosine, 1, 8, eighth}, {0, cosine, 4, 8, 0.5},
      {0, constant, 0, 8, 1.0},   {0, constant, 7, 8, 1.0},  {1, cosine, 0, 1, 1.0},
      {10, cosine, 4, 5, 0.5},    {10, constant, 4, 5, 0.5}, {5, cosine, 4, 5, 1.0},
  };
  config::Optimizer optimizer = options();
  for (const RateCase& row : table) {
    optimizer.warmup = row.warmup;
    optimizer.schedule = row.schedule;
    EXPECT_NEAR(learning_rate(optimizer, row.step, row.steps), optimizer.lr * row.share, 1e-17)
        << "warmup " << row.warmup << ", step " << row.step << " of " << row.steps;
  }
}

TEST(LearningRate, CosineFallsAndStaysPositive) {
  config::Optimizer optimizer = options();
  optimizer.warmup = 3;
  double before = optimizer.lr;
  for (std::int64_t step = 4; step < 50; ++step) {
    const double rate = learning_rate(optimizer, step, 50);
    EXPECT_LT(rate, before);
    EXPECT_GT(rate, 0);
    before = rate;
  }
}

}  // namespace
}  // namespace cadenza::model
