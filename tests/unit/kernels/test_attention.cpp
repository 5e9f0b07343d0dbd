// SPDX-License-Identifier: Apache-2.0
// The attention kernels against attention by definition.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "cadenza/base/error.hpp"
#include "unit/kernels/attention_case.hpp"
#include "unit/kernels/device_data.hpp"

namespace cadenza::testing {
namespace {

// On unit-normal data logits have |s| < 10 or so: their rounding moves probabilities by 10 * 2^-24
// in float, and everything after is a convex or a short sum. In double the same bounds shrink by
// 2^29.
constexpr double kFloatForward = 1e-5, kFloatBackward = 1e-5;
constexpr double kDoubleForward = 1e-12, kDoubleBackward = 1e-12;

void expect_both_precisions(const Case& of, int calls) {
  const auto expected = reference(of);
  {
    SCOPED_TRACE("double");
    expect_close(computed<double>(of, calls), expected, kDoubleForward, kDoubleBackward);
  }
  SCOPED_TRACE("float");
  expect_close(computed<float>(of, calls), expected, kFloatForward, kFloatBackward);
}

TEST(Attention, EqualsDefinitionForEveryHeadDim) {
  std::mt19937_64 random(1);
  for (const int dim : {1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 64, 65, 96, 127, 128, 130, 256}) {
    SCOPED_TRACE("head_dim " + std::to_string(dim));
    expect_both_precisions(make_case({{2, 1, dim}, 10000, {1, 70, 23}, true, 0, 0}, random), 1);
  }
}

TEST(Attention, EqualsDefinitionForEveryGroup) {
  std::mt19937_64 random(2);
  const AttentionShape shapes[] = {{3, 3, 16}, {4, 2, 16},  {8, 2, 24},
                                   {8, 1, 16}, {12, 1, 20}, {22, 2, 8}};
  for (const auto& shape : shapes) {
    SCOPED_TRACE("heads " + std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads));
    expect_both_precisions(make_case({shape, 500, {90, 41}, true, 0, 0}, random), 1);
  }
}

TEST(Attention, EqualsDefinitionForRandomTasks) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 24; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    CaseOptions options{{4, 2, 12}, round % 3 == 0 ? 0.0 : 10000.0, {}, true, 0.2, 0.3};
    for (int d = 0; d < 4; ++d)
      options.lengths.push_back(1 + static_cast<std::int64_t>(random() % 150));
    expect_both_precisions(make_case(options, random), 1 + round % 3);
  }
}

/// Diagonals anywhere, tokens that count something else than positions, rows that see nothing.
TEST(Attention, EqualsDefinitionForStripedTasks) {
  std::mt19937_64 random(12);
  for (int round = 0; round < 16; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    CaseOptions options{{4, 2, 12}, round % 4 == 0 ? 0.0 : 10000.0, {}, true, 0.2, 0.3, true};
    for (int d = 0; d < 3; ++d)
      options.lengths.push_back(1 + static_cast<std::int64_t>(random() % 150));
    expect_both_precisions(make_case(options, random), 1 + round % 3);
  }
}

TEST(Attention, EqualsDefinitionForMapsOfPositions) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    CaseOptions options{{4, 2, 8}, 10000, {1, 97, 180}, true, 0.1, 0.1};
    options.mapped_share = 0.8;
    options.window_share = round % 2 == 0 ? 0 : 0.5;
    options.striped = round % 3 == 1;
    options.sliced = round % 3 == 2;
    expect_both_precisions(make_case(options, random), 1 + round % 3);
  }
}

TEST(Attention, EqualsDefinitionForBands) {
  std::mt19937_64 random(8);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    CaseOptions options{{4, 2, 8}, 10000, {1, 97, 230}, round % 3 != 1, 0.1, 0.1};
    options.window_share = round % 2 == 0 ? 1 : 0.7;
    options.striped = round % 4 == 3;
    expect_both_precisions(make_case(options, random), 1 + round % 3);
  }
}

