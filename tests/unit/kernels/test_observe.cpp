// SPDX-License-Identifier: Apache-2.0
// What the last queries of a document attend to, against the softmax in double; and that no cut of
// the keys changes a bit of it.
#include "cadenza/kernels/observe.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace cadenza::kernels {
namespace {

/// A document of one head: queries of a lane each, keys one after another.
template <typename Real>
struct Subject {
  using Sum = Accumulator<Real>;
  Subject(std::int64_t length, int dim) : length(length), dim(dim) {
    std::mt19937 engine(static_cast<unsigned>(length));
    std::normal_distribution<double> normal;
    const Range observed = SparseRule::observed(length);
    rows = static_cast<int>(observed.size());
    first_query = observed.begin;
    queries.assign(static_cast<std::size_t>(dim * kObserved), 0);
    for (int d = 0; d < dim; ++d) {
      for (int lane = 0; lane < rows; ++lane) {
        queries[static_cast<std::size_t>(d * kObserved + lane)] = static_cast<Sum>(normal(engine));
      }
    }
    for (std::int64_t i = 0; i < length * dim; ++i) {
      keys.push_back(static_cast<Real>(static_cast<Sum>(normal(engine))));
    }
  }

  /// Of the keys begin, begin + step, ...: as a rank holds them.
  struct Part {
    std::int64_t begin, step, count;
  };

  ObservedMass observe(const std::vector<Part>& parts) const {
    std::vector<std::vector<Real>> held;
    std::vector<std::vector<Sum>> scores;
    std::vector<Sum> peak(kObserved, -std::numeric_limits<Sum>::infinity()), factor(kObserved, 0);
    std::vector<std::int64_t> sum(kObserved, 0);
    std::vector<ObserveJob<Real>> jobs;
    for (const Part& part : parts) {
      held.emplace_back();
      for (std::int64_t n = 0; n < part.count; ++n) {
        const auto from = keys.begin() + (part.begin + n * part.step) * dim;
        held.back().insert(held.back().end(), from, from + dim);
      }
      scores.emplace_back(static_cast<std::size_t>(part.count * kObserved));
    }
    ObservedMass mass;
    mass.columns.assign(static_cast<std::size_t>(length), 0);
    mass.slashes.assign(static_cast<std::size_t>(length), 0);
    // One job at a time: ranks share nothing but sums.
    const auto run = [&](auto&& pass) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        ObserveJob<Real> job;
        job.queries = queries.data();
        job.rows = rows;
        job.first_query = first_query;
        job.keys = held[i].data();
        job.stride = dim;
        job.count = parts[i].count;
        job.first_key = parts[i].begin;
        job.step = parts[i].step;
        job.scores = scores[i].data();
        job.peak = peak.data();
        job.sum = sum.data();
        job.factor = factor.data();
        const Range seen = diagonals(job);
        std::vector<std::uint32_t> columns(static_cast<std::size_t>(job.count));
        std::vector<std::uint32_t> slashes(static_cast<std::size_t>(seen.size()), 0);
        job.columns = columns.data();
        job.slashes = slashes.data();
        pass(std::span<const ObserveJob<Real>>(&job, 1));
        for (std::size_t n = 0; n < columns.size(); ++n) {
          mass.columns[static_cast<std::size_t>(parts[i].begin) +
                       n * static_cast<std::size_t>(parts[i].step)] = columns[n];
        }
        for (std::int64_t at = seen.begin; at < seen.end; ++at) {
          const std::uint32_t value = slashes[static_cast<std::size_t>(at - seen.begin)];
          if (at < 0 || at >= length) {
            EXPECT_EQ(value, 0U) << "diagonal " << at;
          } else {
            mass.slashes[static_cast<std::size_t>(at)] += value;
          }
        }
      }
    };
    run([&](auto jobs) { observe_logits(dim, jobs); });
    run([&](auto jobs) { observe_sums(jobs); });
    for (int lane = 0; lane < rows; ++lane) {
      const auto at = static_cast<std::size_t>(lane);
      factor[at] = static_cast<Sum>(kMassUnit * kSumUnit / static_cast<double>(sum[at]));
    }
    mass.columns.assign(mass.columns.size(), 0);
    mass.slashes.assign(mass.slashes.size(), 0);
    run([&](auto jobs) { observe_masses(jobs); });
    return mass;
  }

  std::vector<double> expected_columns() const {
    std::vector<double> columns(static_cast<std::size_t>(length), 0.0);
    for_each_share([&](std::int64_t, std::int64_t key, double share) {
      columns[static_cast<std::size_t>(key)] += share;
    });
    return columns;
  }
  std::vector<double> expected_slashes() const {
    std::vector<double> slashes(static_cast<std::size_t>(length), 0.0);
    for_each_share([&](std::int64_t query, std::int64_t key, double share) {
      slashes[static_cast<std::size_t>(query - key)] += share;
    });
    return slashes;
  }

  template <typename Visit>
  void for_each_share(Visit&& visit) const {
    for (int lane = 0; lane < rows; ++lane) {
      std::vector<double> weights;
      double sum = 0;
      for (std::int64_t key = 0; key <= first_query + lane; ++key) {
        double dot = 0;
        for (int d = 0; d < dim; ++d) {
          dot +=
              static_cast<double>(queries[static_cast<std::size_t>(d * kObserved + lane)]) *
              static_cast<double>(static_cast<Sum>(keys[static_cast<std::size_t>(key * dim + d)]));
        }
        weights.push_back(std::exp(dot));
        sum += weights.back();
      }
      for (std::size_t key = 0; key < weights.size(); ++key) {
        visit(first_query + lane, static_cast<std::int64_t>(key), weights[key] / sum);
      }
    }
  }

  std::int64_t length;
  int dim;
  int rows = 0;
  std::int64_t first_query = 0;
  std::vector<Sum> queries;
  std::vector<Real> keys;
};

