// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "cadenza/model/layers.hpp"
#include "unit/model/support.hpp"

namespace cadenza::model {
namespace {

using test::derivative;
using test::kRounding;
using test::normal;
using test::Vector;
using ::testing::Each;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
struct LogitsShape {
  std::int64_t rows, vocab;
};
const std::vector<LogitsShape> kLogitsShapes = {{1, 1},   {1, 2},  {5, 3}, {4, 259},
                                                {33, 17}, {2, 90}, {70, 8}};

struct Result {
  double loss = 0;
  Vector gradient;
  Vector losses;  ///< [2, rows]: as RowLosses
};

/// What rows without a target keep.
constexpr double kUntouched = -7;

template <typename Sum>
Array<Sum> row_losses(std::int64_t rows) {
  return test::upload_as<Sum>(Vector(static_cast<std::size_t>(2 * rows), kUntouched));
}

/// Where the types are the same the gradient takes the place of the logits, as in the model.
template <typename Real>
Result run(const Vector& logits, const std::vector<std::int32_t>& targets, std::int64_t vocab,
           double scale = 1) {
  using Sum = Accumulator<Real>;
  const auto values = test::upload_as<Sum>(logits);
  const auto at = testing::upload(targets);
  const auto rows = static_cast<std::int64_t>(targets.size());
  Array<Real> gradient;
  if constexpr (std::is_same_v<Real, Sum>) {
    gradient = values;
  } else {
    gradient = Array<Real>("gradient", logits.size());
  }
  const Array<Sum> losses = row_losses<Sum>(rows);
  const double loss = cross_entropy(values.data(), at.data(), rows, vocab, scale, gradient.data(),
                                    {losses.data(), losses.data() + rows});
  fence();
  return {loss, test::download_double(gradient), test::download_double(losses)};
}

/// Sum over targets of -log softmax, by definition; long double carries logits of a few hundred.
double reference_loss(const Vector& logits, const std::vector<std::int32_t>& targets,
                      std::int64_t vocab) {
  long double total = 0;
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] < 0) continue;
    const double* values = logits.data() + row * static_cast<std::size_t>(vocab);
    long double sum = 0;
    for (std::int64_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<long double>(values[v]));
    total += std::log(sum) - static_cast<long double>(values[targets[row]]);
  }
  return static_cast<double>(total);
}

TEST(CrossEntropy, LossFollowsItsDefinition) {
  std::mt19937_64 random(1);
  for (const LogitsShape& shape : kLogitsShapes) {
    const std::int64_t rows = shape.rows, vocab = shape.vocab;
    const Vector logits = normal(rows * vocab, random, 5);
    const auto targets = test::ids(rows, -1, vocab - 1, random);
    const double expected = reference_loss(logits, targets, vocab);
    EXPECT_NEAR(run<double>(logits, targets, vocab, 0.3).loss, expected, 1e-12 * (1 + expected));
    // Logits differ by at most 50; each difference is rounded once, each exponential twice.
    EXPECT_NEAR(run<float>(logits, targets, vocab, 0.3).loss, expected,
                static_cast<double>(rows) * (50 + 4) * kRounding<float>);
  }
}

TEST(CrossEntropy, GradientIsCentralDifferencesTimesScale) {
  std::mt19937_64 random(2);
  const double scale = 0.37;
  for (const LogitsShape& shape : kLogitsShapes) {
    const std::int64_t rows = shape.rows, vocab = shape.vocab;
    SCOPED_TRACE(::testing::Message() << rows << " x " << vocab);
    Vector logits = normal(rows * vocab, random, 2);
    const auto targets = test::ids(rows, -1, vocab - 1, random);
    const Result got = run<double>(logits, targets, vocab, scale);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      // The loss of one row alone depends on the element: quicker, and more exact.
      const auto row = static_cast<std::int64_t>(i) / vocab;
      Vector line(logits.begin() + row * vocab, logits.begin() + (row + 1) * vocab);
      const std::vector<std::int32_t> target = {targets[static_cast<std::size_t>(row)]};
      double& x = line[i - static_cast<std::size_t>(row * vocab)];
      const double expected =
          scale * derivative([&] { return reference_loss(line, target, vocab); }, x);
      EXPECT_NEAR(got.gradient[i], expected, 1e-10);
    }
  }
}