/// Buffers that hold some heads only, as after an exchange of tokens for heads.
TEST(Attention, EqualsDefinitionForSlicesOfHeads) {
  std::mt19937_64 random(13);
  const AttentionShape shapes[] = {{4, 4, 12}, {8, 2, 8}, {6, 3, 16}, {4, 1, 9}};
  for (int round = 0; round < 16; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    CaseOptions options{shapes[round % 4], 10000, {}, true, 0.2, 0.1, round % 3 != 0, true};
    for (int d = 0; d < 2; ++d)
      options.lengths.push_back(1 + static_cast<std::int64_t>(random() % 120));
    expect_both_precisions(make_case(options, random), 1 + round % 3);
  }
}

constexpr std::int64_t kStripes = 3, kStripeRows = 60;

/// Rows [tokens of the document, ...] dealt to stripes in turn, one stripe after another.
Vector striped(const Vector& rows) {
  const std::size_t width = rows.size() / (kStripes * kStripeRows);
  Vector made;
  for (std::size_t stripe = 0; stripe < kStripes; ++stripe) {
    for (std::size_t row = 0; row < kStripeRows; ++row) {
      const auto from =
          rows.begin() + static_cast<std::ptrdiff_t>((row * kStripes + stripe) * width);
      made.insert(made.end(), from, from + static_cast<std::ptrdiff_t>(width));
    }
  }
  return made;
}

/// Row r of stripe a is token r * stripes + a, and sees row s of stripe b when s <= r, or s < r
/// where b > a.
kernels::TaskList<double> striped_list(const kernels::QueryRows<double>& queries,
                                       const kernels::KeyRows<double>& keys) {
  constexpr std::int64_t kHeads = 2, kDim = 8;
  kernels::TaskList<double> list;
  for (std::int64_t a = 0; a < kStripes; ++a) {
    const std::int64_t heads = a * kStripeRows * kHeads, at = heads * kDim, kv = at / kHeads;
    list.queries.push_back({{0, kStripeRows},
                            queries.q + at,
                            queries.out + at,
                            queries.lse + heads,
                            queries.dout + at,
                            queries.delta + heads,
                            queries.dq + at,
                            {},
                            {a, kStripes}});
    list.keys.push_back(
        {{0, kStripeRows}, keys.k + kv, keys.v + kv, keys.dk + kv, keys.dv + kv, {}});
    for (std::int64_t b = 0; b < kStripes; ++b) {
      list.tasks.push_back(
          {{0, {0, kStripeRows}, {0, kStripeRows}, {0, kHeads}, Band::causal(b > a ? -1 : 0)},
           static_cast<int>(a),
           static_cast<int>(b)});
    }
  }
  return list;
}

TEST(Attention, StripesOfADocumentAddUpToIt) {
  std::mt19937_64 random(14);
  const AttentionShape shape{2, 1, 8};
  const Case whole = make_case({shape, 10000, {kStripes * kStripeRows}, false, 0, 0}, random);
  const DocumentResult expected = computed<double>(whole)[0];
  const DocumentData& data = whole.documents[0];
  const auto q = upload(striped(data.q)), k = upload(striped(data.k)), v = upload(striped(data.v)),
             dout = upload(striped(data.dout)), out = upload(Vector(data.q.size())),
             lse = upload(Vector(expected.lse.size(), -std::numeric_limits<double>::infinity())),
             dq = upload(Vector(data.q.size())), dk = upload(Vector(data.k.size())),
             dv = upload(Vector(data.v.size()));
  const auto rotary = rotary_table<double>(whole);
  Vector sums(expected.lse.size());  // rowsum(dO * O)
  const Vector expected_out = striped(expected.out), rows = striped(data.dout);
  for (std::size_t i = 0; i < rows.size(); ++i) sums[i / 8] += expected_out[i] * rows[i];
  const auto delta = upload(sums);
  const auto list = striped_list(
      {{}, q.data(), out.data(), lse.data(), dout.data(), delta.data(), dq.data(), {}, {}},
      {{}, k.data(), v.data(), dk.data(), dv.data(), {}});
  kernels::attention_forward(shape, rotary, list);
  kernels::attention_backward(shape, rotary, list);
  fence();
  const DocumentResult got{download(out), download(lse), download(dq), download(dk), download(dv)};
  const DocumentResult dealt{expected_out, striped(expected.lse), striped(expected.dq),
                             striped(expected.dk), striped(expected.dv)};
  expect_close({got}, {dealt}, kDoubleForward, kDoubleBackward);
}

