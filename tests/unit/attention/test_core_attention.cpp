// SPDX-License-Identifier: Apache-2.0
#include "cadenza/attention/core_attention.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <numeric>
#include <random>

#include "unit/kernels/device_data.hpp"

namespace cadenza::attention {
namespace {

using ::testing::DoubleNear;
using testing::download;
using ::testing::Each;
using ::testing::Pointwise;
using testing::upload;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> normal(std::size_t count, std::mt19937_64& random) {
  std::normal_distribution<double> value;
  std::vector<double> made(count);
  for (double& number : made) number = value(random);
  return made;
}

RotaryFrequencies frequencies(int head_dim, double theta) {
  RotaryFrequencies all;
  for (int d = 0; d < head_dim / 2; ++d) {
    all.of_pair.push_back(std::pow(theta, -2.0 * d / head_dim));
  }
  return all;
}

TEST(CoreAttention, InitialiseIsTheResultOfNoKeys) {
  const auto out = upload(std::vector<float>(24, std::nanf("")));
  const auto lse = upload(std::vector<float>(6, std::nanf("")));
  initialise(out.data(), lse.data(), 3, 2, 4);
  EXPECT_THAT(download(out), Each(0.0f));
  EXPECT_THAT(download(lse), Each(-std::numeric_limits<float>::infinity()));
}

TEST(CoreAttention, DeltaIsTheRowSum) {
  std::mt19937_64 random(1);
  const auto a = normal(30, random), b = normal(30, random);
  const auto sums = upload(std::vector<double>(6));
  const auto a_device = upload(a), b_device = upload(b);
  delta<double>(a_device.data(), b_device.data(), 3, 2, 5, sums.data());
  const auto got = download(sums);
  for (std::ptrdiff_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(
        got[static_cast<std::size_t>(i)],
        std::inner_product(a.begin() + 5 * i, a.begin() + 5 * i + 5, b.begin() + 5 * i, 0.0),
        1e-14);
  }
}

/// Attention over some keys of one row, as (out, lse).
struct Partial {
  std::vector<double> out;
  double lse = -kInfinity;
};

constexpr int kDim = 3;

Partial attend(const std::vector<double>& logits, const std::vector<double>& values,
               const std::vector<std::size_t>& keys) {
  Partial result{std::vector<double>(kDim), -kInfinity};
  double peak = -kInfinity, sum = 0;
  for (const std::size_t j : keys) peak = std::max(peak, logits[j]);
  for (const std::size_t j : keys) sum += std::exp(logits[j] - peak);
  for (const std::size_t j : keys) {
    for (std::size_t d = 0; d < kDim; ++d)
      result.out[d] += std::exp(logits[j] - peak) / sum * values[j * kDim + d];
  }
  if (!keys.empty()) result.lse = peak + std::log(sum);
  return result;
}

Partial merge(const std::vector<Partial>& parts) {
  const auto out = upload(std::vector<double>(kDim));
  const auto lse = upload(std::vector<double>{-kInfinity});
  for (const Partial& part : parts) {
    const auto part_out = upload(part.out);
    const auto part_lse = upload(std::vector<double>{part.lse});
    merge_partial(out.data(), lse.data(), part_out.data(), part_lse.data(), 1, 1, kDim);
  }
  return {download(out), download(lse)[0]};
}

TEST(CoreAttention, MergeEqualsOneShotInAnyOrder) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    const std::size_t keys = 1 + random() % 20, count = 1 + random() % 16;
    auto logits = normal(keys, random);
    const auto values = normal(keys * kDim, random);
    std::vector<std::vector<std::size_t>> parts(count);
    std::vector<std::size_t> all(keys);
    std::iota(all.begin(), all.end(), std::size_t{0});
    for (const std::size_t j : all) {
      const std::size_t part = random() % count;
      parts[part].push_back(j);
      if (round % 2 == 1)
        logits[j] += 200.0 * (static_cast<double>(part % 3) - 1);  // gaps of +-200, 400
    }
    std::vector<Partial> partials;
    for (const auto& part : parts) {
      auto partial = attend(logits, values, part);
      // An empty part's out is not read.
      if (part.empty()) partial.out.assign(kDim, std::numeric_limits<double>::quiet_NaN());
      partials.push_back(partial);
    }
    std::shuffle(partials.begin(), partials.end(), random);
    const Partial expected = attend(logits, values, all), got = merge(partials);
    EXPECT_THAT(got.out, Pointwise(DoubleNear(1e-12), expected.out));
    EXPECT_NEAR(got.lse, expected.lse, 1e-12 * std::max(1.0, std::abs(expected.lse)));
  }
}