TEST(CrossEntropy, FloatGradientFollowsDouble) {
  std::mt19937_64 random(3);
  const double scale = 0.37;
  for (const LogitsShape& shape : kLogitsShapes) {
    const std::int64_t rows = shape.rows, vocab = shape.vocab;
    const Vector logits = normal(rows * vocab, random, 5);
    const auto targets = test::ids(rows, 0, vocab - 1, random);
    const Result exact = run<double>(logits, targets, vocab, scale);
    const Result got = run<float>(logits, targets, vocab, scale);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const bool hit = targets[i / static_cast<std::size_t>(vocab)] ==
                       static_cast<std::int32_t>(i % static_cast<std::size_t>(vocab));
      const double share = exact.gradient[i] + (hit ? scale : 0.0);  // scale * softmax
      // A rounded difference of at most 50, exp, sum, factor and product; for a target - scale.
      const double bound =
          share * (50 + 8) * kRounding<float> + (hit ? 2 * scale * kRounding<float> : 0.0);
      EXPECT_NEAR(got.gradient[i], exact.gradient[i], bound + 1e-38);
    }
  }
}

TEST(CrossEntropy, RoundedGradientIsTheGradientRounded) {
  std::mt19937_64 random(5);
  for (const LogitsShape& shape : kLogitsShapes) {
    const Vector logits = normal(shape.rows * shape.vocab, random, 5);
    const auto targets = test::ids(shape.rows, -1, shape.vocab - 1, random);
    const Result exact = run<float>(logits, targets, shape.vocab, 0.37);
    const Result got = run<bfloat16>(logits, targets, shape.vocab, 0.37);
    EXPECT_EQ(got.loss, exact.loss);
    EXPECT_EQ(got.gradient, test::rounded_to<bfloat16>(exact.gradient));
  }
}

/// Many lanes at once: every vocabulary up to two vectors of the widest instruction set.
TEST(CrossEntropy, AllEqualAndOneHugeLogit) {
  for (std::int64_t vocab = 1; vocab <= 33; ++vocab) {
    const auto width = static_cast<std::size_t>(vocab);
    Vector equal(width, -1e4);
    EXPECT_NEAR(run<float>(equal, {0}, vocab).loss, std::log(static_cast<double>(vocab)),
                4 * kRounding<float> * (1 + std::log(static_cast<double>(vocab))));
    for (std::size_t at = 0; at < width; ++at) {
      Vector huge(width, 0.0);
      huge[at] = 1e4;
      const Result got = run<float>(huge, {0}, vocab);
      EXPECT_EQ(got.loss, at == 0 ? 0.0 : 1e4);
      EXPECT_EQ(got.gradient[at], at == 0 ? 0.0 : 1.0);
    }
  }
}

TEST(CrossEntropy, RowsWithoutTargetCountForNothing) {
  std::mt19937_64 random(4);
  const std::int64_t vocab = 19;
  const Vector logits = normal(3 * vocab, random);
  const Vector middle(logits.begin() + vocab, logits.begin() + 2 * vocab);
  const Result got = run<double>(logits, {-1, 7, -1}, vocab);
  const Result alone = run<double>(middle, {7}, vocab);
  EXPECT_EQ(got.loss, alone.loss);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const bool inside = i >= 19 && i < 38;
    EXPECT_EQ(got.gradient[i], inside ? alone.gradient[i - 19] : 0.0);
  }
  const Result none = run<float>(logits, {-1, -1, -1}, vocab);
  EXPECT_EQ(none.loss, 0);
  EXPECT_THAT(none.gradient, Each(0.0));
}

