// SPDX-License-Identifier: Apache-2.0
// Every tuned kernel of this processor against attention by definition, the portable kernels, and
// itself with other numbers of threads.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "cadenza/base/error.hpp"
#include "unit/kernels/huge_logits.hpp"

#ifndef KOKKOS_ENABLE_CUDA

namespace cadenza::testing {
namespace {

/// The definition takes longer than all tables together: once for each case.
void expect_definition_by_tables(const Case& of, int calls = 1) {
  const std::vector<DocumentResult> expected = reference(of);
  for_each_table([&](const TileKernels& table, auto real, const Bounds& bounds) {
    expect_within(computed(of, calls, tuned<decltype(real)>(table)), expected, bounds);
  });
}

TEST(CpuAttention, EqualsDefinitionForEveryHeadDimAndGroup) {
  std::mt19937_64 random(1);
  for (const AttentionShape shape :
       {AttentionShape{2, 1, 32}, {3, 3, 64}, {4, 2, 96}, {5, 1, 128}, {2, 2, 160}, {2, 1, 256}}) {
    SCOPED_TRACE("head_dim " + std::to_string(shape.head_dim));
    expect_definition_by_tables(rounded_case({shape, 10000, {1, 150, 23}, true, 0, 0}, random));
  }
}

TEST(CpuAttention, EqualsDefinitionForRandomTasksOfEveryRule) {
  std::mt19937_64 random(2);
  for (int round = 0; round < (kSanitized ? 6 : 16); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    CaseOptions options{{4, 2, 32}, round % 3 == 0 ? 0.0 : 10000.0, {}, true, 0.3, 0.3};
    for (int d = 0; d < 3; ++d) {
      options.lengths.push_back(1 + static_cast<std::int64_t>(random() % 300));
    }
    expect_definition_by_tables(rounded_case(options, random), 1 + round % 3);
  }
}

/// Random diagonals, tokens and positions; slices of heads in buffers of their own.
TEST(CpuAttention, EqualsDefinitionForStripesAndSlicesOfHeads) {
  std::mt19937_64 random(11);
  const AttentionShape shapes[] = {{4, 2, 32}, {4, 4, 64}, {6, 1, 32}};
  for (int round = 0; round < (kSanitized ? 6 : 12); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    CaseOptions options{
        shapes[round % 3], round % 5 == 0 ? 0.0 : 10000.0, {}, round % 5 != 4, 0.1, 0.2};
    options.striped = round % 4 != 0;
    options.sliced = round % 2 == 0;
    for (int d = 0; d < 2; ++d) {
      options.lengths.push_back(1 + static_cast<std::int64_t>(random() % 400));
    }
    expect_definition_by_tables(rounded_case(options, random), 1 + round % 3);
  }
}

/// Both edges of the band anywhere in, before and behind the rectangle.
TEST(CpuAttention, EqualsDefinitionForBands) {
  std::mt19937_64 random(12);
  const AttentionShape shapes[] = {{4, 2, 32}, {2, 2, 64}, {6, 1, 32}};
  for (int round = 0; round < (kSanitized ? 6 : 18); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    CaseOptions options{
        shapes[round % 3], round % 5 == 0 ? 0.0 : 10000.0, {}, round % 3 != 1, 0.1, 0.1};
    options.window_share = round % 2 == 0 ? 1 : 0.7;
    options.striped = round % 4 == 3;
    for (int d = 0; d < 2; ++d) {
      options.lengths.push_back(1 + static_cast<std::int64_t>(random() % 700));
    }
    expect_definition_by_tables(rounded_case(options, random), 1 + round % 2);
  }
}

/// Tasks of a call turn the same queries by different positions.
TEST(CpuAttention, EqualsDefinitionForMapsOfPositions) {
  std::mt19937_64 random(14);
  const AttentionShape shapes[] = {{4, 2, 32}, {2, 2, 64}, {6, 1, 32}};
  for (int round = 0; round < (kSanitized ? 6 : 9); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    CaseOptions options{shapes[round % 3], 10000, {}, true, 0.1, 0.1};
    options.mapped_share = 0.8;
    options.window_share = round % 2 == 0 ? 0 : 0.5;
    options.striped = round % 3 == 1;
    options.sliced = round % 3 == 2;
    for (int d = 0; d < 2; ++d) {
      options.lengths.push_back(1 + static_cast<std::int64_t>(random() % 400));
    }
    expect_definition_by_tables(rounded_case(options, random), 1 + round % 2);
  }
}

/// Tiles that no query sees are not read: what they hold does not matter.
TEST(CpuAttention, KeysOutsideTheBandAreNotRead) {
  std::mt19937_64 random(13);
  Case of = rounded_case({{2, 1, 32}, 10000, {1500}, false, 0, 0}, random);
  of.pieces[0].task.q = {1000, 1500};
  of.pieces[0].task.band = Band::window(200);
  const std::vector<DocumentResult> expected = reference(of);
  const std::size_t row = 32;
  for (std::size_t at = 0; at < 640 * row; ++at) {  // five tiles of keys
    of.documents[0].k[at] = of.documents[0].v[at] = std::nan("");
  }
  for_each_table([&](const TileKernels& table, auto real, const Bounds& bounds) {
    SCOPED_TRACE(table.name);
    std::vector<DocumentResult> got = computed(of, 1, tuned<decltype(real)>(table));
    expect_within(got, expected, bounds);
  });
}

/// Block-sparse attention is a list of small tasks: diagonal blocks and random others before them.
TEST(CpuAttention, EqualsDefinitionForBlockSparseTasks) {
  std::mt19937_64 random(3);
  Case of = rounded_case({{4, 2, 64}, 10000, {400}, false, 0, 0}, random);
  constexpr std::int64_t kBlock = 64;
  of.pieces.clear();
  for (std::int64_t q = 0; q < 400; q += kBlock) {
    for (std::int64_t k = 0; k <= q; k += kBlock) {
      if (k < q && random() % 2 == 0) continue;
      const Band band = k == q ? Band::causal() : Band::full();
      const Task task{0,
                      {q, std::min<std::int64_t>(400, q + kBlock)},
                      {k, std::min<std::int64_t>(400, k + kBlock)},
                      {0, 4},
                      band};
      of.pieces.push_back({task, {0, 400}, {0, 400}});
    }
  }
  expect_definition_by_tables(of);
}

TEST(CpuAttention, ManyTilesEqualPortable) {
  if (kernels::cpu::best_kernels<float>() == nullptr) GTEST_SKIP() << "no tuned kernels here";
  for (const TileKernels* table : {kernels::cpu::avx2_kernels(), kernels::cpu::avx512_kernels()}) {
    if (table == nullptr) continue;
    SCOPED_TRACE(table->name);
    std::mt19937_64 random(4);
    const Case of = make_case({{4, 1, 64}, 10000, {1500, 700}, true, 0, 0}, random);
    expect_within(computed(of, 1, tuned<float>(*table)), computed(of, 1, portable<float>()),
                  kFloat32);
  }
}

/// Computed in float32, bfloat16 rows are the same numbers with the same sums.
TEST(CpuAttention, Bfloat16InFloat32HasTheBitsOfFloat32) {
  namespace cpu = kernels::cpu;
  const std::pair<const TileKernels*, const TileKernels*> pairs[] = {
      {cpu::avx2_widening_kernels(), cpu::avx2_kernels()},
      {cpu::avx512_widening_kernels(), cpu::avx512_kernels()}};
  for (const auto& [narrow, wide] : pairs) {
    if (narrow == nullptr) continue;
    SCOPED_TRACE(narrow->name);
    std::mt19937_64 random(12);
    const Case of = rounded_case({{4, 2, 96}, 10000, {1, 333, 150}, true, 0.2, 0.2}, random);
    expect_same_bits(computed(of, 2, tuned<bfloat16>(*narrow)),
                     computed(of, 2, tuned<float>(*wide)));
  }
}

TEST(CpuAttention, SameBitsInEveryRunAndWithAnyNumberOfThreads) {
  if (Kokkos::DefaultHostExecutionSpace().concurrency() < 2) {
    GTEST_SKIP() << "one thread only: set OMP_NUM_THREADS";
  }
  for_each_table([](const TileKernels& table, auto real, const Bounds&) {
    using Real = decltype(real);
    std::mt19937_64 random(5);
    // One key-value head: threads work on neighbouring keys of the same queries.
    const Case of = make_case({{3, 1, 32}, 10000, {900, 70, 1}, true, 0.1, 0}, random);
    const auto alone = computed(of, 1, tuned<Real>(table, 1));
    for (int run = 0; run < 5; ++run) {
      SCOPED_TRACE("run " + std::to_string(run));
      expect_same_bits(computed(of, 1, tuned<Real>(table)), alone);
    }
  });
}

/// Logits of +-1e4 and more: exp must neither overflow nor lose the largest.
TEST(CpuAttention, ExtremeLogits) {
  for_each_table([](const TileKernels& table, auto real, const Bounds&) {
    std::mt19937_64 random(6);
    Case of = rounded_case({{2, 1, 32}, 0, {300}, true, 0, 0}, random);
    for (double& x : of.documents[0].q) x *= 4096;
    const auto expected = reference(of);
    const auto got = computed(of, 1, tuned<decltype(real)>(table));
    // A logit of 2e4 is exact to 2e4 * 2^-24 * a few; probabilities move by as much.
    EXPECT_LE(max_difference(got[0].lse, expected[0].lse), 2e4 * 0x1p-24 * 8);
    for (const Vector* numbers : {&got[0].out, &got[0].dq, &got[0].dk, &got[0].dv}) {
      for (const double number : *numbers) ASSERT_TRUE(std::isfinite(number));
    }
  });
}

/// Of logits of any size, the largest takes its row: in one call, merged from three, and in dV.
TEST(CpuAttention, HugeLogitsKeepTheirLargest) {
  const std::vector<AttentionShape> shapes = {{2, 1, 32}, {2, 1, 64}, {2, 1, 128}};
  for_each_huge_case(shapes, 150, [](const Case& of, const auto& clear, const auto& wanted) {
    for (const int calls : {1, 3}) {
      SCOPED_TRACE(std::to_string(calls) + " calls");
      const auto check = [&](const auto& by, const Bounds& bounds) {
        const DocumentResult got = computed(of, calls, by)[0];
        expect_clear_rows(got, wanted, clear, bounds);
        EXPECT_LE(relative_difference(got.dv, wanted.dv), bounds.gradients);
      };
      for_each_table([&](const TileKernels& table, auto real, const Bounds& bounds) {
        check(tuned<decltype(real)>(table), bounds);
      });
      check(portable<float>(), kFloat32);
      check(portable<double>(), kFloat32);
    }
  });
}

TEST(CpuAttention, OverflowedLogitsAreNotTakenForNoKeys) {
  const Case of = overflowing_case({1, 1, 32});
  for_each_table([&](const TileKernels& table, auto real, const Bounds& bounds) {
    expect_overflow_shows(computed(of, 1, tuned<decltype(real)>(table))[0], of, bounds);
  });
  expect_overflow_shows(computed(of, 1, portable<float>())[0], of, kFloat32);
}

/// Where a logit is rounded by more than 1, exp(logit - lse) is any number, but P is not.
TEST(CpuAttention, ProbabilitiesStayBelowOneWhereLogitsAreHuge) {
  for_each_implementation([]<typename Real>(const Kernels<Real>& by) {
    std::mt19937_64 random(12);
    for (const double factor : {0x1p22, 0x1p26, 0x1p30}) {  // logits of 1e7 and more
      SCOPED_TRACE("queries times " + std::to_string(factor));
      Case of = rounded_case({{1, 1, 64}, 0, {300}, false, 0, 0}, random);
      const DocumentData& data = of.documents[0];
      for (double& x : of.documents[0].q) x *= factor;
      const auto got = computed(of, 1, by);
      for (std::size_t d = 0; d < 64; ++d) {
        double most = 0;
        for (std::size_t i = d; i < data.dout.size(); i += 64) most += std::abs(data.dout[i]);
        for (std::size_t j = d; j < got[0].dv.size(); j += 64) {
          ASSERT_LE(std::abs(got[0].dv[j]), most * (1 + 1e-5));
          ASSERT_TRUE(std::isfinite(got[0].dk[j]) && std::isfinite(got[0].dq[j]));
        }
      }
    }
  });
}

TEST(CpuAttention, EqualLogitsAverageTheValues) {
  for_each_table([](const TileKernels& table, auto real, const Bounds& bounds) {
    std::mt19937_64 random(7);
    Case of = rounded_case({{1, 1, 32}, 0, {300}, false, 0, 0}, random);
    DocumentData& data = of.documents[0];
    for (std::size_t i = 32; i < data.k.size(); ++i) data.k[i] = data.k[i - 32];
    const auto got = computed(of, 1, tuned<decltype(real)>(table));
    EXPECT_LE(relative_difference(got[0].out, reference(of)[0].out), bounds.out);
  });
}

TEST(CpuAttention, OneHugeLogitTakesTheRow) {
  for_each_table([](const TileKernels& table, auto real, const Bounds& bounds) {
    std::mt19937_64 random(8);
    Case of = rounded_case({{1, 1, 32}, 0, {300}, false, 0, 0}, random);
    for (int d = 0; d < 32; ++d)
      of.documents[0].k[static_cast<std::size_t>(170 * 32 + d)] *= 0x1p20;
    const auto expected = reference(of);
    const auto got = computed(of, 1, tuned<decltype(real)>(table));
    EXPECT_LE(relative_difference(got[0].out, expected[0].out), bounds.out);
    EXPECT_LE(relative_difference(got[0].lse, expected[0].lse), 1e-6);
  });
}

TEST(CpuAttention, NanIsNotHidden) {
  for_each_implementation([]<typename Real>(const Kernels<Real>& by) {
    std::mt19937_64 random(9);
    Case of = rounded_case({{1, 1, 32}, 0, {200}, false, 0, 0}, random);
    of.documents[0].k[140 * 32] = std::numeric_limits<double>::quiet_NaN();
    const auto got = computed(of, 1, by);
    EXPECT_TRUE(std::isfinite(got[0].lse[139]));  // does not see key 140
    EXPECT_TRUE(std::isnan(got[0].lse[140]));
    EXPECT_TRUE(std::isnan(got[0].out[199 * 32]));
    EXPECT_TRUE(std::isnan(got[0].dq[199 * 32]));
    EXPECT_TRUE(std::isnan(got[0].dk[199 * 32]));  // through query 199's lse
    EXPECT_TRUE(std::isnan(got[0].dv[199 * 32]));
  });
}

TEST(CpuAttention, RowsThatSeeNothingKeepTheirBits) {
  for_each_table([](const TileKernels& table, auto real, const Bounds&) {
    using Real = decltype(real);
    constexpr int kDim = 32, kRows = 5;
    std::vector<Real> ones(kRows * kDim, Real(1.0f));
    std::vector<float> out(kRows * kDim, 7.0f), lse(kRows, 0.3f);
    lse[0] = -std::numeric_limits<float>::infinity();
    kernels::TaskList<Real> list;  // keys [5, 8) are in the future of queries [0, 5)
    list.queries.push_back(
        {{0, kRows}, ones.data(), out.data(), lse.data(), nullptr, nullptr, nullptr});
    list.keys.push_back({{5, 8}, ones.data(), ones.data(), nullptr, nullptr});
    list.tasks.push_back({{0, {0, kRows}, {5, 8}, {0, 1}, Band::causal()}, 0, 0});
    list.keys.push_back({{0, 1}, ones.data(), ones.data(), nullptr, nullptr});
    list.tasks.push_back({{0, {4, 5}, {0, 1}, {0, 1}, Band::full()}, 0, 1});
    const auto before = std::make_pair(out, lse);
    tuned<Real>(table).forward({1, 1, kDim}, {}, list);
    EXPECT_NE(lse[4], before.second[4]);
    lse[4] = before.second[4];
    std::fill(out.begin() + 4 * kDim, out.end(), 7.0f);
    EXPECT_EQ(out, before.first);
    EXPECT_EQ(lse, before.second);
  });
}

TEST(CpuAttention, RowsWithEmptyLseGiveNoGradient) {
  for_each_table([](const TileKernels& table, auto real, const Bounds&) {
    using Real = decltype(real);
    std::vector<Real> ones(64, Real(1.0f));
    std::vector<float> lse(2, -std::numeric_limits<float>::infinity()), delta(2), dq(64), dk(64),
        dv(64);
    kernels::TaskList<Real> list;
    list.queries.push_back(
        {{0, 2}, ones.data(), nullptr, lse.data(), ones.data(), delta.data(), dq.data()});
    list.keys.push_back({{0, 2}, ones.data(), ones.data(), dk.data(), dv.data()});
    list.tasks.push_back({{0, {0, 2}, {0, 2}, {0, 1}, Band::full()}, 0, 0});
    tuned<Real>(table).backward({1, 1, 32}, {}, list);
    EXPECT_THAT(dq, ::testing::Each(0.0f));
    EXPECT_THAT(dk, ::testing::Each(0.0f));
    EXPECT_THAT(dv, ::testing::Each(0.0f));
  });
}

TEST(CpuAttention, NothingToDo) {
  for_each_table([](const TileKernels& table, auto real, const Bounds&) {
    using Real = decltype(real);
    kernels::TaskList<Real> list;
    tuned<Real>(table).forward({4, 2, 64}, {}, list);
    tuned<Real>(table).backward({4, 2, 64}, {}, list);
    list.queries.push_back({{0, 0}, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr});
    list.keys.push_back({{0, 0}, nullptr, nullptr, nullptr, nullptr});
    list.tasks.push_back({{0, {0, 0}, {0, 0}, {0, 4}, Band::causal()}, 0, 0});
    tuned<Real>(table).forward({4, 2, 64}, {}, list);
    tuned<Real>(table).backward({4, 2, 64}, {}, list);
  });
}

TEST(CpuAttention, ProgressIsCalledNowAndThenByTheCallersThreadAlone) {
  struct Calls {
    std::thread::id caller = std::this_thread::get_id();
    std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
    int count = 0, early = 0, elsewhere = 0;
    static void step(void* context) {
      auto& of = *static_cast<Calls*>(context);
      const auto now = std::chrono::steady_clock::now();
      ++of.count;
      of.early += now - of.last < std::chrono::microseconds(500) ? 1 : 0;
      of.elsewhere += std::this_thread::get_id() != of.caller ? 1 : 0;
      of.last = now;
    }
  };
  for_each_table([](const TileKernels& table, auto real, const Bounds&) {
    using Real = decltype(real);
    constexpr std::int64_t kRows = 3000;
    const std::vector<Real> rows(kRows * 64, Real(1.0f));
    std::vector<float> sums(kRows * 64), lse(kRows), delta(kRows);
    for (const auto& call : {tuned<Real>(table).forward, tuned<Real>(table).backward}) {
      Calls calls;
      kernels::TaskList<Real> list;
      list.queries.push_back({{0, kRows},
                              rows.data(),
                              sums.data(),
                              lse.data(),
                              rows.data(),
                              delta.data(),
                              sums.data()});
      list.keys.push_back({{0, kRows}, rows.data(), rows.data(), sums.data(), sums.data()});
      list.tasks.push_back({{0, {0, kRows}, {0, kRows}, {0, 1}, Band::causal()}, 0, 0});
      list.progress = {Calls::step, &calls};
      // The fastest takes a millisecond, in which a busy machine may give the caller no core.
      for (int i = 0; i < 20 && calls.count == 0; ++i) call({1, 1, 64}, {}, list);
      EXPECT_GT(calls.count, 0);
      EXPECT_EQ(calls.early, 0);
      EXPECT_EQ(calls.elsewhere, 0);
    }
  });
}

/// Rows need no alignment but their elements' own.
TEST(CpuAttention, TakesMisalignedRows) {
  for_each_table([](const TileKernels& table, auto real, const Bounds&) {
    using Real = decltype(real);
    constexpr std::size_t kCount = 40 * 32;
    std::mt19937_64 random(10);
    std::normal_distribution<float> normal;
    std::vector<Real> data(kCount + 1);
    for (Real& x : data) x = Real(normal(random));
    const auto run = [&](std::size_t shift) {
      std::vector<Real> copy(kCount + 3);
      std::copy(data.begin(), data.begin() + kCount, copy.begin() + static_cast<long>(shift));
      std::vector<float> out(kCount + 3), lse(40 + 3, -std::numeric_limits<float>::infinity());
      kernels::TaskList<Real> list;
      const Real* rows = copy.data() + shift;
      list.queries.push_back(
          {{0, 40}, rows, out.data() + shift, lse.data() + shift, nullptr, nullptr, nullptr});
      list.keys.push_back({{0, 40}, rows, rows, nullptr, nullptr});
      list.tasks.push_back({{0, {0, 40}, {0, 40}, {0, 1}, Band::causal()}, 0, 0});
      tuned<Real>(table).forward({1, 1, 32}, {}, list);
      return std::vector<float>(out.begin() + static_cast<long>(shift),
                                out.begin() + static_cast<long>(shift + kCount));
    };
    EXPECT_EQ(run(0), run(1));
    EXPECT_EQ(run(0), run(3));
  });
}

/// Two keys with logits 0 and x and orthogonal values: the ratio of the outputs is exp(x).
TEST(CpuAttention, ExponentialKeepsItsErrorBound) {
  constexpr double kBound = 6e-7;  // kernels/cpu/vector.hpp
  constexpr int kDim = 64, kRows = 4000;
  for (const TileKernels* table : {kernels::cpu::avx2_kernels(), kernels::cpu::avx512_kernels()}) {
    if (table == nullptr) continue;
    SCOPED_TRACE(table->name);
    std::vector<float> q(kRows * kDim), k(2 * kDim), v(2 * kDim), out(kRows * kDim),
        lse(kRows, -std::numeric_limits<float>::infinity());
    k[kDim] = 8.0f;  // times 1 / sqrt(64)
    v[0] = v[kDim + 1] = 1.0f;
    for (int i = 0; i < kRows; ++i) q[static_cast<std::size_t>(i * kDim)] = -0.02f * float(i);
    kernels::TaskList<float> list;
    list.queries.push_back(
        {{0, kRows}, q.data(), out.data(), lse.data(), nullptr, nullptr, nullptr});
    list.keys.push_back({{0, 2}, k.data(), v.data(), nullptr, nullptr});
    list.tasks.push_back({{0, {0, kRows}, {0, 2}, {0, 1}, Band::full()}, 0, 0});
    tuned<float>(*table).forward({1, 1, kDim}, {}, list);
    for (int i = 0; i < kRows; ++i) {
      const auto row = static_cast<std::size_t>(i * kDim);
      const double exact = std::exp(double(q[row]));
      // The exponent x * log2(e) is rounded once, its factor twice.
      const double bound = kBound + 4 * std::abs(double(q[row])) * 0x1p-24;
      EXPECT_NEAR(double(out[row + 1]) / double(out[row]), exact, bound * exact) << q[row];
    }
  }
}

TEST(CpuAttention, TheSeamNamesWhatItUses) {
  const bool tuned_float = kernels::cpu::best_kernels<float>() != nullptr;
  EXPECT_EQ(kernels::describe_attention_kernel<double>({2, 1, 64}), "portable");
  EXPECT_EQ(kernels::describe_attention_kernel<float>({2, 1, 64}),
            tuned_float ? kernels::cpu::best_kernels<float>()->name : "portable");
  if (tuned_float) {
    EXPECT_THAT(kernels::describe_attention_kernel<float>({2, 1, 40}),
                ::testing::HasSubstr("head_dim 40 is not a multiple of 32"));
  }
  EXPECT_EQ(kernels::supports_bfloat16(), kernels::cpu::best_kernels<bfloat16>() != nullptr);
}

template <typename Real>
std::string refusal_of(const AttentionShape& shape,
                       AttentionKernel kernel = AttentionKernel::automatic) {
  kernels::TaskList<Real> list;
  list.kernel = kernel;
  try {
    kernels::attention_forward<Real>(shape, {}, list);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "";
}

/// The first of the list is what `automatic` takes; every other one is taken where it is asked for.
template <typename Real>
void expect_each_kernel_is_taken() {
  const std::vector<AttentionKernel> here = kernels::available_attention_kernels<Real>();
  for (const AttentionKernel kernel : here) {
    EXPECT_EQ(kernels::attention_kernel<Real>({2, 1, 64}, kernel), kernel);
  }
  if (here.empty()) return;
  EXPECT_EQ(kernels::attention_kernel<Real>({2, 1, 64}), here.front());
}

TEST(AttentionKernelChoice, FollowsTheKey) {
  expect_each_kernel_is_taken<float>();
  expect_each_kernel_is_taken<double>();
  expect_each_kernel_is_taken<bfloat16>();
}

TEST(AttentionKernelChoice, RefusesWhatTheTypeOrTheShapeDoesNotAllow) {
  EXPECT_EQ(refusal_of<double>({2, 1, 64}, AttentionKernel::avx2),
            "attention.kernel: found avx2; valid for float64 here: auto, portable");
  EXPECT_THAT(refusal_of<float>({2, 1, 64}, AttentionKernel::amx),
              ::testing::StartsWith("attention.kernel: found amx; valid for float32 here: auto, "));
  if (kernels::cpu::avx2_kernels() == nullptr) GTEST_SKIP() << "this processor has no AVX2";
  EXPECT_THAT(refusal_of<bfloat16>({2, 1, 64}, AttentionKernel::portable),
              ::testing::EndsWith(", avx2"));
  EXPECT_EQ(refusal_of<float>({2, 1, 40}, AttentionKernel::avx2),
            "attention.kernel: avx2: found head_dim 40; valid: a multiple of 32 up to 256");
  EXPECT_EQ(refusal_of<float>({2, 1, 40}), "");
  EXPECT_EQ(refusal_of<bfloat16>({2, 1, 40}),
            "attention in bfloat16: found head_dim 40; valid: a multiple of 32 up to 256");
}

TEST(AttentionKernelChoice, PrefersInstructionsForBfloat16WhereTheyAreFast) {
  namespace cpu = kernels::cpu;
  if (cpu::avx512_bfloat16_kernels() == nullptr) GTEST_SKIP() << "no AVX-512 BF16";
  const auto here = kernels::available_attention_kernels<bfloat16>();
  const auto at = [&](AttentionKernel kernel) { return std::ranges::find(here, kernel); };
  EXPECT_EQ(at(AttentionKernel::avx512_bf16) < at(AttentionKernel::avx512),
            __builtin_cpu_is("amd") != 0);
}

}  // namespace
}  // namespace cadenza::testing

#endif