TEST(Attention, LongDocumentInOnePiece) {
  std::mt19937_64 random(4);
  expect_both_precisions(make_case({{2, 1, 64}, 10000, {513}, false, 0, 0}, random), 1);
}

/// Loss sum(out * dout) of a case, with out in double.
double loss(const Case& of) {
  double total = 0;
  const auto results = computed<double>(of);
  for (std::size_t d = 0; d < results.size(); ++d) {
    for (std::size_t i = 0; i < results[d].out.size(); ++i) {
      total += results[d].out[i] * of.documents[d].dout[i];
    }
  }
  return total;
}

void expect_differences(Case of, Vector DocumentData::*input, const Vector& gradient) {
  constexpr double kStep = 1e-5;  // truncation ~ step^2, rounding ~ 1e-15 / step: both below 1e-9
  for (std::size_t i = 0; i < gradient.size(); i += 7) {
    double& x = (of.documents[0].*input)[i];
    const double kept = x;
    x = kept + kStep;
    const double above = loss(of);
    x = kept - kStep;
    const double below = loss(of);
    x = kept;
    EXPECT_NEAR((above - below) / (2 * kStep), gradient[i], 1e-7) << "element " << i;
  }
}

TEST(Attention, GradientsEqualCentralDifferences) {
  std::mt19937_64 random(5);
  const Case of = make_case({{4, 2, 6}, 100, {19}, true, 0.2, 0}, random);
  const auto result = computed<double>(of);
  expect_differences(of, &DocumentData::q, result[0].dq);
  expect_differences(of, &DocumentData::k, result[0].dk);
  expect_differences(of, &DocumentData::v, result[0].dv);
}

void expect_same_bits(const Vector& a, const Vector& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(double)), 0);
}

TEST(Attention, SameBitsInEveryRunAndWhateverElseIsComputed) {
  std::mt19937_64 random(6);
  const Case all = make_case({{4, 2, 32}, 10000, {300, 70, 130, 1}, true, 0, 0}, random);
  const auto first = computed<float>(all);
  for (int run = 0; run < 4; ++run) {
    const auto again = computed<float>(all);
    for (std::size_t d = 0; d < first.size(); ++d) {
      expect_same_bits(first[d].out, again[d].out);
      expect_same_bits(first[d].lse, again[d].lse);
      expect_same_bits(first[d].dq, again[d].dq);
      expect_same_bits(first[d].dk, again[d].dk);
      expect_same_bits(first[d].dv, again[d].dv);
    }
  }
  Case alone = all;  // other units, in another order, on other threads
  std::erase_if(alone.pieces, [](const Piece& piece) { return piece.task.document != 0; });
  const auto one = computed<float>(alone);
  expect_same_bits(first[0].out, one[0].out);
  expect_same_bits(first[0].dq, one[0].dq);
  expect_same_bits(first[0].dk, one[0].dk);
  expect_same_bits(first[0].dv, one[0].dv);
}