/// Parts that arrive one by one in float32, as from the servers of a document. Each merge rounds
/// lse by up to half a unit, 1e-6 of a row's weight here, and these add up as random numbers do.
TEST(CoreAttention, MergeOfManyPartsLosesLittle) {
  constexpr std::size_t kParts = 64, kRows = 32, kWidth = 32;
  std::mt19937_64 random(7);
  const auto values = normal(kParts * kRows * kWidth, random);
  const auto logits = normal(kParts * kRows, random);
  const auto out = upload(std::vector<float>(kRows * kWidth));
  const auto lse = upload(std::vector<float>(kRows));
  initialise(out.data(), lse.data(), kRows, 1, kWidth);
  std::vector<double> weight(kRows), expected(kRows * kWidth);
  for (std::size_t part = 0; part < kParts; ++part) {
    std::vector<float> part_lse(kRows), part_out(kRows * kWidth);
    for (std::size_t row = 0; row < kRows; ++row) {
      part_lse[row] = static_cast<float>(20 + 3 * logits[part * kRows + row]);
      const double w = std::exp(static_cast<double>(part_lse[row]) - 20);
      weight[row] += w;
      for (std::size_t i = row * kWidth; i < (row + 1) * kWidth; ++i) {
        part_out[i] = static_cast<float>(values[part * kRows * kWidth + i]);
        expected[i] += w * static_cast<double>(part_out[i]);
      }
    }
    merge_partial(out.data(), lse.data(), upload(part_out).data(), upload(part_lse).data(), kRows,
                  1, kWidth);
    fence();
  }
  const auto merged = download(out), merged_lse = download(lse);
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < merged.size(); ++i) {
    const double exact = expected[i] / weight[i / kWidth];
    error += (static_cast<double>(merged[i]) - exact) * (static_cast<double>(merged[i]) - exact);
    norm += exact * exact;
  }
  EXPECT_LE(std::sqrt(error / norm), 2e-6);
  for (std::size_t row = 0; row < kRows; ++row) {
    EXPECT_NEAR(static_cast<double>(merged_lse[row]), 20 + std::log(weight[row]), 2e-5);
  }
}

TEST(CoreAttention, MergeOfEmptyPartsIsEmpty) {
  const Partial nothing{{std::nan(""), 1, 2}, -kInfinity};
  const Partial got = merge({nothing, nothing});
  EXPECT_THAT(got.out, Each(0.0));
  EXPECT_EQ(got.lse, -kInfinity);
}

TEST(CoreAttention, MergeLeavesAResultAloneWhenThePartIsEmpty) {
  const Partial some{{0.1, 0.2, 0.3}, 0.7}, nothing{{9, 9, 9}, -kInfinity};
  for (const auto& parts :
       {std::vector<Partial>{some, nothing}, std::vector<Partial>{nothing, some}}) {
    const Partial got = merge(parts);
    EXPECT_EQ(got.out, some.out);
    EXPECT_EQ(got.lse, some.lse);
  }
}

/// Rows of several heads, merged as a whole and by slices of heads from compact parts.
TEST(CoreAttention, MergeBySlicesOfHeadsEqualsTheWhole) {
  constexpr int kRows = 7, kHeads = 5;
  std::mt19937_64 random(6);
  auto lse = normal(kRows * kHeads, random), part_lse = normal(kRows * kHeads, random);
  lse[3] = lse[11] = part_lse[11] = part_lse[20] = -kInfinity;
  const auto out = normal(lse.size() * kDim, random), part = normal(out.size(), random);
  const auto merged_out = upload(out), merged_lse = upload(lse);
  merge_partial(merged_out.data(), merged_lse.data(), upload(part).data(), upload(part_lse).data(),
                kRows, kHeads, kDim);
  const auto sliced_out = upload(out), sliced_lse = upload(lse);
  for (const Range heads : {Range{0, 2}, Range{2, 2}, Range{2, 3}, Range{3, 5}}) {
    std::vector<double> compact, compact_lse;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const auto from = row * kHeads + heads.begin, to = row * kHeads + heads.end;
      compact.insert(compact.end(), part.begin() + from * kDim, part.begin() + to * kDim);
      compact_lse.insert(compact_lse.end(), part_lse.begin() + from, part_lse.begin() + to);
    }
    merge_partial(sliced_out.data(), sliced_lse.data(), {kHeads, heads}, upload(compact).data(),
                  upload(compact_lse).data(), kRows, kDim);
  }
  fence();
  EXPECT_EQ(download(sliced_out), download(merged_out));
  EXPECT_EQ(download(sliced_lse), download(merged_lse));
}

