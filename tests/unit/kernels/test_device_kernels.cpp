// SPDX-License-Identifier: Apache-2.0
// What every kernel of a device must do, from the same cases.
#include <gmock/gmock.h>

#include <algorithm>

#include "../../../kernels/device/problem.hpp"
#include "../../../kernels/mma/attention.hpp"
#include "../../../kernels/sm90/attention.hpp"
#include "unit/kernels/device_kernels.hpp"
#include "unit/kernels/huge_logits.hpp"
#include "unit/sanitized.hpp"

namespace cadenza::testing {
namespace {

struct Mma {
  static constexpr AttentionKernel kName = AttentionKernel::mma;
  static constexpr std::int64_t kLength = 140;  ///< tokens of a case: some tiles
  static std::span<const int> head_dims() { return kernels::mma::kHeadDims; }
#ifndef KOKKOS_ENABLE_CUDA
  static Kernels<bfloat16> emulated(std::uint64_t seed) {
    return emulated_mma({}, seed);
  }
#endif
};

struct Sm90 {
  static constexpr AttentionKernel kName = AttentionKernel::sm90;
  static constexpr std::int64_t kLength = 300;
  static std::span<const int> head_dims() { return kernels::sm90::kHeadDims; }
#ifndef KOKKOS_ENABLE_CUDA
  static Kernels<bfloat16> emulated(std::uint64_t seed) {
    return emulated_sm90({}, seed);
  }
#endif
};

/// On a device the seam takes the kernel that the case names.
/// @param seed  elsewhere: of the order of threads
template <typename Kernel>
Kernels<bfloat16> under_test(std::uint64_t seed = 0) {
#ifdef KOKKOS_ENABLE_CUDA
  static_cast<void>(seed);
  return {};
#else
  return Kernel::emulated(seed);
#endif
}

template <typename Kernel>
class DeviceKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto here = kernels::available_attention_kernels<bfloat16>();
    if (kDeviceIsCuda && std::ranges::count(here, Kernel::kName) == 0) {
      GTEST_SKIP() << "this device does not run " << word(Kernel::kName);
    }
  }

  int smallest() const { return Kernel::head_dims().front(); }

  Case rounded(const CaseOptions& options, std::mt19937_64& random) const {
    return named(rounded_case(options, random));
  }
  /// Names the kernel where `automatic` might take another.
  Case named(Case of) const {
    if (kDeviceIsCuda) of.kernel = Kernel::kName;
    return of;
  }
  void expect_right(const Case& of, int calls = 1) const {
    expect_within(computed(of, calls, under_test<Kernel>()), reference(of), kBfloat16);
  }
};

struct Names {
  template <typename Kernel>
  static std::string GetName(int) {
    return std::is_same_v<Kernel, Mma> ? "Mma" : "Sm90";
  }
};
using DeviceKernelTypes = ::testing::Types<Mma, Sm90>;
TYPED_TEST_SUITE(DeviceKernels, DeviceKernelTypes, Names);

TYPED_TEST(DeviceKernels, EqualsDefinitionForEveryHeadDimAndGroup) {
  std::mt19937_64 random(1);
  int kv_heads = 1;
  for (const int head_dim : TypeParam::head_dims()) {
    SCOPED_TRACE("head_dim " + std::to_string(head_dim));
    const CaseOptions options{
        {2, kv_heads, head_dim}, 10000, {1, kSanitized ? 70 : TypeParam::kLength}, true, 0, 0};
    this->expect_right(this->rounded(options, random));
    kv_heads = 3 - kv_heads;
  }
}

TYPED_TEST(DeviceKernels, EqualsDefinitionForRandomTasksOfEveryRule) {
  std::mt19937_64 random(2);
  for (int round = 0; round < (kSanitized ? 1 : 3); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const CaseOptions options =
        every_rule({4, 2, this->smallest()}, round, {1, TypeParam::kLength / 2 + 50}, random);
    this->expect_right(this->rounded(options, random), 1 + round % 3);
  }
}

/// Random diagonals, tokens, positions and maps of them, bands, slices of heads.
TYPED_TEST(DeviceKernels, EqualsDefinitionForStripesBandsAndMaps) {
  std::mt19937_64 random(3);
  const auto dims = TypeParam::head_dims();
  const AttentionShape shapes[] = {{4, 2, dims[0]}, {2, 2, dims[1]}, {3, 1, dims[0]}};
  for (int round = 0; round < (kSanitized ? 1 : 6); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const CaseOptions options =
        stripes_bands_and_maps(shapes[round % 3], round, {1, TypeParam::kLength / 2 + 50}, random);
    this->expect_right(this->rounded(options, random), 1 + round % 2);
  }
}

/// More queries than a sum in registers holds.
TYPED_TEST(DeviceKernels, SumsOfKeysGoToMemoryOnTheWay) {
  if (kSanitized) GTEST_SKIP() << "thousands of queries, one by one: too slow with sanitizers";
  std::mt19937_64 random(4);
  const std::int64_t queries = kernels::device::kQueriesPerFlush + 128;
  Case of = this->rounded({{1, 1, this->smallest()}, 0, {queries}, false, 0, 0}, random);
  of.pieces[0].task.band = Band::full();
  of.pieces[0].task.k = {0, 40};
  this->expect_right(of);
}

TYPED_TEST(DeviceKernels, SameBitsInWhateverOrderThreadsRun) {
  std::mt19937_64 random(5);
  const Case of = this->rounded({{2, 1, 64}, 10000, {TypeParam::kLength}, true, 0.1, 0}, random);
  const auto a = computed(of, 1, under_test<TypeParam>());
  const auto b = computed(of, 1, under_test<TypeParam>(1000));
  expect_same_bits(a, b);
}

TYPED_TEST(DeviceKernels, HugeLogitsKeepTheirLargest) {
  std::vector<AttentionShape> shapes;
  for (const int head_dim : TypeParam::head_dims()) shapes.push_back({1, 1, head_dim});
  for_each_huge_case(shapes, 80, [&](const Case& of, const auto& clear, const auto& wanted) {
    for (const int calls : {1, 2}) {
      const auto got = computed(this->named(of), calls, forward_only(under_test<TypeParam>()));
      expect_clear_rows(got[0], wanted, clear, kBfloat16);
    }
  });
}

TYPED_TEST(DeviceKernels, OverflowedLogitsAreNotTakenForNoKeys) {
  const Case of = this->named(overflowing_case({1, 1, this->smallest()}));
  expect_overflow_shows(computed(of, 1, under_test<TypeParam>())[0], of, kBfloat16);
}

TYPED_TEST(DeviceKernels, KeysOutsideTheBandAreNotRead) {
  std::mt19937_64 random(13);
  Case of = this->rounded({{2, 1, this->smallest()}, 10000, {500}, false, 0, 0}, random);
  of.pieces[0].task.q = {400, 500};
  of.pieces[0].task.band = Band::window(100);
  const std::vector<DocumentResult> expected = reference(of);
  for (std::size_t at = 0; at < 300 * static_cast<std::size_t>(this->smallest()); ++at) {
    of.documents[0].k[at] = of.documents[0].v[at] = std::nan("");
  }
  expect_within(computed(of, 1, under_test<TypeParam>()), expected, kBfloat16);
}

}  // namespace
}  // namespace cadenza::testing