template <typename Real>
class Observe : public ::testing::Test {};
using Reals = ::testing::Types<float, double, bfloat16>;
TYPED_TEST_SUITE(Observe, Reals);

TYPED_TEST(Observe, IsTheSoftmaxOfTheLastQueries) {
  for (const std::int64_t length : {1, 5, 63, 64, 65, 200, 1000}) {
    const Subject<TypeParam> subject(length, 8);
    const ObservedMass mass = subject.observe({{0, 1, length}});
    const std::vector<double> columns = subject.expected_columns();
    const std::vector<double> slashes = subject.expected_slashes();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      EXPECT_NEAR(mass.columns[i] / double{kMassUnit}, columns[i], 2e-5) << length << " key " << i;
      EXPECT_NEAR(mass.slashes[i] / double{kMassUnit}, slashes[i], 2e-5)
          << length << " slash " << i;
    }
  }
}

TYPED_TEST(Observe, TheSameBitsHoweverTheKeysAreCut) {
  const Subject<TypeParam> subject(300, 20);
  const ObservedMass whole = subject.observe({{0, 1, 300}});
  using Part = typename Subject<TypeParam>::Part;
  const std::vector<std::vector<Part>> cuts = {
      {{0, 1, 7}, {7, 1, 123}, {130, 1, 170}},
      {{200, 1, 100}, {0, 1, 200}},
      {{0, 3, 100}, {1, 3, 100}, {2, 3, 100}},
      {{299, 1, 1}, {0, 1, 299}},
  };
  for (const auto& cut : cuts) {
    const ObservedMass parts = subject.observe(cut);
    EXPECT_EQ(parts.columns, whole.columns);
    EXPECT_EQ(parts.slashes, whole.slashes);
  }
}

/// What comes first and last must not decide: NaN and infinity stay in the largest logit.
TYPED_TEST(Observe, OverflowShowsInTheLargestLogit) {
  using Sum = Accumulator<TypeParam>;
  constexpr int kDim = 4;
  constexpr std::int64_t kKeys = 150;
  const auto largest = [&](double key, std::int64_t place) {
    std::vector<Sum> queries(kDim * kObserved, 1), scores(kKeys * kObserved);
    std::vector<TypeParam> keys(kKeys * kDim, static_cast<TypeParam>(Sum(1)));
    keys[static_cast<std::size_t>(place * kDim)] = static_cast<TypeParam>(static_cast<Sum>(key));
    std::vector<Sum> peak(kObserved, -std::numeric_limits<Sum>::infinity());
    ObserveJob<TypeParam> job;
    job.queries = queries.data();
    job.rows = kObserved;
    job.first_query = kKeys;
    job.keys = keys.data();
    job.stride = kDim;
    job.count = kKeys;
    job.scores = scores.data();
    job.peak = peak.data();
    observe_logits(kDim, std::span<const ObserveJob<TypeParam>>(&job, 1));
    return peak[0];
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const std::int64_t place : {std::int64_t{0}, std::int64_t{70}, kKeys - 1}) {
    EXPECT_EQ(largest(2, place), Sum(5));
    EXPECT_EQ(largest(kInfinity, place), static_cast<Sum>(kInfinity));
    EXPECT_TRUE(std::isnan(largest(std::nan(""), place)));
  }
}

/// A document of 40 tokens, of which all logits are one number.
template <typename Real>
bool observes_blocks_of(double logit) {
  using Sum = Accumulator<Real>;
  const std::vector<Real> queries(40, static_cast<Real>(static_cast<Sum>(logit)));
  const std::vector<Real> keys(40, static_cast<Real>(Sum(1)));
  std::vector<std::uint32_t> masses(5 * 5);
  BlockJob<Real> job;
  job.queries = queries.data();
  job.query_stride = 1;
  job.count = 40;
  job.keys = keys.data();
  job.masses = masses.data();
  return observe_blocks(1, 8, 4, std::span<const BlockJob<Real>>(&job, 1));
}