TEST(CoreAttention, InitialiseOfSomeHeadsLeavesTheOthers) {
  const auto out = upload(std::vector<float>(3 * 4 * 2, 7.0f));
  const auto lse = upload(std::vector<float>(3 * 4, 7.0f));
  initialise(out.data(), lse.data(), 3, HeadSlice{4, {1, 3}}, 2);
  fence();
  const auto outs = download(out), sums = download(lse);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const bool inside = i % 4 == 1 || i % 4 == 2;
    EXPECT_EQ(sums[i], inside ? -std::numeric_limits<float>::infinity() : 7.0f);
    EXPECT_EQ(outs[2 * i], inside ? 0.0f : 7.0f);
    EXPECT_EQ(outs[2 * i + 1], inside ? 0.0f : 7.0f);
  }
}

TEST(CoreAttention, MergeKeepsNan) {
  const Partial some{{1, 2, 3}, 0}, broken{{1, 2, 3}, std::nan("")};
  EXPECT_TRUE(std::isnan(merge({some, broken}).lse));
  EXPECT_TRUE(std::isnan(merge({broken, some}).lse));
}

TEST(CoreAttention, RotaryTableHoldsCosAndSinOfTheAngles) {
  for (const int dim : {2, 7, 64}) {
    MemoryLedger ledger;
    const auto table = make_rotary_table<float>(ledger, 1000, frequencies(dim, 10000));
    const auto cos = download(table.cos), sin = download(table.sin);
    EXPECT_EQ(table.half, dim / 2);
    ASSERT_EQ(cos.size(), static_cast<std::size_t>(1000 * (dim / 2)));
    EXPECT_EQ(ledger.current(MemoryKind::attention), 2 * 4 * 1000 * (dim / 2));
    for (const int position : {0, 1, 17, 999}) {
      for (int d = 0; d < dim / 2; ++d) {
        const double angle = position / std::pow(10000.0, 2.0 * d / dim);
        const auto at = static_cast<std::size_t>(position * (dim / 2) + d);
        EXPECT_NEAR(cos[at], std::cos(angle), 6e-8);  // half a float's unit: angles are not rounded
        EXPECT_NEAR(sin[at], std::sin(angle), 6e-8);
      }
    }
  }
}

TEST(CoreAttention, RotateKeysTurnsPairsByTheirPositions) {
  std::mt19937_64 random(3);
  constexpr int kHeads = 2;
  for (const int dim : {1, 2, 5, 8}) {
    MemoryLedger ledger;
    const auto table = make_rotary_table<double>(ledger, 40, frequencies(dim, 100));
    const std::vector<std::int32_t> positions = {0, 39, 3, 0, 1};
    const auto before = normal(positions.size() * kHeads * static_cast<std::size_t>(dim), random);
    const auto k = upload(before);
    const auto at = upload(positions);
    const auto rows = static_cast<std::int64_t>(positions.size());
    rotate_keys<double>(table, k.data(), at, rows, kHeads, dim);
    const auto turned = download(k);
    for (std::size_t head = 0; head < positions.size() * kHeads; ++head) {
      const std::size_t base = head * static_cast<std::size_t>(dim);
      for (int d = 0; d < dim / 2; ++d) {
        const std::size_t low = base + static_cast<std::size_t>(d),
                          high = low + static_cast<std::size_t>(dim / 2);
        const auto expected =
            std::complex<double>(before[low], before[high]) *
            std::polar(1.0, positions[head / kHeads] * std::pow(100.0, -2.0 * d / dim));
        EXPECT_NEAR(turned[low], expected.real(), 1e-12);
        EXPECT_NEAR(turned[high], expected.imag(), 1e-12);
      }
      if (dim % 2 == 1) {
        const std::size_t last = base + static_cast<std::size_t>(dim) - 1;
        EXPECT_EQ(turned[last], before[last]);
      }
    }
  }
}

/// Largest relative error of storing a number: half a unit of 8 bits in bfloat16.
template <typename Real>
constexpr double kRounding = std::numeric_limits<Real>::epsilon() / 2;
template <>
constexpr double kRounding<bfloat16> = 0x1p-8;

template <typename Real>
std::vector<Real> stored(const std::vector<double>& values) {
  std::vector<Real> made;
  for (const double value : values) {
    made.push_back(static_cast<Real>(static_cast<Accumulator<Real>>(value)));
  }
  return made;
}

template <typename Real>
double number(const Real& value) {
  return static_cast<Accumulator<Real>>(value);
}