template <typename Real>
void expect_extremes_finite() {
  const Vector logits = {1e4, -1e4, 1e4, 0, /**/ -1e4, -1e4, -1e4, -1e4, /**/ 1e4, 0, 0, -1e4};
  const Result got = run<Real>(logits, {1, 2, 0}, 4);
  // Two equal maxima above the target; four equal ones; a certain and right one.
  const double expected = 2e4 + std::log(2.0) + std::log(4.0);
  EXPECT_NEAR(got.loss, expected, 4 * kRounding<Real> * expected);
  const Vector gradient = {0.5, -1, 0.5, 0, 0.25, 0.25, -0.75, 0.25, 0, 0, 0, 0};
  EXPECT_THAT(got.gradient, ::testing::Pointwise(::testing::DoubleNear(1e-6), gradient));
}

TEST(CrossEntropy, ExtremeLogitsStayFinite) {
  expect_extremes_finite<float>();
  expect_extremes_finite<double>();
}

TEST(CrossEntropy, NanAndInfinityReachTheLoss) {
  for (const double bad : {kNan, kInfinity}) {
    for (std::size_t at = 0; at < 3; ++at) {
      Vector logits = {0.1, 0.2, 0.3};
      logits[at] = bad;
      EXPECT_FALSE(std::isfinite(run<float>(logits, {1}, 3).loss)) << bad << " at " << at;
    }
  }
  EXPECT_TRUE(std::isnan(run<float>({kNan, 0, 0}, {1}, 3).loss));
  EXPECT_FALSE(std::isfinite(run<float>({-kInfinity, -kInfinity}, {1}, 2).loss));
}

/// The same over slices of the vocabulary, whose statistics are reduced here.
Result run_slices(const Vector& logits, const std::vector<std::int32_t>& targets,
                  std::int64_t vocab, std::int64_t slices, double scale) {
  const auto rows = static_cast<std::int64_t>(targets.size());
  const auto at = testing::upload(targets);
  std::vector<Array<double>> values, statistics;
  std::vector<Range> ranges;
  const auto of = [&](const Array<double>& all) {
    return RowStatistics<double>{all.data(), all.data() + rows, all.data() + 2 * rows};
  };
  for (std::int64_t slice = 0; slice < slices; ++slice) {
    const Range range{slice * vocab / slices, (slice + 1) * vocab / slices};
    Vector part;
    for (std::int64_t row = 0; row < rows; ++row) {
      part.insert(part.end(), logits.begin() + row * vocab + range.begin,
                  logits.begin() + row * vocab + range.end);
    }
    ranges.push_back(range);
    values.push_back(test::upload_as<double>(part));
    statistics.push_back(Array<double>("statistics", static_cast<std::size_t>(3 * rows)));
    slice_largest<double>(values.back().data(), at.data(), rows, range, of(statistics.back()));
  }
  Vector all(static_cast<std::size_t>(3 * rows), -kInfinity);
  const auto reduce = [&](std::size_t first, std::size_t last, const auto& combine) {
    for (const Array<double>& array : statistics) {
      const Vector part = test::download_double(array);
      for (std::size_t i = first; i < last; ++i) all[i] = combine(all[i], part[i]);
    }
    for (const Array<double>& array : statistics) test::write_rows(all, array.data());
  };
  const auto count = static_cast<std::size_t>(rows);
  reduce(0, count, [](double a, double b) { return std::max(a, b); });
  for (std::size_t s = 0; s < values.size(); ++s) {
    slice_sums<double>(values[s].data(), at.data(), rows, ranges[s], of(statistics[s]));
  }
  std::fill(all.begin() + rows, all.end(), 0.0);
  reduce(count, 3 * count, std::plus<>());
  Result result{0, Vector(logits.size()), {}};
  for (std::size_t s = 0; s < values.size(); ++s) {
    const Array<double> losses = row_losses<double>(rows);
    result.loss = slice_gradient<double>(values[s].data(), at.data(), rows, ranges[s], scale,
                                         of(statistics[s]), values[s].data(),
                                         {losses.data(), losses.data() + rows});
    result.losses = test::download_double(losses);
    const Vector part = test::download_double(values[s]);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(part.size()); ++i) {
      const std::int64_t width = ranges[s].size();
      result.gradient[static_cast<std::size_t>(i / width * vocab + ranges[s].begin + i % width)] =
          part[static_cast<std::size_t>(i)];
    }
  }
  return result;
}

