// SPDX-License-Identifier: Apache-2.0
// The embedding and sums over flat arrays.
#include "cadenza/model/layers.hpp"

#include <gmock/gmock.h>

#include "unit/model/support.hpp"

namespace cadenza::model {
namespace {

using test::download_double;
using test::normal;
using test::upload_as;
using test::Vector;
using testing::download;
using testing::upload;

struct Shape {
  std::int64_t rows, width;
  std::size_t elements() const { return static_cast<std::size_t>(rows * width); }
};
const std::vector<Shape> kShapes = {{1, 1}, {1, 7}, {5, 1}, {3, 17}, {4, 16}, {7, 33}, {131, 5}};

TEST(Embed, CopiesTheRowsOfTheTokens) {
  std::mt19937_64 random(8);
  for (const Shape shape : kShapes) {
    const std::int64_t vocab = 6;
    const Vector table = normal(vocab * shape.width, random);
    const auto tokens = test::ids(shape.rows, 0, vocab - 1, random);
    const auto values = upload_as<float>(table);
    const auto at = upload(tokens);
    Array<float> x("x", shape.elements());
    embed<float>(values.data(), at.data(), shape.rows, shape.width, x.data());
    fence();
    const Vector got = download_double(x);
    for (std::int64_t i = 0; i < shape.rows * shape.width; ++i) {
      const auto row = static_cast<std::size_t>(i / shape.width);
      EXPECT_EQ(got[static_cast<std::size_t>(i)],
                table[static_cast<std::size_t>(tokens[row] * shape.width + i % shape.width)]);
    }
  }
}

TEST(Embed, GradientAddsTheRowsInTheirOrder) {
  std::mt19937_64 random(9);
  for (const Shape shape : kShapes) {
    const std::int64_t vocab = 3;  // so that tokens repeat
    const auto dx = testing::convert<float>(normal(shape.rows * shape.width, random));
    const auto start = testing::convert<float>(normal(vocab * shape.width, random));
    const auto tokens = test::ids(shape.rows, 0, vocab - 1, random);
    const auto grad = upload(dx);
    const auto dtable = upload(start);
    const auto at = upload(tokens);
    embed_gradient<float>(grad.data(), at.data(), shape.rows, shape.width, dtable.data());
    fence();
    std::vector<float> expected = start;
    for (std::int64_t i = 0; i < shape.rows * shape.width; ++i) {
      const auto row = static_cast<std::size_t>(i / shape.width);
      expected[static_cast<std::size_t>(tokens[row] * shape.width + i % shape.width)] +=
          dx[static_cast<std::size_t>(i)];
    }
    EXPECT_EQ(download(dtable), expected);  // bit by bit: the order is part of the contract
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

}  // namespace
}  // namespace cadenza::model