template <typename Real>
void expect_keys_rounded_once(int dim) {
  std::mt19937_64 random(4);
  MemoryLedger ledger;
  const auto table = make_rotary_table<Accumulator<Real>>(ledger, 40, frequencies(dim, 100));
  const std::vector<std::int32_t> positions = {0, 39, 3};
  const auto before =
      stored<Real>(normal(positions.size() * static_cast<std::size_t>(dim), random));
  const auto k = upload(before);
  rotate_keys<Real>(table, k.data(), upload(positions), 3, 1, dim);
  const auto turned = download(k);
  for (std::size_t i = 0; i < turned.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(dim),
                      d = i % static_cast<std::size_t>(dim);
    const auto half = static_cast<std::size_t>(dim / 2);
    const std::size_t low = d % half + row * static_cast<std::size_t>(dim);
    const auto pair = std::complex<double>(number(before[low]), number(before[low + half])) *
                      std::polar(1.0, positions[row] * std::pow(100.0, -2.0 * (d % half) / dim));
    const double expected = d < half ? pair.real() : pair.imag();
    // Two rounded products of a rounded cosine or sine, one sum, one rounding to Real.
    EXPECT_NEAR(number(turned[i]), expected,
                kRounding<Real> * std::abs(expected) +
                    5 * kRounding<Accumulator<Real>> * 2 * std::abs(pair));
  }
}

TEST(CoreAttention, RotatedKeysAreRoundedOnce) {
  for (const int dim : {2, 16, 64}) {
    expect_keys_rounded_once<float>(dim);
    expect_keys_rounded_once<bfloat16>(dim);
  }
}

/// dq, dk and dv of every row one after the other, dk turned back by the row's position.
template <typename Real>
void expect_joined(const AttentionShape& shape) {
  using Sum = Accumulator<Real>;
  std::mt19937_64 random(5);
  MemoryLedger ledger;
  const auto table = make_rotary_table<Sum>(ledger, 40, frequencies(shape.head_dim, 100));
  const std::vector<std::int32_t> positions = {0, 39, 3, 1};
  const std::size_t dim = static_cast<std::size_t>(shape.head_dim), half = dim / 2;
  const std::size_t wide = static_cast<std::size_t>(shape.heads) * dim,
                    narrow = static_cast<std::size_t>(shape.kv_heads) * dim;
  const auto dq = stored<Sum>(normal(4 * wide, random)),
             dk = stored<Sum>(normal(4 * narrow, random)),
             dv = stored<Sum>(normal(4 * narrow, random));
  const auto q = upload(dq), k = upload(dk), v = upload(dv);
  const auto joined = upload(std::vector<Real>(4 * (wide + 2 * narrow)));
  join_gradients<Real>(table, shape, {q.data(), k.data(), v.data()}, upload(positions), 4,
                       joined.data());
  const auto got = download(joined);
  std::size_t at = 0;
  const auto expect = [&](double expected, double size) {
    EXPECT_NEAR(number(got[at]), expected,
                kRounding<Real> * std::abs(expected) + 10 * kRounding<Sum> * size)
        << "element " << at;
    ++at;
  };
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::size_t i = 0; i < wide; ++i) expect(dq[row * wide + i], 0);
    for (std::size_t i = 0; i < narrow; ++i) {
      const std::size_t d = i % dim, head = row * narrow + i - d;
      if (d >= 2 * half) {  // an odd head_dim's last element is not turned
        expect(dk[head + d], 0);
        continue;
      }
      const std::complex<double> pair(dk[head + d % half], dk[head + d % half + half]);
      const auto back =
          pair *
          std::polar(1.0, -positions[row] * std::pow(100.0, -2.0 * (d % half) / shape.head_dim));
      expect(d < half ? back.real() : back.imag(), std::abs(pair));
    }
    for (std::size_t i = 0; i < narrow; ++i) expect(dv[row * narrow + i], 0);
  }
}

TEST(CoreAttention, JoinedGradientsAreThoseOfTheProjections) {
  for (const AttentionShape shape : {AttentionShape{4, 2, 8}, {1, 1, 1}, {2, 1, 5}, {3, 3, 2}}) {
    expect_joined<float>(shape);
    expect_joined<double>(shape);
    expect_joined<bfloat16>(shape);
  }
}

TEST(CoreAttention, NoTableNoRotation) {
  const auto k = upload(std::vector<float>{1, 2, 3, 4});
  rotate_keys<float>({}, k.data(), upload(std::vector<std::int32_t>{5}), 1, 1, 4);
  EXPECT_THAT(download(k), ::testing::ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace cadenza::attention