TEST(Attention, DisjointKeyHalvesInTwoCallsEqualOneCall) {
  std::mt19937_64 random(7);
  Case once = make_case({{2, 2, 32}, 10000, {200}, false, 0, 0}, random);
  Case halves = once;
  const Piece piece = once.pieces[0];
  halves.pieces.assign(2, piece);
  halves.pieces[0].task.k.end = halves.pieces[1].task.k.begin = 77;
  expect_close(computed<double>(halves, 2), computed<double>(once), kDoubleForward,
               kDoubleBackward);
  std::swap(halves.pieces[0], halves.pieces[1]);
  expect_close(computed<float>(halves, 2), computed<float>(once), kFloatForward, kFloatBackward);
}

TEST(Attention, RowsWithoutKeysKeepWhatTheyHad) {
  const AttentionShape shape{1, 1, 3};
  const float infinity = std::numeric_limits<float>::infinity();
  // Keys [5, 8) are in the future of queries [2, 5); query 5 and 6 see one and two.
  const auto q = upload(std::vector<float>(15, 1.0f));
  const auto kv = upload(std::vector<float>(9, 2.0f));
  const auto out = upload(std::vector<float>{7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7});
  const auto lse = upload(std::vector<float>{-infinity, -infinity, 3, -infinity, -infinity});
  const auto zero = upload(std::vector<float>(15));
  const auto dq = upload(std::vector<float>(15)), dk = upload(std::vector<float>(9));
  const auto dv = upload(std::vector<float>(9));
  kernels::TaskList<float> list;
  list.queries.push_back(
      {{2, 7}, q.data(), out.data(), lse.data(), q.data(), zero.data(), dq.data()});
  list.keys.push_back({{5, 8}, kv.data(), kv.data(), dk.data(), dv.data()});
  list.tasks.push_back({{0, {2, 7}, {5, 8}, {0, 1}, Band::causal()}, 0, 0});
  kernels::attention_forward(shape, {}, list);
  const float logit = 6 / std::sqrt(3.0f);
  EXPECT_THAT(download(out), ::testing::Pointwise(
                                 ::testing::FloatNear(1e-6f),
                                 std::vector<float>{7, 7, 7, 7, 7, 7, 7, 7, 7, 2, 2, 2, 2, 2, 2}));
  const auto merged = download(lse);
  EXPECT_EQ(merged[0], -infinity);
  EXPECT_EQ(merged[1], -infinity);
  EXPECT_EQ(merged[2], 3);
  EXPECT_NEAR(merged[3], logit, 1e-6);
  EXPECT_NEAR(merged[4], logit + std::log(2.0f), 1e-6);

  kernels::attention_backward(shape, {}, list);
  const auto dq_rows = download(dq);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(dq_rows[static_cast<std::size_t>(i)], 0);
  EXPECT_THAT(download(dv),
              ::testing::Pointwise(::testing::FloatNear(1e-6f),
                                   std::vector<float>{1.5, 1.5, 1.5, 0.5, 0.5, 0.5, 0, 0, 0}));
}

TEST(Attention, QueriesWhoseLseIsEmptyGiveNoGradient) {
  // A full task, but the rows' merged lse says that no key was seen: P must be 0, not infinite.
  const auto ones = upload(std::vector<double>(4, 1.0));
  const auto lse = upload(std::vector<double>(2, -std::numeric_limits<double>::infinity()));
  const auto delta = upload(std::vector<double>(2));
  const auto dq = upload(std::vector<double>(4)), dk = upload(std::vector<double>(4));
  const auto dv = upload(std::vector<double>(4));
  kernels::TaskList<double> list;
  list.queries.push_back(
      {{0, 2}, ones.data(), nullptr, lse.data(), ones.data(), delta.data(), dq.data()});
  list.keys.push_back({{0, 2}, ones.data(), ones.data(), dk.data(), dv.data()});
  list.tasks.push_back({{0, {0, 2}, {0, 2}, {0, 1}, Band::full()}, 0, 0});
  kernels::attention_backward({1, 1, 2}, {}, list);
  for (const auto& gradient : {download(dq), download(dk), download(dv)}) {
    EXPECT_THAT(gradient, ::testing::Each(0.0));
  }
}