TYPED_TEST(Observe, BlocksOfOverflowedLogitsAreNotChosen) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(observes_blocks_of<TypeParam>(1e30));
  for (const double logit : {kInfinity, -kInfinity, std::nan("")}) {
    EXPECT_FALSE(observes_blocks_of<TypeParam>(logit)) << logit;
  }
}

/// Masses of blocks by the definition, in double: [rows, rows] of a document of one head.
template <typename Real>
std::vector<double> block_masses(const std::vector<Real>& queries, const std::vector<Real>& keys,
                                 std::int64_t length, int dim, std::int64_t block,
                                 std::int64_t stride) {
  using Sum = Accumulator<Real>;
  const std::int64_t groups = (length + stride - 1) / stride;
  const std::int64_t rows = (length + block - 1) / block;
  std::vector<double> masses(static_cast<std::size_t>(rows * rows), 0.0);
  const auto element = [&](const std::vector<Real>& of, std::int64_t token, int d) {
    if (token >= length) return 0.0;
    return static_cast<double>(static_cast<Sum>(of[static_cast<std::size_t>(token * dim + d)]));
  };
  for (std::int64_t u = 0; u < groups; ++u) {
    std::vector<double> weights;
    double sum = 0;
    for (std::int64_t w = 0; w <= u; ++w) {
      double dot = 0;
      for (std::int64_t t = 0; t < stride; ++t) {
        for (int d = 0; d < dim; ++d) {
          dot +=
              element(queries, u * stride + stride - 1 - t, d) * element(keys, w * stride + t, d);
        }
      }
      weights.push_back(std::exp(dot / std::sqrt(dim) / static_cast<double>(stride)));
      sum += weights.back();
    }
    for (std::int64_t w = 0; w <= u; ++w) {
      const std::int64_t row = u * stride / block;
      masses[static_cast<std::size_t>(row * rows + w * stride / block)] +=
          weights[static_cast<std::size_t>(w)] / sum;
    }
  }
  return masses;
}

TYPED_TEST(Observe, BlocksAreSumsOverAntidiagonals) {
  using Real = TypeParam;
  struct Case {
    std::int64_t length, block, stride;
    int dim;
  };
  std::mt19937 engine(7);
  std::normal_distribution<double> normal;
  for (const Case& c : {Case{1, 4, 2, 3}, Case{37, 8, 4, 8}, Case{200, 16, 16, 8},
                        Case{300, 32, 4, 20}, Case{1000, 128, 16, 8}, Case{257, 64, 1, 4}}) {
    SCOPED_TRACE(c.length);
    const std::int64_t padded = (c.length + c.stride - 1) / c.stride * c.stride;
    std::vector<Real> queries, keys;
    for (std::int64_t i = 0; i < padded * c.dim; ++i) {
      const bool inside = i < c.length * c.dim;
      queries.push_back(static_cast<Real>(static_cast<Accumulator<Real>>(normal(engine))));
      keys.push_back(
          static_cast<Real>(static_cast<Accumulator<Real>>(inside ? 3 * normal(engine) : 0)));
    }
    const auto expected = block_masses(queries, keys, c.length, c.dim, c.block, c.stride);
    const std::int64_t rows = (c.length + c.block - 1) / c.block;
    // However the rows are cut: the same bits.
    std::vector<std::uint32_t> whole(static_cast<std::size_t>(rows * rows), 0);
    for (const bool alone : {false, true}) {
      const std::int64_t most = alone ? 1 : most_rows(c.block, c.stride);
      for (std::int64_t first = 0; first < rows; first += most) {
        const std::int64_t end = std::min(first + most, rows);
        std::vector<std::uint32_t> masses(static_cast<std::size_t>((end - first) * end), 77);
        BlockJob<Real> job;
        job.queries = queries.data() + first * c.block * c.dim;
        job.query_stride = c.dim;
        job.count = std::min(end * c.block, c.length) - first * c.block;
        job.first_row = first;
        job.keys = keys.data();
        job.masses = masses.data();
        ASSERT_TRUE(
            observe_blocks(c.dim, c.block, c.stride, std::span<const BlockJob<Real>>(&job, 1)));
        for (std::int64_t row = first; row < end; ++row) {
          for (std::int64_t column = 0; column < end; ++column) {
            const std::uint32_t found =
                masses[static_cast<std::size_t>((row - first) * end + column)];
            std::uint32_t& before = whole[static_cast<std::size_t>(row * rows + column)];
            if (!alone) before = found;
            EXPECT_EQ(found, before) << row << ", " << column;
            EXPECT_NEAR(found / double{kMassUnit},
                        expected[static_cast<std::size_t>(row * rows + column)], 2e-5)
                << row << ", " << column;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace cadenza::kernels
