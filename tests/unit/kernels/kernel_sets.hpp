// SPDX-License-Identifier: Apache-2.0
// Every implementation of the host by itself: the tuned kernels of this processor, one instruction
// set after another, and the portable ones.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "../../../kernels/cpu/attention.hpp"
#include "../../../kernels/portable/attention.hpp"
#include "unit/kernels/attention_case.hpp"

namespace cadenza::testing {

using kernels::cpu::TileKernels;

/// Complete when they return: their tests keep rows in vectors of the host.
template <typename Real>
Kernels<Real> tuned(const TileKernels& table, int threads = kernels::cpu::kAllThreads) {
  Kernels<Real> by;
  by.forward = [&table, threads](const auto&... inputs) {
    enqueue(kernels::cpu::attention_forward<Real>, table, inputs..., threads);
    fence();
  };
  by.backward = [&table, threads](const auto&... inputs) {
    enqueue(kernels::cpu::attention_backward<Real>, table, inputs..., threads);
    fence();
  };
  return by;
}

template <typename Real>
Kernels<Real> portable() {
  return {kernels::portable::attention_forward<Real>, kernels::portable::attention_backward<Real>};
}

/// Complete when it returns: its tests keep rows in vectors of the host.
template <typename Pass>
auto on_stream(const Pass& pass) {
  return [pass](const auto&... inputs) {
    enqueue(pass, inputs...);
    fence();
  };
}

/// How far results may be from exact ones on unit-normal data, from the rounding of a product's
/// operands. float32: logits of size 10 move probabilities by 10 * 2^-24; sums over keys and
/// head_dim add some. bfloat16: rotated queries, probabilities and logit gradients are rounded by
/// up to 2^-9, independently; the relative error of the whole is the root mean square of two (out)
/// or three to four (gradients) such roundings, lse moves by up to 4 standard deviations
/// 2^-9 / sqrt(3) of a logit's error. bfloat16 that is computed in float32 has float32's.
struct Bounds {
  double out, lse, gradients;
};
inline constexpr Bounds kFloat32{3e-6, 1e-5, 5e-6};
inline constexpr Bounds kBfloat16{2.0 / 512, 4.0 / 512, 3.0 / 512};

inline void expect_within(const std::vector<DocumentResult>& got,
                          const std::vector<DocumentResult>& expected, const Bounds& bounds) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t d = 0; d < got.size(); ++d) {
    SCOPED_TRACE("document " + std::to_string(d));
    EXPECT_LE(relative_difference(got[d].out, expected[d].out), bounds.out);
    EXPECT_LE(max_difference(got[d].lse, expected[d].lse), bounds.lse);
    EXPECT_LE(relative_difference(got[d].dq, expected[d].dq), bounds.gradients);
    EXPECT_LE(relative_difference(got[d].dk, expected[d].dk), bounds.gradients);
    EXPECT_LE(relative_difference(got[d].dv, expected[d].dv), bounds.gradients);
  }
}

/// And no NaN.
inline void expect_same_bits(const std::vector<DocumentResult>& a,
                             const std::vector<DocumentResult>& b) {
  const auto expect_same = [](const Vector& x, const Vector& y, const char* what) {
    ASSERT_EQ(x, y) << what;
    EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(double)), 0) << what;
  };
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t d = 0; d < a.size(); ++d) {
    SCOPED_TRACE("document " + std::to_string(d));
    expect_same(a[d].out, b[d].out, "out");
    expect_same(a[d].lse, b[d].lse, "lse");
    expect_same(a[d].dq, b[d].dq, "dq");
    expect_same(a[d].dk, b[d].dk, "dk");
    expect_same(a[d].dv, b[d].dv, "dv");
  }
}

/// Of random documents: `least` tokens, and up to `more` - 1 more.
struct Lengths {
  std::int64_t least, more;
  std::int64_t draw(std::mt19937_64& random) const {
    return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(more));
  }
};

/// Two documents cut into random tasks of every rule; every third round without rotation.
inline CaseOptions every_rule(const AttentionShape& shape, int round, Lengths lengths,
                              std::mt19937_64& random) {
  CaseOptions options{shape, round % 3 == 0 ? 0.0 : 10000.0, {}, true, 0.3, 0.3};
  for (int d = 0; d < 2; ++d) options.lengths.push_back(lengths.draw(random));
  return options;
}

/// The same with, by turns, windows, maps of positions, stripes and slices of heads.
inline CaseOptions stripes_bands_and_maps(const AttentionShape& shape, int round, Lengths lengths,
                                          std::mt19937_64& random) {
  CaseOptions options{shape, 10000, {}, true, 0.1, 0.1};
  options.window_share = round % 2 == 0 ? 0.7 : 0;
  options.striped = round % 3 == 1;
  options.sliced = round % 3 == 2;
  options.mapped_share = round % 2 == 1 ? 0.8 : 0;
  for (int d = 0; d < 2; ++d) options.lengths.push_back(lengths.draw(random));
  return options;
}

/// Runs test(table, Real(), bounds) for each tuned table of float32 and of bfloat16.
template <typename Test>
void for_each_table(const Test& test) {
  namespace cpu = kernels::cpu;
  const auto run = [&](auto real, const TileKernels* table, const Bounds& bounds) {
    if (table == nullptr) return;
    SCOPED_TRACE(std::string(table->name) + (sizeof(real) == 2 ? ", bfloat16" : ", float32"));
    test(*table, real, bounds);
  };
  for (const TileKernels* table : {cpu::avx2_kernels(), cpu::avx512_kernels()}) {
    run(float{}, table, kFloat32);
  }
  for (const TileKernels* table : {cpu::avx2_widening_kernels(), cpu::avx512_widening_kernels()}) {
    run(bfloat16{}, table, kFloat32);
  }
  for (const TileKernels* table : {cpu::avx512_bfloat16_kernels(), cpu::amx_bfloat16_kernels(),
                                   cpu::software_tile_kernels()}) {
    run(bfloat16{}, table, kBfloat16);
  }
}

/// Runs test(kernels) for the portable float32 kernels and for every tuned table.
template <typename Test>
void for_each_implementation(const Test& test) {
  {
    SCOPED_TRACE("portable");
    test(portable<float>());
  }
  for_each_table([&](const TileKernels& table, auto real, const Bounds&) {
    test(tuned<decltype(real)>(table));
  });
}

}  // namespace cadenza::testing