TEST(Attention, ExtremeLogits) {
  std::mt19937_64 random(8);
  Case of = make_case({{2, 1, 32}, 0, {150}, true, 0, 0}, random);
  for (double& x : of.documents[0].q) x *= 4096;  // logits around +-1e4, exact in float
  const auto expected = reference(of);
  const auto exact = computed<double>(of);
  // Logits of 1e4 carry an error of 1e4 * 2^-53 * sqrt(32), and so do probabilities and lse.
  EXPECT_LE(max_difference(exact[0].out, expected[0].out), 1e-9);
  EXPECT_LE(max_difference(exact[0].lse, expected[0].lse), 1e-9);
  const auto single = computed<float>(of);
  EXPECT_LE(relative_difference(single[0].lse, expected[0].lse), 1e-6);
  for (const Vector* numbers : {&single[0].out, &single[0].dq, &single[0].dk, &single[0].dv}) {
    for (const double number : *numbers) ASSERT_TRUE(std::isfinite(number));
  }
}

TEST(Attention, EqualLogitsAverageTheValues) {
  std::mt19937_64 random(9);
  Case of = make_case({{1, 1, 16}, 0, {130}, false, 0, 0}, random);
  DocumentData& data = of.documents[0];
  for (std::size_t i = 16; i < data.k.size(); ++i) data.k[i] = data.k[i - 16];
  const auto got = computed<double>(of);
  Vector sum(16);
  for (std::size_t i = 0; i < 130; ++i) {
    for (std::size_t d = 0; d < 16; ++d) {
      sum[d] += data.v[i * 16 + d];
      EXPECT_NEAR(got[0].out[i * 16 + d], sum[d] / static_cast<double>(i + 1), 1e-13);
      // Moving the query moves all logits alike, which changes nothing.
      EXPECT_NEAR(got[0].dq[i * 16 + d], 0, 1e-13);
    }
  }
}

TEST(Attention, OneHugeLogitTakesTheRow) {
  std::mt19937_64 random(10);
  Case of = make_case({{1, 1, 16}, 0, {130}, false, 0, 0}, random);
  for (int d = 0; d < 16; ++d) {
    of.documents[0].k[static_cast<std::size_t>(70 * 16 + d)] *=
        1e6;  // above or far below all others
  }
  const auto expected = reference(of);
  const auto got = computed<float>(of);
  EXPECT_LE(max_difference(got[0].out, expected[0].out), 1e-5);
  EXPECT_LE(relative_difference(got[0].lse, expected[0].lse), 1e-6);
  for (const double number : got[0].dq) ASSERT_TRUE(std::isfinite(number));
}

TEST(Attention, NanIsNotHidden) {
  std::mt19937_64 random(11);
  Case of = make_case({{1, 1, 16}, 0, {80}, false, 0, 0}, random);
  of.documents[0].k[40 * 16] = std::numeric_limits<double>::quiet_NaN();
  const auto got = computed<float>(of);
  EXPECT_TRUE(std::isfinite(got[0].lse[39]));  // does not see key 40
  EXPECT_TRUE(std::isnan(got[0].lse[40]));
  EXPECT_TRUE(std::isnan(got[0].out[79 * 16]));
}

TEST(Attention, NothingToDo) {
  kernels::TaskList<float> list;
  kernels::attention_forward({4, 2, 8}, {}, list);
  kernels::attention_backward({4, 2, 8}, {}, list);
  list.queries.push_back({{0, 0}, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr});
  list.keys.push_back({{0, 0}, nullptr, nullptr, nullptr, nullptr});
  list.tasks.push_back({{0, {0, 0}, {0, 0}, {0, 4}, Band::causal()}, 0, 0});
  kernels::attention_forward({4, 2, 8}, {}, list);
  kernels::attention_backward({4, 2, 8}, {}, list);
}