TEST(CrossEntropy, TellsTheLossOfEveryRow) {
  std::mt19937_64 random(16);
  for (const LogitsShape& shape : kLogitsShapes) {
    const Vector logits = normal(shape.rows * shape.vocab, random, 5);
    const auto targets = test::ids(shape.rows, -1, shape.vocab - 1, random);
    const Vector losses = run<double>(logits, targets, shape.vocab).losses;
    for (std::size_t row = 0; row < targets.size(); ++row) {
      const double margin = losses[static_cast<std::size_t>(shape.rows) + row];
      if (targets[row] < 0) {
        EXPECT_EQ(losses[row], kUntouched);
        continue;
      }
      const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row) * shape.vocab;
      const Vector values(first, first + shape.vocab);
      const double target = values[static_cast<std::size_t>(targets[row])];
      EXPECT_NEAR(losses[row], reference_loss(values, {targets[row]}, shape.vocab), 1e-12);
      EXPECT_EQ(margin, target - *std::ranges::max_element(values));
    }
  }
}

TEST(CrossEntropy, SlicesOfTheVocabularyGiveTheWhole) {
  std::mt19937_64 random(6);
  for (const LogitsShape& shape : kLogitsShapes) {
    for (const std::int64_t slices : {1, 2, 3, 4}) {
      if (slices > shape.vocab) continue;
      SCOPED_TRACE(::testing::Message() << shape.vocab << " in " << slices);
      const Vector logits = normal(shape.rows * shape.vocab, random, 5);
      const auto targets = test::ids(shape.rows, -1, shape.vocab - 1, random);
      const Result whole = run<double>(logits, targets, shape.vocab, 0.37);
      const Result got = run_slices(logits, targets, shape.vocab, slices, 0.37);
      EXPECT_NEAR(got.loss, whole.loss, 1e-12 * (1 + whole.loss));
      EXPECT_THAT(got.losses, ::testing::Pointwise(::testing::DoubleNear(1e-12), whole.losses));
      EXPECT_THAT(got.gradient, ::testing::Pointwise(::testing::DoubleNear(1e-14), whole.gradient));
    }
  }
}

TEST(CrossEntropy, LossHasOneOrderForAnyNumberOfThreads) {
  std::mt19937_64 random(12);
  for (const std::int64_t rows : {70, 333, 2000, 70000}) {
    const std::int64_t vocab = 5;
    const Vector logits = normal(rows * vocab, random);
    const auto targets = test::ids(rows, -1, 4, random);
    const auto loss = [&] { return run<float>(logits, targets, vocab).loss; };
    EXPECT_EQ(loss(), test::on_one_thread(loss)) << rows;
  }
}

TEST(CrossEntropy, NanAndInfinityInASliceReachTheLossOfAll) {
  for (const double bad : {kNan, kInfinity}) {
    for (std::size_t at = 0; at < 4; ++at) {
      Vector logits = {0.1, 0.2, 0.3, 0.4};
      logits[at] = bad;
      EXPECT_FALSE(std::isfinite(run_slices(logits, {1}, 4, 2, 1).loss)) << bad << " at " << at;
    }
  }
}

TEST(CrossEntropy, NanInARowWithoutTargetIsNotSeen) {
  const Result got = run<float>({kNan, kNan, 0, 0}, {-1, 0}, 2);
  EXPECT_NEAR(got.loss, std::log(2.0), 1e-7);
  EXPECT_THAT(got.gradient, ::testing::ElementsAre(0, 0, -0.5, 0.5));
}

}  // namespace
}  // namespace cadenza::model
