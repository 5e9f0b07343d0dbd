// SPDX-License-Identifier: Apache-2.0
// The embedding and sums over flat arrays.
#include "cadenza/model/layers.hpp"

#include <gmock/gmock.h>

#include <array>
#include <cmath>

#include "unit/model/support.hpp"

namespace cadenza::model {
namespace {

using test::download_double;
using test::kShapes;
using test::normal;
using test::Shape;
using test::upload_as;
using test::Vector;
using testing::download;
using ::testing::ElementsAre;
using testing::upload;

/// Slices of a vocabulary of six: all, its ends, its middle, none.
const std::vector<Range> kSlices = {{0, 6}, {0, 2}, {3, 6}, {2, 4}, {4, 4}};

TEST(Embed, CopiesTheRowsOfTheSlicesTokens) {
  std::mt19937_64 random(8);
  for (const Shape shape : kShapes) {
    for (const Range slice : kSlices) {
      const Vector table = normal(slice.size() * shape.width, random);
      const auto tokens = test::ids(shape.rows, 0, 5, random);
      const auto values = upload_as<float>(table);
      const auto at = upload(tokens);
      const auto x = upload_as<float>(normal(shape.rows * shape.width, random));
      embed<float>(values.data(), slice, at.data(), shape.rows, shape.width, x.data());
      fence();
      const Vector got = download_double(x);
      for (std::int64_t i = 0; i < shape.rows * shape.width; ++i) {
        const std::int64_t token = tokens[static_cast<std::size_t>(i / shape.width)];
        const std::int64_t from = (token - slice.begin) * shape.width + i % shape.width;
        const bool here = slice.contains({token, token + 1});
        EXPECT_EQ(got[static_cast<std::size_t>(i)],
                  here ? table[static_cast<std::size_t>(from)] : 0.0);
      }
    }
  }
}

struct DeviceRuns {
  explicit DeviceRuns(const RowsByToken& sorted)
      : rows(upload(sorted.rows)), tokens(upload(sorted.tokens)), begins(upload(sorted.begins)) {}
  TokenRuns on_device() const {
    return {rows.data(), tokens.data(), begins.data(), static_cast<std::int64_t>(tokens.extent(0))};
  }
  Array<std::int32_t> rows, tokens, begins;
};

/// Of a microbatch, as in ping-pong.
std::array<Range, 2> halves(std::int64_t rows) {
  return {Range{0, rows / 2}, Range{rows / 2, rows}};
}

TEST(Embed, SortsRowsByTheTokensOfTheSlice) {
  const std::vector<std::int32_t> tokens = {5, 2, 3, 2, 9, 5, 2};
  const RowsByToken all = rows_by_token(tokens, {0, 10});
  EXPECT_THAT(all.rows, ElementsAre(1, 3, 6, 2, 0, 5, 4));
  EXPECT_THAT(all.tokens, ElementsAre(2, 3, 5, 9));
  EXPECT_THAT(all.begins, ElementsAre(0, 3, 4, 6, 7));
  const RowsByToken some = rows_by_token(tokens, {3, 9});
  EXPECT_THAT(some.rows, ElementsAre(2, 0, 5));
  EXPECT_THAT(some.tokens, ElementsAre(3, 5));
  EXPECT_THAT(some.begins, ElementsAre(0, 1, 3));
}

TEST(Embed, GradientAddsTheRowsInTheirOrder) {
  std::mt19937_64 random(9);
  for (const Shape shape : kShapes) {
    for (const Range slice : kSlices) {
      const auto dx = testing::convert<float>(normal(shape.rows * shape.width, random));
      const auto start = testing::convert<float>(normal(slice.size() * shape.width, random));
      const auto tokens = test::ids(shape.rows, 0, 5, random);
      const auto grad = upload(dx);
      const auto dtable = upload(start);
      const DeviceRuns runs(rows_by_token(tokens, slice));
      for (const Range& rows : halves(shape.rows)) {
        embed_gradient<float>(grad.data() + rows.begin * shape.width, runs.on_device(), rows, slice,
                              shape.width, dtable.data());
      }
      fence();
      std::vector<float> expected = start;
      for (std::int64_t i = 0; i < shape.rows * shape.width; ++i) {
        const std::int64_t token = tokens[static_cast<std::size_t>(i / shape.width)];
        if (!slice.contains({token, token + 1})) continue;
        const std::int64_t to = (token - slice.begin) * shape.width + i % shape.width;
        expected[static_cast<std::size_t>(to)] += dx[static_cast<std::size_t>(i)];
      }
      EXPECT_EQ(download(dtable), expected);  // bit by bit: the order is part of the contract
    }
  }
}

TEST(FlatArrays, AreClearedCopiedAndAdded) {
  std::mt19937_64 random(10);
  for (const std::int64_t count : {1, 7, 4096, 10001}) {
    const Vector a = normal(count, random), b = normal(count, random);
    const auto left = upload_as<double>(a), right = upload_as<double>(b);
    Array<double> to("to", static_cast<std::size_t>(count));
    add<double>(left.data(), right.data(), count, to.data());
    Vector sum = a;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
    EXPECT_EQ(download_double(to), sum);
    copy<double>(left.data(), count, to.data());
    EXPECT_EQ(download_double(to), a);
    clear(to.data(), count);
    EXPECT_THAT(download_double(to), ::testing::Each(0.0));
  }
}

TEST(Bias, IsAddedToAllRows) {
  std::mt19937_64 random(12);
  for (const Shape shape : kShapes) {
    const Vector y = normal(shape.rows * shape.width, random), bias = normal(shape.width, random);
    const auto rows = upload_as<double>(y), added = upload_as<double>(bias);
    add_bias<double>(added.data(), shape.rows, shape.width, rows.data());
    Vector expected = y;
    for (std::size_t i = 0; i < y.size(); ++i) {
      expected[i] += bias[i % static_cast<std::size_t>(shape.width)];
    }
    EXPECT_EQ(download_double(rows), expected);
  }
}

/// Blocks of 32 rows are summed in float, their sums in double, one after another.
TEST(Bias, GradientsAreSumsOfRowsAddedToWhatIsThere) {
  std::mt19937_64 random(13);
  for (const Shape shape : kShapes) {
    const Vector dy = test::rounded_to<bfloat16>(normal(shape.rows * shape.width, random));
    const Vector start = normal(shape.width, random);
    const auto rows = upload_as<bfloat16>(dy);
    const auto sums = upload_as<float>(start);
    const Array<float> partials("partials",
                                static_cast<std::size_t>(norm_partials(shape.rows, shape.width)));
    bias_gradient<bfloat16>(rows.data(), shape.rows, shape.width, sums.data(), partials.data());
    const Vector got = download_double(sums);
    Vector expected = start, terms(start.size(), 0.0);
    for (std::size_t i = 0; i < dy.size(); ++i) {
      const std::size_t c = i % static_cast<std::size_t>(shape.width);
      expected[c] += dy[i];
      terms[c] += std::abs(dy[i]);
    }
    for (std::size_t c = 0; c < got.size(); ++c) {
      EXPECT_NEAR(got[c], expected[c],
                  test::kRounding<float> * (32 * terms[c] + 2 * std::abs(expected[c])));
    }
  }
}

TEST(SumOfSquares, IsMadeInDouble) {
  // In float the small ones would vanish beside the first.
  std::vector<float> values(100001, 1.0F);
  values[0] = 1e6F;
  const auto at = upload(values);
  EXPECT_EQ(sum_of_squares<float>(at.data(), 100001), 1e12 + 1e5);
  EXPECT_EQ(sum_of_squares<float>(at.data(), 0), 0);
}

TEST(SumOfSquares, HasOneOrderForAnyNumberOfThreads) {
  std::mt19937_64 random(11);
  for (const std::int64_t count : {5000, 12289, 100000, 5'000'000}) {
    const auto at = upload_as<float>(normal(count, random));
    const auto sum = [&] { return sum_of_squares<float>(at.data(), count); };
    EXPECT_EQ(sum(), test::on_one_thread(sum)) << count;
  }
}

}  // namespace
}  // namespace cadenza::model