TEST(Attention, RefusesTasksOutsideTheirBuffers) {
  struct Call {
    AttentionShape shape{4, 2, 8};
    Task task{0, {8, 16}, {0, 16}, {0, 4}, Band::causal()};
    kernels::QueryRows<float> queries{.tokens = {8, 16}};
    kernels::KeyRows<float> keys{.tokens = {0, 16}};
    int key_rows = 0;
    int positions = 0;  ///< of the rotary table; 0: none
  };
  const auto refused = [](const auto& change) {
    Call call;
    change(call);
    kernels::TaskList<float> list{{call.queries}, {call.keys}, {{call.task, 0, call.key_rows}}};
    const auto count = static_cast<std::size_t>(call.positions) * 4;
    const kernels::RotaryTable<float> rotary{upload(std::vector<float>(count)),
                                             upload(std::vector<float>(count)), 4};
    try {
      kernels::attention_forward(call.shape, rotary, list);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refused([](Call& of) { of.task.q = {4, 16}; }), HasSubstr("queries [4, 16)"));
  EXPECT_THAT(refused([](Call& of) { of.task.k = {0, 17}; }), HasSubstr("keys [0, 17)"));
  EXPECT_THAT(refused([](Call& of) { of.task.heads = {0, 5}; }), HasSubstr("heads [0, 5)"));
  EXPECT_THAT(refused([](Call& of) { of.key_rows = 1; }), HasSubstr("buffers (0, 1)"));
  EXPECT_THAT(refused([](Call& of) { of.shape.kv_heads = 3; }), HasSubstr("multiple"));
  EXPECT_THAT(refused([](Call& of) {
                of.queries.heads = {0, 2};
              }),
              HasSubstr("heads [0, 4) is outside [0, 2)"));
  EXPECT_THAT(refused([](Call& of) {
                of.queries.heads = {2, 5};
              }),
              HasSubstr("heads of the query buffer [2, 5) is outside [0, 4)"));
  EXPECT_THAT(refused([](Call& of) {
                of.keys.heads = {1, 2};
              }),
              HasSubstr("key-value heads [0, 2) is outside [1, 2)"));
  EXPECT_THAT(refused([](Call& of) {
                of.keys.heads = {0, 3};
              }),
              HasSubstr("heads of the key buffer [0, 3) is outside [0, 2)"));
  EXPECT_THAT(refused([](Call& of) { of.positions = 15; }),
              HasSubstr("positions [8, 16) is outside [0, 15)"));
  EXPECT_THAT(refused([](Call& of) {
                of.positions = 16;
                of.queries.positions = {3, 2};
              }),
              HasSubstr("positions [3, 18) is outside [0, 16)"));
  EXPECT_THAT(refused([](Call& of) {
                of.positions = 16;
                of.queries.positions.step = 0;
              }),
              HasSubstr("step of positions 0; valid: at least 1"));
  EXPECT_THAT(refused([](Call& of) {
                of.positions = 16;
                of.task.q_positions = {-9, 1, PositionMap::kNoCap};
              }),
              HasSubstr("positions [-1, 7) is outside [0, 16)"));
  EXPECT_THAT(refused([](Call& of) {
                of.positions = 16;
                of.task.q_positions = {0, 2, 20};
              }),
              HasSubstr("positions [16, 21) is outside [0, 16)"));
  EXPECT_THAT(refused([](Call& of) {
                of.positions = 16;
                of.task.q_positions.step = -1;
              }),
              HasSubstr("step -1 and cap"));
  EXPECT_THAT(refused([](Call& of) {  // the first head of the second group alone
                of.task.heads = {2, 3};
                of.queries.heads = {2, 4};
                of.keys.heads = {1, 2};
                of.task.k = {16, 16};  // nothing to compute
              }),
              "accepted");
}

}  // namespace
}  // namespace cadenza::testing
